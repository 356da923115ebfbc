// A model's tokenizer and chat format.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace kvblend {

/// The template uses the tokenizer, so it goes first.
struct ModelText {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
};

/// `config` comes from the file; `chat_format`: as EngineOptions has it. kInvalidArgument, kDataLoss or kUnimplemented naming the file and what is wrong.
absl::StatusOr<ModelText> LoadModelText(const model::GgufFile& file, const model::ModelConfig& config,
                                        std::string_view chat_format);

}  // namespace kvblend
