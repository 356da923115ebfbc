// A model's tokenizer and chat format.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace kvblend {

/// The template uses the tokenizer, so it goes first.
struct ModelText {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
  std::string told_date;  // that prompts tell, as "2026-01-31"; empty: they tell none
};

/// `config` comes from the file; `chat_format` and `chat_date`: as EngineOptions has them. kInvalidArgument,
/// kDataLoss or kUnimplemented naming the file and what is wrong.
absl::StatusOr<ModelText> LoadModelText(const model::GgufFile& file, const model::ModelConfig& config,
                                        std::string_view chat_format, std::string_view chat_date);

/// The beginning of a day in UTC: of "today", or of one as "2026-01-31". kInvalidArgument for all else.
absl::StatusOr<absl::Time> ParseChatDate(std::string_view date);

}  // namespace kvblend
