#include "engine/runtime/model_text.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace kvblend {
namespace {

// The text room knows keys, not files.
template <typename T>
absl::StatusOr<T> NamingTheFile(const model::GgufFile& file, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(), absl::StrCat(file.name(), ": ", result.status().message()));
}

}  // namespace

absl::StatusOr<ModelText> LoadModelText(const model::GgufFile& file, const model::ModelConfig& config,
                                        std::string_view chat_format) {
  ModelText text;
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
      NamingTheFile(file, text::ChatTemplate::Create(*text.tokenizer, {.source = config.chat_template,
                                                                       .format = format,
                                                                       .eos = spec.eos,
                                                                       .now = absl::Now(),
                                                                       .time_zone = absl::LocalTimeZone()})));
  return text;
}

}  // namespace kvblend
