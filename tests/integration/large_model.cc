#include "tests/integration/large_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "tests/support/gguf_builder.h"
#include "tests/support/tiny_model.h"

namespace kvblend::test_support {
namespace {

using model::TensorType;

constexpr int64_t kHidden = 2048, kFfn = 5632, kExpertFfn = 1536, kHeads = 16, kKvHeads = 4, kHeadDim = 128,
                  kVocab = 4096;

struct Matrix {
  std::string gguf_name, folder_name;
  std::vector<int64_t> shape;  // the length of a row last

  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count;
  }
};

std::vector<Matrix> MatricesOf(const LargeModel& model) {
  std::vector<Matrix> matrices = {{"token_embd.weight", "model.embed_tokens.weight", {kVocab, kHidden}}};
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string number = std::to_string(layer);
    const auto add = [&](const std::string& gguf_name, const std::string& folder_name,
                         const std::vector<int64_t>& shape) {
      matrices.push_back({"blk." + number + "." + gguf_name + ".weight",
                          "model.layers." + number + "." + folder_name + ".weight", shape});
    };
    add("attn_q", "self_attn.q_proj", {kHeads * kHeadDim, kHidden});
    add("attn_k", "self_attn.k_proj", {kKvHeads * kHeadDim, kHidden});
    add("attn_v", "self_attn.v_proj", {kKvHeads * kHeadDim, kHidden});
    add("attn_output", "self_attn.o_proj", {kHidden, kHeads * kHeadDim});
    if (model.experts > 0) {
      add("ffn_gate_exps", "", {model.experts, kExpertFfn, kHidden});
      add("ffn_up_exps", "", {model.experts, kExpertFfn, kHidden});
      add("ffn_down_exps", "", {model.experts, kHidden, kExpertFfn});
    } else {
      add("ffn_gate", "mlp.gate_proj", {kFfn, kHidden});
      add("ffn_up", "mlp.up_proj", {kFfn, kHidden});
      add("ffn_down", "mlp.down_proj", {kHidden, kFfn});
    }
  }
  return matrices;
}

// Blocks of random codes, and of scales that are finite.
std::string RandomTensor(TensorType type, int64_t elements, std::mt19937_64& random) {
  const model::TensorTypeTraits& traits = model::TraitsOf(type);
  std::string bytes(elements / traits.block_elements * traits.block_bytes, '\0');
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
  const auto set_halves = [&](int64_t offset, int64_t stride, int count) {
    for (size_t at = offset; at < bytes.size(); at += stride) {
      const uint16_t halves[] = {0x1400, 0x1400};  // 2^-10
      std::memcpy(bytes.data() + at, halves, count * sizeof(uint16_t));
    }
  };
  if (type == TensorType::kQ4_K) set_halves(0, traits.block_bytes, 2);
  if (type == TensorType::kQ6_K) set_halves(208, traits.block_bytes, 1);
  if (type == TensorType::kQ8_0) set_halves(0, traits.block_bytes, 1);
  if (type == TensorType::kBF16) {
    for (size_t at = 1; at < bytes.size(); at += 2) bytes[at] = 0x3C;
  }
  return bytes;
}

GgufBuilder Keys(const LargeModel& model) {
  TinyModelSpec spec;
  spec.num_layers = model.layers;
  std::vector<std::string> tokens = TinyTokens();
  while (static_cast<int64_t>(tokens.size()) < kVocab)
    tokens.push_back("<" + std::to_string(tokens.size()) + ">");
  std::vector<int32_t> token_types(kVocab, 1);
  std::fill_n(token_types.begin(), kTinyFirstByte, 3);  // control tokens
  GgufBuilder builder = TinyModelBuilder(spec);
  builder.SetStringArray("tokenizer.ggml.tokens", tokens)
      .SetInt32Array("tokenizer.ggml.token_type", token_types)
      .SetUint32("llama.embedding_length", kHidden)
      .SetUint32("llama.feed_forward_length", model.experts > 0 ? kExpertFfn : kFfn)
      .SetUint32("llama.attention.head_count", kHeads)
      .SetUint32("llama.attention.head_count_kv", kKvHeads)
      .SetUint32("llama.attention.key_length", kHeadDim)
      .SetUint32("llama.attention.value_length", kHeadDim)
      .SetUint32("llama.rope.dimension_count", kHeadDim)
      .SetUint32("llama.context_length", 256)
      .SetUint32("llama.vocab_size", kVocab);
  if (model.experts > 0) {
    builder.SetUint32("llama.expert_count", model.experts).SetUint32("llama.expert_used_count", 2);
    for (int32_t layer = 0; layer < model.layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".ffn_";
      for (const std::string part : {"gate", "up", "down"}) builder.RemoveTensor(prefix + part + ".weight");
    }
  }
  return builder;
}

void AddNorms(GgufBuilder& builder, const LargeModel& model) {
  const std::vector<float> ones(kHidden, 1.0f);
  builder.SetTensorF32("output_norm.weight", {kHidden}, ones);
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    builder.SetTensorF32(prefix + "attn_norm.weight", {kHidden}, ones)
        .SetTensorF32(prefix + "ffn_norm.weight", {kHidden}, ones);
    if (model.experts > 0) {
      builder.SetTensorF32(prefix + "ffn_gate_inp.weight", {kHidden, static_cast<uint64_t>(model.experts)},
                           std::vector<float>(kHidden * model.experts, 1.0f));
    }
  }
}

void AddMatrix(GgufBuilder& builder, const Matrix& matrix, TensorType type, std::mt19937_64& random) {
  builder.SetTensor(matrix.gguf_name, {matrix.shape.rbegin(), matrix.shape.rend()},
                    static_cast<uint32_t>(type), RandomTensor(type, matrix.elements(), random));
}

void WriteFile(const std::string& path, const std::string& bytes, LargeModelFiles& files) {
  std::ofstream(path, std::ios::binary) << bytes;
  files.bytes += static_cast<int64_t>(bytes.size());
}

void WriteParts(const std::string& folder, const LargeModel& model, const std::vector<Matrix>& matrices,
                std::mt19937_64& random, LargeModelFiles& files) {
  GgufBuilder first = Keys(model), second;
  AddNorms(first, model);
  const size_t half = matrices.size() / 2;
  for (size_t i = 0; i < matrices.size(); ++i) {
    // What the tiny model has under this name goes.
    first.RemoveTensor(matrices[i].gguf_name);
    AddMatrix(i < half ? first : second, matrices[i], model.type, random);
  }
  const auto total = static_cast<uint32_t>(matrices.size()) + 1 + 2 * static_cast<uint32_t>(model.layers);
  uint32_t number = 0;
  for (GgufBuilder* part : {&first, &second}) {
    part->SetUint32("split.no", number++).SetUint32("split.count", 2).SetUint32("split.tensors.count", total);
    WriteFile(folder + "/large-0000" + std::to_string(number) + "-of-00002.gguf", part->Build(), files);
  }
  files.path = folder + "/large-00001-of-00002.gguf";
}

void WriteFolder(const std::string& folder, const LargeModel& model, const std::vector<Matrix>& matrices,
                 std::mt19937_64& random, LargeModelFiles& files) {
  nlohmann::json header;
  std::string data;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, const std::string& bytes) {
    header[name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  };
  for (const Matrix& matrix : matrices) {
    add(matrix.folder_name, matrix.shape, RandomTensor(model.type, matrix.elements(), random));
  }
  std::string ones;
  for (int64_t i = 0; i < kHidden; ++i) AppendBytes(ones, uint16_t{0x3F80});
  add("model.norm.weight", {kHidden}, ones);
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    for (const std::string norm : {"input_layernorm", "post_attention_layernorm"}) {
      add("model.layers." + std::to_string(layer) + "." + norm + ".weight", {kHidden}, ones);
    }
  }
  files.path = folder + "/large";
  std::filesystem::create_directory(files.path);
  const std::string text = header.dump();
  std::string length;
  AppendBytes(length, uint64_t{text.size()});
  WriteFile(files.path + "/model.safetensors", length + text + data, files);
  std::ofstream(files.path + "/config.json") << nlohmann::json{
      {"model_type", "llama"},          {"hidden_size", kHidden},        {"num_hidden_layers", model.layers},
      {"intermediate_size", kFfn},      {"num_attention_heads", kHeads}, {"num_key_value_heads", kKvHeads},
      {"max_position_embeddings", 256}, {"rms_norm_eps", 1e-5},          {"vocab_size", kVocab},
      {"tie_word_embeddings", true}};
  for (const std::string file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/folders/" + file,
                               files.path + "/" + file);
  }
}

}  // namespace

LargeModelFiles WriteLargeModel(const std::string& folder, const LargeModel& model) {
  std::mt19937_64 random(7);
  const std::vector<Matrix> matrices = MatricesOf(model);
  LargeModelFiles files;
  for (const Matrix& matrix : matrices) files.weights += matrix.elements();
  if (model.form == ModelForm::kParts) {
    WriteParts(folder, model, matrices, random, files);
  } else if (model.form == ModelForm::kFolder) {
    EXPECT_TRUE(model.type == TensorType::kBF16 && model.experts == 0) << model.name;
    WriteFolder(folder, model, matrices, random, files);
  } else {
    GgufBuilder builder = Keys(model);
    AddNorms(builder, model);
    for (const Matrix& matrix : matrices) AddMatrix(builder, matrix, model.type, random);
    files.path = folder + "/large.gguf";
    WriteFile(files.path, builder.Build(), files);
  }
  return files;
}

}  // namespace kvblend::test_support
