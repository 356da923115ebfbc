// What is read from the files of the packaged models.
#include "tests/support/real_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/text/tokenizer.h"

namespace kvblend::model {
namespace {

TEST(RealModelTest, IsReadAsItsAuthorsPublishIt) {
  const auto file = GgufFile::Open(test_support::RealModelPath(KVBLEND_SOURCE_DIR));
  ASSERT_TRUE(file.ok()) << file.status() << "\n" << test_support::kFetchModelHint;
  const auto config = ReadModelConfig(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  // https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->hidden_dim, 576);
  EXPECT_EQ(config->num_heads, 9);
  EXPECT_EQ(config->num_kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->ffn_dim, 1536);
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->context_length, 8192);
  EXPECT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_freq_base, 100000);
  EXPECT_TRUE(config->tied_output);
  EXPECT_FLOAT_EQ(config->ropes[0].inv_freq[31], std::pow(100000.0, -62.0 / 64));

  const auto tokenizer = ReadTokenizerSpec(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->pre_tokenizer, "smollm");
  EXPECT_EQ(tokenizer->tokens.size(), 49152u);
  EXPECT_EQ(tokenizer->merges.size(), 48900u);
  EXPECT_EQ(tokenizer->tokens[tokenizer->eos.value()], "<|im_end|>");
  EXPECT_EQ(tokenizer->tokens[tokenizer->bos.value()], "<|im_start|>");
}

TEST(RealModelTest, Gemma3IsReadAsItsAuthorsPublishIt) {
  const std::string path = KVBLEND_SOURCE_DIR "/models/gemma-3-270m-q4_k_m.gguf";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "no " << path << ": run deploy/fetch_model.sh gemma3-270m";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  // https://huggingface.co/google/gemma-3-270m, config.json
  EXPECT_EQ(config->num_layers, 18);
  EXPECT_EQ(config->hidden_dim, 640);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 1);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->ffn_dim, 2048);
  EXPECT_EQ(config->vocab_size, 262144);
  EXPECT_EQ(config->context_length, 32768);
  EXPECT_EQ(config->rope_freq_base, 1000000);
  EXPECT_TRUE(config->tied_output);
  for (int32_t layer = 0; layer < 18; ++layer) {
    const bool sees_all = layer == 5 || layer == 11 || layer == 17;
    const auto& of_layer = config->layers[static_cast<size_t>(layer)];
    EXPECT_EQ(of_layer.sliding_window, sees_all ? 0 : 512) << layer;
    const double base = sees_all ? 1e6 : 1e4;
    EXPECT_FLOAT_EQ(config->ropes[static_cast<size_t>(of_layer.rope)].inv_freq[127],
                    std::pow(base, -254.0 / 256))
        << layer;
  }

  const auto spec = ReadTokenizerSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = text::Tokenizer::Create(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->add_bos());
  EXPECT_EQ((*tokenizer)->TokenBytes((*tokenizer)->bos().value()), "<bos>");
  // As llama.cpp has them (tests/bench/models/peer_greedy.py compares many more).
  EXPECT_EQ((*tokenizer)->Encode("The capital of Norway is"),
            (std::vector<text::TokenId>{818, 5279, 529, 32649, 563}));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration((*tokenizer)->FindSpecial("<end_of_turn>").value()));
}

}  // namespace
}  // namespace kvblend::model
