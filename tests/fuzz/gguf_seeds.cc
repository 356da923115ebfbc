#include "tests/fuzz/gguf_seeds.h"

#include "tests/support/tiny_model.h"

namespace kvblend::test_support {
namespace {

// A vocabulary of four tokens in place of the usual one, so that most bytes of the file are structure.
GgufBuilder Small(TinyModelSpec spec) {
  spec.num_layers = 1;
  GgufBuilder builder = TinyModelBuilder(spec);
  builder.SetStringArray("tokenizer.ggml.tokens", {"<|endoftext|>", "a", "b", "ab"})
      .SetInt32Array("tokenizer.ggml.token_type", {3, 1, 1, 1})
      .SetStringArray("tokenizer.ggml.merges", {"a b"})
      .SetString("tokenizer.chat_template", "")
      .SetUint32("llama.vocab_size", 4);
  const auto width = static_cast<uint64_t>(spec.hidden_dim);
  const std::vector<float> rows(4 * width, 0.5f);
  builder.SetTensorF32("token_embd.weight", {width, 4}, rows);
  if (!spec.tied_output) builder.SetTensorF32("output.weight", {width, 4}, rows);
  return builder;
}

}  // namespace

std::vector<std::string> GgufSeeds() {
  TinyModelSpec spec;
  spec.hidden_dim = 4;
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 2;
  spec.ffn_dim = 4;
  std::vector<std::string> seeds = {Small(spec).Build(), Small(spec).SetVersion(2).SetAlignment(8).Build()};
  TinyModelSpec changed = spec;
  changed.tied_output = false;
  changed.rope_scaling = TinyRopeScaling::kLlama3;
  seeds.push_back(Small(changed).Build());
  changed = spec;
  changed.rope_scaling = TinyRopeScaling::kLinear;
  changed.weight_type = TinyWeightType::kF16;
  seeds.push_back(Small(changed).Build());
  changed = spec;
  changed.hidden_dim = changed.ffn_dim = 32;
  changed.head_dim = 16;
  changed.weight_type = TinyWeightType::kQ8_0;
  seeds.push_back(Small(changed).Build());
  changed = spec;
  changed.num_experts = 3;
  seeds.push_back(Small(changed).Build());
  // One tensor of every other type: the parser reads them even though no such model exists.
  GgufBuilder types;
  types.SetString("general.architecture", "llama");
  for (const auto& [type, bytes] :
       {std::pair<uint32_t, int>{2, 18}, {3, 20}, {6, 22}, {7, 24}, {20, 18}, {39, 17}}) {
    types.SetTensor("t" + std::to_string(type), {32}, type, std::string(bytes, '\x3C'));
  }
  for (const auto& [type, bytes] :
       {std::pair<uint32_t, int>{10, 84}, {11, 110}, {12, 144}, {13, 176}, {14, 210}, {23, 136}}) {
    types.SetTensor("t" + std::to_string(type), {256}, type, std::string(bytes, '\x3C'));
  }
  types.SetTensor("t30", {2}, 30, std::string(4, '\x3C'));
  seeds.push_back(types.Build());
  return seeds;
}

}  // namespace kvblend::test_support
