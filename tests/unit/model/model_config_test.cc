#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/tiny_model.h"

namespace kvblend::model {
namespace {

using test_support::GgufBuilder;
using test_support::TinyModelBuilder;
using test_support::TinyModelSpec;
using test_support::TinyRopeScaling;
using ::testing::HasSubstr;

template <typename Reader>
auto Read(const GgufBuilder& builder, Reader reader) -> decltype(reader(std::declval<const GgufFile&>())) {
  const std::string bytes = builder.Build();
  const auto file = GgufFile::FromMemory(test_support::Bytes(bytes), "test.gguf");
  if (!file.ok()) return file.status();
  return reader(*file);
}

absl::StatusOr<ModelConfig> ReadConfig(const GgufBuilder& builder) { return Read(builder, ReadModelConfig); }
absl::StatusOr<text::TokenizerSpec> ReadTokenizer(const GgufBuilder& builder) {
  return Read(builder, ReadTokenizerSpec);
}

template <typename T>
void ExpectRefused(const absl::StatusOr<T>& result, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(result.status().code(), code) << result.status() << ", expected: " << message;
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(message));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(ModelConfigTest, ReadsEveryNumber) {
  TinyModelSpec spec;
  spec.num_layers = 3;
  spec.num_heads = 6;
  spec.num_kv_heads = 3;
  spec.head_dim = 10;
  spec.ffn_dim = 40;
  spec.context_length = 777;
  spec.rope_freq_base = 5000;
  spec.tied_output = false;
  const auto config = ReadConfig(TinyModelBuilder(spec));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture->name, "llama");
  EXPECT_EQ(config->name, "tiny test model");
  EXPECT_EQ(config->num_layers, 3);
  EXPECT_EQ(config->hidden_dim, 32);
  EXPECT_EQ(config->num_heads, 6);
  EXPECT_EQ(config->num_kv_heads, 3);
  EXPECT_EQ(config->head_dim, 10);
  EXPECT_EQ(config->ffn_dim, 40);
  EXPECT_EQ(config->vocab_size, test_support::TinyVocabSize());
  EXPECT_EQ(config->context_length, 777);
  EXPECT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_freq_base, 5000);
  EXPECT_FALSE(config->tied_output);
  EXPECT_EQ(config->architecture->rope_layout, kernels::RopeLayout::kInterleaved);
  EXPECT_THAT(config->chat_template, HasSubstr("<|im_start|>"));
  ASSERT_EQ(config->ropes[0].inv_freq.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(config->ropes[0].inv_freq[i], std::pow(5000.0, -0.2 * i));
}

TEST(ModelConfigTest, FillsInWhatMayBeLeftOut) {
  GgufBuilder builder = TinyModelBuilder({.num_kv_heads = 4});
  for (const char* key : {"llama.attention.head_count_kv", "llama.attention.key_length",
                          "llama.attention.value_length", "llama.vocab_size", "llama.rope.freq_base",
                          "llama.rope.dimension_count", "general.name", "tokenizer.chat_template"}) {
    builder.RemoveKey(key);
  }
  const auto config = ReadConfig(builder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->vocab_size, test_support::TinyVocabSize());
  EXPECT_EQ(config->rope_freq_base, 10000);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->chat_template, "");
}

TEST(ModelConfigTest, WhatAFileCallsItselfIsSafeToShow) {
  const auto name_of = [](const std::string& name) {
    const auto config = ReadConfig(TinyModelBuilder({}).SetString("general.name", name));
    return config.ok() ? config->name : std::string(config.status().message());
  };
  EXPECT_EQ(name_of("Skarn \xE4\xB8\x96 1B"), "Skarn \xE4\xB8\x96 1B");
  EXPECT_EQ(name_of("a\xFF\xFE z"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD z");  // protobuf and Prometheus refuse what is no UTF-8
  EXPECT_EQ(name_of("a\n\x1b[31mred\x7f\xC2\x9B z\xE2\x80\xA8"), "a  [31mred   z ");
  EXPECT_EQ(name_of(std::string(199, 'a') + "\xE4\xB8\x96"), std::string(199, 'a'));
  EXPECT_EQ(name_of(std::string(1 << 20, 'a')), std::string(200, 'a'));
  const std::string odd = "\x1b[31m" + std::string(1000, 'x');
  for (const char* key : {"general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    const GgufBuilder builder = TinyModelBuilder({}).SetString(key, odd);
    absl::Status status = ReadConfig(builder).status();
    if (const auto spec = ReadTokenizer(builder); status.ok() && spec.ok()) {
      status = text::FindPreTokenizer(spec->pre_tokenizer).status();
    } else if (status.ok()) {
      status = spec.status();
    }
    EXPECT_EQ(status.code(), kUnimplemented) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is '\\x1b[31mxxx")) << key;
    EXPECT_LT(status.message().size(), 900u) << key;
  }
}

TEST(ModelConfigTest, ScalesRope) {
  const auto plain = ReadConfig(TinyModelBuilder({}));
  const auto linear =
      ReadConfig(TinyModelBuilder({.rope_scaling = TinyRopeScaling::kLinear, .rope_linear_factor = 4}));
  const auto llama3 = ReadConfig(TinyModelBuilder({.rope_scaling = TinyRopeScaling::kLlama3}));
  const auto old_key = ReadConfig(TinyModelBuilder({}).SetFloat32("llama.rope.scale_linear", 4));
  const auto no_type = ReadConfig(TinyModelBuilder({}).SetFloat32("llama.rope.scaling.factor", 4));
  const auto none = ReadConfig(TinyModelBuilder({}).SetString("llama.rope.scaling.type", "none"));
  const auto both = ReadConfig(TinyModelBuilder({.rope_scaling = TinyRopeScaling::kLlama3})
                                   .SetFloat32("llama.rope.scaling.factor", 2));
  for (const auto* config : {&plain, &linear, &llama3, &old_key, &no_type, &none, &both}) {
    ASSERT_TRUE(config->ok()) << config->status();
  }
  for (int i = 0; i < 4; ++i) {
    const double frequency = std::pow(10000.0, -0.25 * i);
    const double divisor = 1 + 7.0 * i / 4;  // as SetRope in tests/support/tiny_model.cc writes them
    EXPECT_FLOAT_EQ(plain->ropes[0].inv_freq[i], frequency);
    EXPECT_FLOAT_EQ(linear->ropes[0].inv_freq[i], frequency / 4);
    EXPECT_FLOAT_EQ(old_key->ropes[0].inv_freq[i], frequency / 4);
    EXPECT_FLOAT_EQ(no_type->ropes[0].inv_freq[i], frequency / 4);
    EXPECT_FLOAT_EQ(none->ropes[0].inv_freq[i], frequency);
    EXPECT_FLOAT_EQ(llama3->ropes[0].inv_freq[i], frequency / divisor);
    EXPECT_FLOAT_EQ(both->ropes[0].inv_freq[i], frequency / divisor / 2);
  }
}

// Peng et al., "YaRN", ICLR 2024, section 3.4: cos and sin are multiplied by 1 + 0.1 ln(factor), and by what
// the file adds.
TEST(ModelConfigTest, YarnHasATemperature) {
  for (const float attn_factor : {1.0f, 1.5f}) {
    GgufBuilder builder = TinyModelBuilder({});
    builder.SetString("llama.rope.scaling.type", "yarn").SetFloat32("llama.rope.scaling.factor", 4);
    if (attn_factor != 1) builder.SetFloat32("llama.rope.scaling.attn_factor", attn_factor);
    const auto config = ReadConfig(builder);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_FLOAT_EQ(config->ropes[0].magnitude, attn_factor * (1 + 0.1 * std::log(4.0)));
  }
}

TEST(ModelConfigTest, RefusesRopeScalingByName) {
  for (const char* type : {"longrope", "dynamic", ""}) {
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetString("llama.rope.scaling.type", type)), kUnimplemented,
                  "key 'llama.rope.scaling.type' is '" + std::string(type) + "', which is not implemented");
  }
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetString("llama.rope.scaling.type", "linear")), kInvalid,
                "key 'llama.rope.scaling.factor' is missing");
  ExpectRefused(ReadConfig(TinyModelBuilder({})
                               .SetString("llama.rope.scaling.type", "none")
                               .SetFloat32("llama.rope.scaling.factor", 2)),
                kInvalid, "key 'llama.rope.scaling.factor' is 2 although");
  ExpectRefused(ReadConfig(TinyModelBuilder({})
                               .SetFloat32("llama.rope.scale_linear", 3)
                               .SetFloat32("llama.rope.scaling.factor", 2)),
                kInvalid, "allowed: equal values");
  for (const float factor : {0.0f, -1.0f, INFINITY, NAN}) {
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetFloat32("llama.rope.scaling.factor", factor)), kInvalid,
                  "key 'llama.rope.scaling.factor' is");
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetFloat32("llama.rope.freq_base", factor)), kInvalid,
                  "key 'llama.rope.freq_base' is");
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetTensorF32("rope_freqs.weight", {4}, {1, 1, factor, 1})),
                  kInvalid, "tensor 'rope_freqs.weight' holds");
  }
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetTensorF32("rope_freqs.weight", {3}, {1, 1, 1})), kInvalid,
                "tensor 'rope_freqs.weight' has shape [3]; allowed: [4]");
}

void Set(GgufBuilder& builder, const std::string& key, uint32_t value) { builder.SetUint32(key, value); }
void Set(GgufBuilder& builder, const std::string& key, float value) { builder.SetFloat32(key, value); }
void Set(GgufBuilder& builder, const std::string& key, bool value) { builder.SetBool(key, value); }
void Set(GgufBuilder& builder, const std::string& key, const std::string& value) {
  builder.SetString(key, value);
}

// Each of these would change the results if it were ignored.
TEST(ModelConfigTest, RefusesWhatItDoesNotImplementByName) {
  using Value = std::variant<uint32_t, float, bool, std::string>;
  const std::vector<std::pair<std::string, Value>> keys = {{"llama.expert_shared_count", 1u},
                                                           {"llama.expert_shared_feed_forward_length", 64u},
                                                           {"llama.expert_group_count", 8u},
                                                           {"llama.expert_group_used_count", 4u},
                                                           {"llama.expert_gating_func", 2u},
                                                           {"llama.expert_weights_scale", 2.5f},
                                                           {"llama.leading_dense_block_count", 1u},
                                                           {"llama.interleave_moe_layer_step", 2u},
                                                           {"llama.attention.clamp_kqv", 8.0f},
                                                           {"llama.attention.causal", false},
                                                           {"llama.attention.scale", 0.5f},
                                                           {"llama.attention.layer_norm_epsilon", 1e-5f},
                                                           {"llama.logit_scale", 2.0f},
                                                           {"llama.embedding_scale", 12.0f},
                                                           {"llama.rope.scaling.attn_factor", 1.5f},
                                                           {"llama.rope.scaling.yarn_log_multiplier", 0.1f},
                                                           {"llama.rope.dimension_count", 5u},
                                                           {"llama.attention.value_length", 4u},
                                                           {"llama.use_parallel_residual", true},
                                                           {"llama.tensor_data_layout", std::string("split")},
                                                           {"llama.something_new", 1u},
                                                           {"qwen2.block_count", 1u},
                                                           {"adapter.type", std::string("lora")},
                                                           {"tokenizer.ggml.something_new", 1u},
                                                           {"tokenizer.ggml.add_eos_token", true},
                                                           {"tokenizer.ggml.add_sep_token", true},
                                                           {"general.type", std::string("adapter")},
                                                           {"general.quantization_version", 1u},
                                                           {"split.count", 2u}};
  for (const auto& [name, value] : keys) {
    GgufBuilder builder = TinyModelBuilder({});
    std::visit([&builder, key = name](const auto& held) { Set(builder, key, held); }, value);
    ExpectRefused(ReadConfig(builder), kUnimplemented, "'" + name + "'");
  }
  for (const std::string name : {"blk.0.attn_norm.bias", "blk.0.ffn_gate_exps.weight",
                                 "blk.2.attn_norm.weight", "blk.00.attn_norm.weight", "surprise"}) {
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetTensorF32(name, {2}, {0, 0})), kUnimplemented,
                  "'" + name + "'");
  }
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetString("general.architecture", "mamba")), kUnimplemented,
                "key 'general.architecture' is 'mamba'; implemented: 'llama', '");
}

TEST(ModelConfigTest, Experts) {
  TinyModelSpec spec;
  spec.num_experts = 5;
  spec.num_used_experts = 3;
  auto config = ReadConfig(TinyModelBuilder(spec));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_experts, 5);
  EXPECT_EQ(config->num_used_experts, 3);
  EXPECT_TRUE(config->renormalises_experts);
  EXPECT_EQ(config->ffn_dim, 64);
  EXPECT_EQ(config->used_ffn_dim(), 3 * 64);
  const auto with = [&](auto change) {
    GgufBuilder builder = TinyModelBuilder(spec);
    change(builder);
    return ReadConfig(builder);
  };
  // What the experts' own length says counts for their shapes.
  config = with([](GgufBuilder& b) {
    b.SetUint32("llama.feed_forward_length", 999)
        .SetUint32("llama.expert_feed_forward_length", 64)
        .SetBool("llama.expert_weights_norm", false)
        .SetUint32("llama.expert_gating_func", 1);
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ffn_dim, 64);
  EXPECT_FALSE(config->renormalises_experts);

  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_gating_func", 2); }), kUnimplemented,
                "key 'llama.expert_gating_func' asks for a feature that is not implemented; allowed: 1");
  ExpectRefused(with([](GgufBuilder& b) { b.RemoveKey("llama.expert_used_count"); }), kInvalid,
                "key 'llama.expert_used_count' is missing");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_used_count", 6); }), kInvalid,
                "key 'llama.expert_used_count' is 6; allowed: 1 to 5");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_used_count", 0); }), kInvalid,
                "key 'llama.expert_used_count' is 0");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_count", 4097); }), kInvalid,
                "key 'llama.expert_count' is 4097; allowed: 0 to 4096");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_weights_norm", 1); }), kInvalid,
                "key 'llama.expert_weights_norm' is of type uint32");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_count", 4); }), kInvalid,
                "tensor 'blk.0.ffn_gate_inp.weight' has shape [32, 5]; allowed: [32, 4]");
  ExpectRefused(with([](GgufBuilder& b) { b.SetUint32("llama.expert_feed_forward_length", 32); }), kInvalid,
                "tensor 'blk.0.ffn_gate_exps.weight' has shape [32, 64, 5]; allowed: [32, 32, 5]");
  ExpectRefused(with([](GgufBuilder& b) { b.RemoveTensor("blk.1.ffn_up_exps.weight"); }), kInvalid,
                "tensor 'blk.1.ffn_up_exps.weight' is missing; expected shape [32, 64, 5]");
  ExpectRefused(with([](GgufBuilder& b) {
                  b.SetTensorF32("blk.1.ffn_down_exps.weight", {64, 160}, std::vector<float>(64 * 160));
                }),
                kInvalid, "tensor 'blk.1.ffn_down_exps.weight' has shape [64, 160]; allowed: [64, 32, 5]");
  for (const char* name : {"blk.0.ffn_gate_exps.bias", "blk.0.ffn_gate_shexp.weight", "blk.1.ffn_up.weight",
                           "blk.1.exp_probs_b.bias"}) {
    ExpectRefused(with([&](GgufBuilder& b) { b.SetTensorF32(name, {2}, {0, 0}); }), kUnimplemented, name);
  }
  // No number of experts: nothing else may be said of them.
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetUint32("llama.expert_used_count", 2)), kInvalid,
                "key 'llama.expert_used_count' is 2; allowed: 0 to 0");
}

TEST(ModelConfigTest, AcceptsSwitchedOffFeaturesAndDescriptions) {
  GgufBuilder builder = TinyModelBuilder({});
  builder.SetUint32("llama.expert_count", 0)
      .SetBool("tokenizer.ggml.add_sep_token", false)
      .SetUint32("llama.attention.sliding_window", 0)
      .SetFloat32("llama.attention.clamp_kqv", 0)
      .SetBool("llama.attention.causal", true)
      .SetFloat32("llama.rope.scaling.attn_factor", 1)
      .SetUint32("llama.rope.scaling.original_context_length", 8192)
      .SetString("llama.tensor_data_layout", "Meta AI original pth")
      .SetString("general.type", "model")
      .SetString("general.license", "apache-2.0")
      .SetUint32("general.quantization_version", 2)
      .SetString("quantize.imatrix.file", "calibration.dat")
      .SetBool("tokenizer.ggml.add_eos_token", false)
      .SetBool("tokenizer.ggml.add_sep_token", false)
      .SetString("tokenizer.chat_template.tool_use", "")
      .SetUint32("split.count", 1);
  const auto config = ReadConfig(builder);
  EXPECT_TRUE(config.ok()) << config.status();
}

TEST(ModelConfigTest, RefusesNumbersOutOfRange) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
                          "llama.attention.head_count_kv", "llama.feed_forward_length",
                          "llama.context_length", "llama.attention.key_length", "llama.vocab_size"}) {
    for (const uint32_t value : {0u, 0xFFFFFFFFu}) {
      ExpectRefused(ReadConfig(TinyModelBuilder({}).SetUint32(key, value)), kInvalid,
                    "key '" + std::string(key) + "' is " + std::to_string(value) + "; allowed: 1 to");
    }
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetInt32Array(key, {1, 2})), kInvalid,
                  "key '" + std::string(key) + "' is of type array; allowed: integers");
  }
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.attention.head_count",
        "llama.feed_forward_length", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    const auto config = ReadConfig(TinyModelBuilder({}).RemoveKey(key));
    EXPECT_FALSE(config.ok()) << key;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("'" + std::string(key) + "'"));
  }
  for (const float epsilon : {0.0f, -1e-5f, 1.0f, NAN}) {
    ExpectRefused(
        ReadConfig(TinyModelBuilder({}).SetFloat32("llama.attention.layer_norm_rms_epsilon", epsilon)),
        kInvalid, "key 'llama.attention.layer_norm_rms_epsilon' is");
  }
  std::string tiny;  // which floats do not have
  test_support::AppendBytes(tiny, 1e-60);
  for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
    ExpectRefused(ReadConfig(TinyModelBuilder({}).SetRaw(key, /*float64*/ 12, tiny)), kInvalid,
                  "key '" + std::string(key) + "' is 1e-60; allowed: above 0");
  }
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetUint32("llama.attention.head_count_kv", 3)), kInvalid,
                "key 'llama.attention.head_count_kv' is 3; allowed: divisors of the 4 heads");
  ExpectRefused(ReadConfig(TinyModelBuilder({.head_dim = 7})), kInvalid,
                "the head dimension is 7; allowed: even");
  GgufBuilder uneven = TinyModelBuilder({});
  uneven.RemoveKey("llama.attention.key_length").SetUint32("llama.attention.head_count", 5);
  ExpectRefused(ReadConfig(uneven), kInvalid, "key 'llama.attention.head_count' is 5; allowed: divisors");
}

TEST(ModelConfigTest, RefusesTokensWithoutEmbedding) {
  std::vector<std::string> tokens = test_support::TinyTokens();
  tokens.push_back("one too many");
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetStringArray("tokenizer.ggml.tokens", tokens)), kInvalid,
                "key 'tokenizer.ggml.tokens' has 280 elements; allowed: at most the 279 rows");
}

TEST(ModelConfigTest, LyingLayerCountsAreFoundWithoutAllocating) {
  ExpectRefused(ReadConfig(TinyModelBuilder({}).SetUint32("llama.block_count", 4096)), kInvalid,
                "tensor 'blk.2.attn_norm.weight' is missing");
}

TEST(TokenizerDataTest, ReadsTheTinyVocabulary) {
  const auto data = ReadTokenizer(TinyModelBuilder({}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->pre_tokenizer, "smollm");
  EXPECT_EQ(data->tokens, test_support::TinyTokens());
  EXPECT_EQ(data->merges, test_support::TinyMerges());
  EXPECT_EQ(data->token_types.size(), data->tokens.size());
  EXPECT_EQ(data->token_types[test_support::kTinyImEnd], 3);
  EXPECT_EQ(data->token_types[test_support::kTinyFirstByte], 1);
  EXPECT_EQ(data->bos, test_support::kTinyImStart);
  EXPECT_EQ(data->eos, test_support::kTinyImEnd);
  EXPECT_TRUE(data->end_of_generation.empty());
  EXPECT_FALSE(data->add_bos);
  // Every merge joins two tokens of the vocabulary into a third.
  const std::set<std::string> tokens(data->tokens.begin(), data->tokens.end());
  for (const std::string& merge : data->merges) {
    const size_t space = merge.find(' ');
    EXPECT_TRUE(tokens.count(merge.substr(0, space))) << merge;
    EXPECT_TRUE(tokens.count(merge.substr(space + 1))) << merge;
    EXPECT_TRUE(tokens.count(merge.substr(0, space) + merge.substr(space + 1))) << merge;
  }
}

TEST(TokenizerDataTest, FillsInWhatMayBeLeftOut) {
  GgufBuilder builder = TinyModelBuilder({});
  for (const char* key : {"tokenizer.ggml.pre", "tokenizer.ggml.token_type", "tokenizer.ggml.bos_token_id",
                          "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_bos_token"}) {
    builder.RemoveKey(key);
  }
  const auto data = ReadTokenizer(builder.SetBool("tokenizer.ggml.add_bos_token", true));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->pre_tokenizer, "default");
  EXPECT_TRUE(data->token_types.empty());
  EXPECT_EQ(data->bos, std::nullopt);
  EXPECT_TRUE(data->add_bos);
}

TEST(TokenizerDataTest, ReadsSentencePiecesVocabulary) {
  GgufBuilder builder = TinyModelBuilder({});
  builder.SetString("tokenizer.ggml.model", "llama").RemoveKey("tokenizer.ggml.merges");
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.pre",
                          "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"}) {
    builder.RemoveKey(key);
  }
  ExpectRefused(ReadTokenizer(builder), kInvalid, "key 'tokenizer.ggml.scores' is missing");
  builder.SetFloatArray("tokenizer.ggml.scores", {0.5f});
  ExpectRefused(ReadTokenizer(builder), kInvalid, "key 'tokenizer.ggml.scores' has 1 elements");
  std::vector<float> scores(test_support::TinyVocabSize(), -1.5f);
  builder.SetFloatArray("tokenizer.ggml.scores", scores);
  const auto data = ReadTokenizer(builder);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->model, text::TokenizerModel::kSentencePieceBpe);
  EXPECT_EQ(data->scores, scores);
  // What files of the first Llama leave out.
  EXPECT_TRUE(data->add_space_prefix);
  EXPECT_FALSE(data->remove_extra_whitespaces);
  EXPECT_TRUE(data->add_bos);
  EXPECT_EQ(data->unknown, 0);
  EXPECT_EQ(data->bos, 1);
  EXPECT_EQ(data->eos, 2);
  builder.SetBool("tokenizer.ggml.add_space_prefix", false).SetUint32("tokenizer.ggml.bos_token_id", 7);
  builder.SetUint32("tokenizer.ggml.eot_token_id", 8).SetUint32("tokenizer.ggml.eom_token_id", 9);
  const auto other = ReadTokenizer(builder);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->add_space_prefix);
  EXPECT_EQ(other->bos, 7);
  EXPECT_EQ(other->end_of_generation, (std::vector<int32_t>{8, 9}));
}

TEST(TokenizerDataTest, ReadsUnigramVocabulary) {
  GgufBuilder builder = TinyModelBuilder({});
  builder.SetString("tokenizer.ggml.model", "t5").RemoveKey("tokenizer.ggml.merges");
  builder.RemoveKey("tokenizer.ggml.pre");
  std::vector<float> scores(test_support::TinyVocabSize(), -1.5f);
  scores[0] = -50;  // of a control token, which is not counted
  scores[9] = -7.25f;
  builder.SetFloatArray("tokenizer.ggml.scores", scores);
  const auto data = ReadTokenizer(builder);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->model, text::TokenizerModel::kUnigram);
  EXPECT_EQ(data->unigram_precision, text::UnigramModel::Precision::kSingle);
  EXPECT_EQ(data->unigram_scores, std::vector<double>(scores.begin(), scores.end()));
  EXPECT_EQ(data->unigram_unknown_score, -17.25);
  builder.SetStringArray("tokenizer.ggml.precompiled_charsmap", {"x"});
  ExpectRefused(ReadTokenizer(builder), kUnimplemented,
                "key 'tokenizer.ggml.precompiled_charsmap' normalizes text; implemented: an empty array");
  builder.RemoveKey("tokenizer.ggml.precompiled_charsmap");
  std::vector<int32_t> types(test_support::TinyVocabSize(), text::kGgufNormal);
  types[20] = text::kGgufByte;
  builder.SetInt32Array("tokenizer.ggml.token_type", types);
  ExpectRefused(ReadTokenizer(builder), kInvalid, "says that 1 tokens are bytes; allowed: none, or all 256");
}

TEST(TokenizerDataTest, RefusesWrongData) {
  const auto with_tokens = [](std::vector<std::string> tokens) {
    return ReadTokenizer(TinyModelBuilder({}).SetStringArray("tokenizer.ggml.tokens", tokens));
  };
  ExpectRefused(ReadTokenizer(TinyModelBuilder({}).SetString("tokenizer.ggml.model", "bert")), kUnimplemented,
                "key 'tokenizer.ggml.model' is 'bert'; implemented: 'gpt2'");
  ExpectRefused(with_tokens({}), kInvalid, "key 'tokenizer.ggml.tokens' is empty");
  ExpectRefused(with_tokens({"a", "b", "a"}), kInvalid,
                "token 2 of key 'tokenizer.ggml.tokens' appears twice");
  ExpectRefused(with_tokens({"a", ""}), kInvalid, "token 1 of key 'tokenizer.ggml.tokens' is empty");
  ExpectRefused(with_tokens({"a", "\xFF"}), kInvalid,
                "token 1 of key 'tokenizer.ggml.tokens' is not valid UTF-8");
  ExpectRefused(with_tokens({"a", "b"}), kInvalid, "elements; allowed: one per token, 2");
  for (const char* merge : {"", "ab", " ab", "ab ", "a b c", " ", "\xFF b"}) {
    ExpectRefused(ReadTokenizer(TinyModelBuilder({}).SetStringArray("tokenizer.ggml.merges", {"a b", merge})),
                  kInvalid, "merge 1 of key 'tokenizer.ggml.merges' is malformed");
  }
  std::vector<int32_t> types(test_support::TinyVocabSize(), 1);
  types[5] = 7;
  ExpectRefused(ReadTokenizer(TinyModelBuilder({}).SetInt32Array("tokenizer.ggml.token_type", types)),
                kInvalid, "is 7 for token 5; allowed: 1 to 6");
  for (const char* key :
       {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"}) {
    const std::string name = "tokenizer.ggml." + std::string(key);
    const auto too_large = static_cast<uint32_t>(test_support::TinyVocabSize());
    ExpectRefused(ReadTokenizer(TinyModelBuilder({}).SetUint32(name, too_large)), kInvalid,
                  "key '" + name + "' is " + std::to_string(too_large));
  }
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    ExpectRefused(ReadTokenizer(TinyModelBuilder({}).RemoveKey(key)), kInvalid,
                  "key '" + std::string(key) + "' is missing");
  }
}

}  // namespace
}  // namespace kvblend::model
