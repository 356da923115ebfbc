#include "tests/unit/text/model_tokenizer.h"

#include <utility>

#include "engine/model/gguf/gguf_file.h"
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
  absl::StatusOr<TokenizerSpec> spec = model::ReadTokenizerSpec(*file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return nullptr;
  spec->pre_tokenizer = pre_tokenizer;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*spec);
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
