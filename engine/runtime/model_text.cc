#include "engine/runtime/model_text.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend {
namespace {

text::TokenizerSpec ToTokenizerSpec(model::TokenizerData data) {
  text::TokenizerSpec spec;
  spec.pre_tokenizer = std::move(data.pre);
  spec.tokens = std::move(data.tokens);
  spec.token_types = std::move(data.token_types);
  spec.merges = std::move(data.merges);
  spec.bos = data.bos_id;
  spec.eos = data.eos_id;
  spec.add_bos = data.add_bos;
  if (data.eot_id) spec.end_of_generation.push_back(*data.eot_id);
  return spec;
}

}  // namespace

absl::StatusOr<ModelText> LoadModelText(const model::GgufFile& file, const model::ModelConfig& config) {
  ModelText text;
  KVBLEND_ASSIGN_OR_RETURN(model::TokenizerData data, model::ReadTokenizerData(file));
  KVBLEND_ASSIGN_OR_RETURN(text.tokenizer, text::Tokenizer::Create(ToTokenizerSpec(std::move(data))));
  if (text.tokenizer->vocab_size() != config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": the tokenizer has ",
                                                   text.tokenizer->vocab_size(), " tokens, the model ",
                                                   config.vocab_size));
  }
  KVBLEND_ASSIGN_OR_RETURN(text.chat_template,
                           text::ChatTemplate::Create(*text.tokenizer, config.chat_template));
  return text;
}

}  // namespace kvblend
