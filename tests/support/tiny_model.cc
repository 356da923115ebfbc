#include "tests/support/tiny_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <numbers>
#include <random>

#include "absl/strings/str_cat.h"

namespace kvblend::test_support {
namespace {

// A minimal ChatML template.
constexpr char kChatTemplate[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Frequent pairs of English; \304\240 is the byte alphabet's letter for a space.
constexpr const char* kMerges[] = {
    "\304\240 t", "h e",        "i n",  "\304\240 a",  "e r",          "o n", "\304\240t he",
    "r e",        "\304\240 s", "a t",  "\304\240 w",  "o r",          "i s", "\304\240 b",
    "\304\240 c", "\304\240 p", "in g", "\304\240a n", "\304\240an d", "a l",
};

std::string Utf8(uint32_t code_point) {  // below U+0800
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// GPT-2 writes printable bytes as themselves and the others, in order, as the letters from U+0100 on.
std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> letters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters.push_back(Utf8(printable ? byte : next++));
  }
  return letters;
}

// Normal variates that do not depend on the standard library's implementation.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float Normal(double mean, double deviation) {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return static_cast<float>(mean + deviation * radius * std::cos(2 * std::numbers::pi * Uniform()));
  }

 private:
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::mt19937_64 engine_;
};

// Nearest binary16 with ties to even, for normal numbers and zero; smaller ones become zero.
uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude < 0x38800000) return sign;
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

class Writer {
 public:
  Writer(const TinyModelSpec& spec, GgufBuilder& builder)
      : spec_(spec), random_(spec.seed), builder_(builder) {}

  void Matrix(const std::string& name, int64_t rows, int64_t cols, double deviation) {
    Tensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}, deviation, spec_.weight_type);
  }
  void Router(const std::string& name, double deviation) {
    Tensor(name, {static_cast<uint64_t>(spec_.hidden_dim), static_cast<uint64_t>(spec_.num_experts)},
           deviation, spec_.quantized_router ? spec_.weight_type : TinyWeightType::kF32);
  }
  /// A matrix for every expert.
  void Experts(const std::string& name, int64_t rows, int64_t cols, double deviation) {
    const auto experts = static_cast<uint64_t>(spec_.num_experts);
    Tensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), experts}, deviation,
           spec_.weight_type);
  }

  void Norm(const std::string& name) {
    std::vector<float> values(spec_.hidden_dim);
    for (float& value : values) value = random_.Normal(1, 0.1);
    builder_.SetTensorF32(name, {values.size()}, values);
  }

 private:
  void Tensor(const std::string& name, const std::vector<uint64_t>& dims, double deviation,
              TinyWeightType type) {
    uint64_t elements = 1;
    for (const uint64_t dim : dims) elements *= dim;
    std::vector<float> values(elements);
    for (float& value : values) value = random_.Normal(0, deviation);
    switch (type) {
      case TinyWeightType::kF32:
        builder_.SetTensorF32(name, dims, values);
        break;
      case TinyWeightType::kF16: {
        std::string bytes;
        for (const float value : values) AppendBytes(bytes, FloatToHalf(value));
        builder_.SetTensor(name, dims, kGgufF16, std::move(bytes));
        break;
      }
      case TinyWeightType::kQ8_0:
        builder_.SetTensor(name, dims, kGgufQ8_0, QuantizeQ8_0(values));
        break;
    }
  }

  static std::string QuantizeQ8_0(const std::vector<float>& values) {
    std::string bytes;
    for (size_t begin = 0; begin < values.size(); begin += 32) {
      float largest = 0;
      for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
      AppendBytes(bytes, FloatToHalf(largest / 127));
      for (size_t i = begin; i < begin + 32; ++i) {
        AppendBytes(bytes, static_cast<int8_t>(largest > 0 ? std::lround(values[i] / largest * 127) : 0));
      }
    }
    return bytes;
  }

  const TinyModelSpec& spec_;
  Random random_;
  GgufBuilder& builder_;
};

void SetTokenizer(GgufBuilder& builder) {
  const std::vector<std::string> tokens = TinyTokens();
  std::vector<int32_t> types(tokens.size(), 1);                 // normal
  std::fill(types.begin(), types.begin() + kTinyFirstByte, 3);  // control
  builder.SetString("tokenizer.ggml.model", "gpt2")
      .SetString("tokenizer.ggml.pre", "smollm")
      .SetStringArray("tokenizer.ggml.tokens", tokens)
      .SetInt32Array("tokenizer.ggml.token_type", types)
      .SetStringArray("tokenizer.ggml.merges", TinyMerges())
      .SetUint32("tokenizer.ggml.bos_token_id", kTinyImStart)
      .SetUint32("tokenizer.ggml.eos_token_id", kTinyImEnd)
      .SetUint32("tokenizer.ggml.unknown_token_id", kTinyEndOfText)
      .SetUint32("tokenizer.ggml.padding_token_id", kTinyImEnd)
      .SetBool("tokenizer.ggml.add_bos_token", false)
      .SetBool("tokenizer.ggml.add_space_prefix", false)
      .SetString("tokenizer.chat_template", kChatTemplate);
}

void SetRope(const TinyModelSpec& spec, GgufBuilder& builder) {
  builder.SetFloat32("llama.rope.freq_base", spec.rope_freq_base);
  builder.SetUint32("llama.rope.dimension_count", spec.head_dim);
  if (spec.rope_scaling == TinyRopeScaling::kLinear) {
    builder.SetString("llama.rope.scaling.type", "linear");
    builder.SetFloat32("llama.rope.scaling.factor", spec.rope_linear_factor);
  }
  if (spec.rope_scaling == TinyRopeScaling::kLlama3) {
    // Fast rotations keep their speed, slow ones are divided by 8, as llama3 scaling does around a
    // transition.
    std::vector<float> divisors(spec.head_dim / 2);
    for (size_t i = 0; i < divisors.size(); ++i) {
      divisors[i] = 1 + 7 * static_cast<float>(i) / static_cast<float>(divisors.size());
    }
    builder.SetTensorF32("rope_freqs.weight", {divisors.size()}, divisors);
  }
}

}  // namespace

std::vector<std::string> TinyMerges() { return {std::begin(kMerges), std::end(kMerges)}; }

std::vector<std::string> TinyTokens() {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (std::string& letter : ByteAlphabet()) tokens.push_back(std::move(letter));
  for (std::string merge : TinyMerges()) {
    merge.erase(merge.find(' '), 1);
    tokens.push_back(std::move(merge));
  }
  return tokens;
}

int32_t TinyVocabSize() { return static_cast<int32_t>(TinyTokens().size()); }

GgufBuilder TinyModelBuilder(const TinyModelSpec& spec) {
  GgufBuilder builder;
  builder.SetString("general.architecture", "llama")
      .SetString("general.name", "tiny test model")
      .SetUint32("llama.block_count", spec.num_layers)
      .SetUint32("llama.context_length", spec.context_length)
      .SetUint32("llama.embedding_length", spec.hidden_dim)
      .SetUint32("llama.feed_forward_length", spec.ffn_dim)
      .SetUint32("llama.attention.head_count", spec.num_heads)
      .SetUint32("llama.attention.head_count_kv", spec.num_kv_heads)
      .SetUint32("llama.attention.key_length", spec.head_dim)
      .SetUint32("llama.attention.value_length", spec.head_dim)
      .SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .SetUint32("llama.vocab_size", TinyVocabSize());
  if (spec.num_experts > 0) {
    builder.SetUint32("llama.expert_count", spec.num_experts)
        .SetUint32("llama.expert_used_count", spec.num_used_experts);
  }
  SetRope(spec, builder);
  SetTokenizer(builder);

  // Deviations that keep activations near 1 and make attention distinctly uneven (queries and keys twice as
  // large).
  Writer writer(spec, builder);
  const double hidden_scale = 1 / std::sqrt(spec.hidden_dim);
  const int64_t query_dim = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv_dim = int64_t{spec.num_kv_heads} * spec.head_dim;
  writer.Matrix("token_embd.weight", TinyVocabSize(), spec.hidden_dim, 0.5);
  writer.Norm("output_norm.weight");
  if (!spec.tied_output) writer.Matrix("output.weight", TinyVocabSize(), spec.hidden_dim, 0.5);
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    const auto name = [&](const char* part) { return absl::StrCat("blk.", layer, ".", part, ".weight"); };
    writer.Norm(name("attn_norm"));
    writer.Matrix(name("attn_q"), query_dim, spec.hidden_dim, 2 * hidden_scale);
    writer.Matrix(name("attn_k"), kv_dim, spec.hidden_dim, 2 * hidden_scale);
    writer.Matrix(name("attn_v"), kv_dim, spec.hidden_dim, hidden_scale);
    writer.Matrix(name("attn_output"), spec.hidden_dim, query_dim, 1 / std::sqrt(query_dim));
    writer.Norm(name("ffn_norm"));
    if (spec.num_experts > 0) {
      writer.Router(name("ffn_gate_inp"), 4 * hidden_scale);
      writer.Experts(name("ffn_gate_exps"), spec.ffn_dim, spec.hidden_dim, hidden_scale);
      writer.Experts(name("ffn_up_exps"), spec.ffn_dim, spec.hidden_dim, hidden_scale);
      writer.Experts(name("ffn_down_exps"), spec.hidden_dim, spec.ffn_dim, 1 / std::sqrt(spec.ffn_dim));
      continue;
    }
    writer.Matrix(name("ffn_gate"), spec.ffn_dim, spec.hidden_dim, hidden_scale);
    writer.Matrix(name("ffn_up"), spec.ffn_dim, spec.hidden_dim, hidden_scale);
    writer.Matrix(name("ffn_down"), spec.hidden_dim, spec.ffn_dim, 1 / std::sqrt(spec.ffn_dim));
  }
  return builder;
}

std::string BuildTinyModel(const TinyModelSpec& spec) { return TinyModelBuilder(spec).Build(); }

absl::Status WriteTinyModel(const std::string& path, const TinyModelSpec& spec) {
  const std::string bytes = BuildTinyModel(spec);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::UnknownError(absl::StrCat("cannot write the test model ", path));
  return absl::OkStatus();
}

}  // namespace kvblend::test_support
