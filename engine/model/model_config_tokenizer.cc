// ReadTokenizerData: the tokenizer.ggml.* part of a model file.
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "engine/model/gguf_text.h"
#include "engine/model/model_config.h"
#include "engine/text/utf8.h"

namespace kvblend::model {
namespace {

absl::Status Refuse(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(Concat(file.name(), ": ", what));
}

absl::Status ReadTokens(const GgufFile& file, TokenizerData& data) {
  KVBLEND_ASSIGN_OR_RETURN(const auto tokens, file.GetStringArray("tokenizer.ggml.tokens"));
  if (tokens.empty()) return Refuse(file, "key 'tokenizer.ggml.tokens' is empty; allowed: 1 token or more");
  absl::flat_hash_set<std::string_view> seen;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (token.empty() || text::FirstInvalidUtf8(token)) {
      return Refuse(file, Concat("token ", id, " of key 'tokenizer.ggml.tokens' is ",
                                 token.empty() ? "empty" : "not valid UTF-8"));
    }
    if (!seen.insert(token).second) {
      return Refuse(file, Concat("token ", id, " of key 'tokenizer.ggml.tokens' appears twice"));
    }
    data.tokens.emplace_back(token);
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& file, TokenizerData& data) {
  KVBLEND_ASSIGN_OR_RETURN(const auto merges, file.GetStringArray("tokenizer.ggml.merges"));
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    const bool two_parts = space != std::string_view::npos && space > 0 && space + 1 < merge.size() &&
                           merge.find(' ', space + 1) == std::string_view::npos;
    if (!two_parts || text::FirstInvalidUtf8(merge)) {
      return Refuse(file, Concat("merge ", rank,
                                 " of key 'tokenizer.ggml.merges' is malformed; allowed: two parts in UTF-8 "
                                 "with one space between them"));
    }
    data.merges.emplace_back(merge);
  }
  return absl::OkStatus();
}

absl::Status ReadTokenTypes(const GgufFile& file, TokenizerData& data) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  if (!file.HasKey(kKey)) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(auto types, file.GetInt32Array(kKey));
  if (types.size() != data.tokens.size()) {
    return Refuse(file, Concat("key '", kKey, "' has ", types.size(), " elements; allowed: one per token, ",
                               data.tokens.size()));
  }
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] < 1 || types[id] > 6) {
      return Refuse(file, Concat("key '", kKey, "' is ", types[id], " for token ", id, "; allowed: 1 to 6"));
    }
  }
  data.token_types = std::move(types);
  return absl::OkStatus();
}

absl::Status ReadId(const GgufFile& file, std::string_view key, size_t num_tokens,
                    std::optional<int32_t>& id) {
  if (!file.HasKey(key)) return absl::OkStatus();
  const auto value = file.GetInteger(key, 0, static_cast<int64_t>(num_tokens) - 1);
  if (value.ok()) id = static_cast<int32_t>(*value);
  return value.status();
}

}  // namespace

absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufFile& file) {
  TokenizerData data;
  KVBLEND_ASSIGN_OR_RETURN(const auto model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return absl::UnimplementedError(Concat(file.name(), ": key 'tokenizer.ggml.model' is '", model,
                                           "'; implemented: 'gpt2' (byte-level BPE)"));
  }
  data.pre = "default";
  if (file.HasKey("tokenizer.ggml.pre")) {
    KVBLEND_ASSIGN_OR_RETURN(data.pre, file.GetString("tokenizer.ggml.pre"));
  }
  KVBLEND_RETURN_IF_ERROR(ReadTokens(file, data));
  KVBLEND_RETURN_IF_ERROR(ReadMerges(file, data));
  KVBLEND_RETURN_IF_ERROR(ReadTokenTypes(file, data));
  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &data.bos_id},
      {"tokenizer.ggml.eos_token_id", &data.eos_id},
      {"tokenizer.ggml.eot_token_id", &data.eot_id},
  };
  for (const auto& [key, id] : ids) {
    KVBLEND_RETURN_IF_ERROR(ReadId(file, key, data.tokens.size(), *id));
  }
  if (file.HasKey("tokenizer.ggml.add_bos_token")) {
    KVBLEND_ASSIGN_OR_RETURN(data.add_bos, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  return data;
}

}  // namespace kvblend::model
