#include "engine/runtime/model_text.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace kvblend {
namespace {

constexpr char kDay[] = "%Y-%m-%d";

// Errors of the text room name keys, not files.
template <typename T>
absl::StatusOr<T> NamingTheFile(const model::GgufFile& file, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(), absl::StrCat(file.name(), ": ", result.status().message()));
}

}  // namespace

absl::StatusOr<ModelText> LoadModelText(const model::GgufFile& file, const model::ModelConfig& config,
                                        std::string_view chat_format, std::string_view chat_date) {
  ModelText text;
  KVBLEND_ASSIGN_OR_RETURN(const absl::Time day, ParseChatDate(chat_date));
  KVBLEND_ASSIGN_OR_RETURN(const text::TokenizerSpec spec, model::ReadTokenizerSpec(file));
  KVBLEND_ASSIGN_OR_RETURN(text.tokenizer, NamingTheFile(file, text::Tokenizer::Create(spec)));
  // Models are published with more rows than their tokenizer.json has tokens; GGUF files name the rest.
  const bool may_have_fewer = !file.HasKey("tokenizer.ggml.model");
  const int32_t tokens = text.tokenizer->vocab_size();
  if (tokens > config.vocab_size || (tokens < config.vocab_size && !may_have_fewer)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": the tokenizer has ", tokens, " tokens, the model ", config.vocab_size));
  }
  const std::string format(chat_format);
  KVBLEND_ASSIGN_OR_RETURN(
      text.chat_template,
      NamingTheFile(file,
                    text::ChatTemplate::Create(
                        *text.tokenizer,
                        {.source = config.chat_template, .format = format, .eos = spec.eos, .now = day})));
  if (text.chat_template->tells_date()) text.told_date = absl::FormatTime(kDay, day, absl::UTCTimeZone());
  return text;
}

absl::StatusOr<absl::Time> ParseChatDate(std::string_view date) {
  std::string text(date);
  if (text == "today") text = absl::FormatTime(kDay, absl::Now(), absl::UTCTimeZone());
  absl::Time day;
  std::string unused;
  if (absl::ParseTime(kDay, text, &day, &unused) &&
      absl::FormatTime(kDay, day, absl::UTCTimeZone()) == text) {
    return day;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("chat-date is '", text, "'; allowed: today, or a day as 2026-01-31"));
}

}  // namespace kvblend
