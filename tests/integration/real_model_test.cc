// What is read from the default model's file.
#include "tests/support/real_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"

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

}  // namespace
}  // namespace kvblend::model
