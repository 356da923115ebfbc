#include "tests/unit/text/model_tokenizer.h"

#include <cstdlib>
#include <utility>

#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "gtest/gtest.h"

namespace kvblend::text {
namespace {

absl::StatusOr<model::GgufFile> OpenModel() {
  const char* path = std::getenv("KVBLEND_MODEL");
  return model::GgufFile::Open(
      path != nullptr ? path : KVBLEND_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

}  // namespace

std::unique_ptr<Tokenizer> LoadModelTokenizer(const std::string& pre_tokenizer) {
  const absl::StatusOr<model::GgufFile> file = OpenModel();
  if (!file.ok()) {
    ADD_FAILURE() << file.status() << "; deploy/fetch_model.sh gets the model";
    return nullptr;
  }
  absl::StatusOr<model::TokenizerData> data = model::ReadTokenizerData(*file);
  if (!data.ok()) {
    ADD_FAILURE() << data.status();
    return nullptr;
  }
  TokenizerSpec spec;
  spec.pre_tokenizer = pre_tokenizer;
  spec.tokens = std::move(data->tokens);
  spec.token_types = std::move(data->token_types);
  spec.merges = std::move(data->merges);
  spec.bos = data->bos_id;
  spec.eos = data->eos_id;
  spec.add_bos = data->add_bos;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(spec);
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status();
    return nullptr;
  }
  return *std::move(tokenizer);
}

std::string LoadModelChatTemplate() {
  const absl::StatusOr<model::GgufFile> file = OpenModel();
  if (!file.ok()) {
    ADD_FAILURE() << file.status() << "; deploy/fetch_model.sh gets the model";
    return {};
  }
  const absl::StatusOr<std::string_view> chat_template = file->GetString("tokenizer.chat_template");
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return std::string(chat_template.value_or(""));
}

}  // namespace kvblend::text
