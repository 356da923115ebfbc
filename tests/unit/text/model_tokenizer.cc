#include "tests/unit/text/model_tokenizer.h"

#include <utility>

#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "gtest/gtest.h"
#include "tests/support/real_model.h"

namespace kvblend::text {
namespace {

absl::StatusOr<model::GgufFile> OpenModel() {
  auto file = model::GgufFile::Open(test_support::RealModelPath(KVBLEND_SOURCE_DIR));
  EXPECT_TRUE(file.ok()) << file.status() << "; " << test_support::kFetchModelHint;
  return file;
}

}  // namespace

std::unique_ptr<Tokenizer> LoadModelTokenizer(const std::string& pre_tokenizer) {
  const absl::StatusOr<model::GgufFile> file = OpenModel();
  if (!file.ok()) return nullptr;
  absl::StatusOr<model::TokenizerData> data = model::ReadTokenizerData(*file);
  EXPECT_TRUE(data.ok()) << data.status();
  if (!data.ok()) return nullptr;
  TokenizerSpec spec;
  spec.pre_tokenizer = pre_tokenizer;
  spec.tokens = std::move(data->tokens);
  spec.token_types = std::move(data->token_types);
  spec.merges = std::move(data->merges);
  spec.bos = data->bos_id;
  spec.eos = data->eos_id;
  spec.add_bos = data->add_bos;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string LoadModelChatTemplate() {
  const absl::StatusOr<model::GgufFile> file = OpenModel();
  if (!file.ok()) return {};
  const absl::StatusOr<std::string_view> chat_template = file->GetString("tokenizer.chat_template");
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return std::string(chat_template.value_or(""));
}

}  // namespace kvblend::text
