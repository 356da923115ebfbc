// ReadTokenizerSpec: the tokenizer.ggml.* part of a model file.
#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/model_config.h"
#include "engine/text/hugging_face/tokenizer_json.h"
#include "engine/text/utf8.h"

namespace kvblend::model {
namespace {

absl::Status Refuse(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(Concat(file.name(), ": ", what));
}

absl::Status ReadTokens(const GgufFile& file, text::TokenizerSpec& spec) {
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
    spec.tokens.emplace_back(token);
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& file, text::TokenizerSpec& spec) {
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
    spec.merges.emplace_back(merge);
  }
  return absl::OkStatus();
}

absl::Status ReadTokenTypes(const GgufFile& file, text::TokenizerSpec& spec) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  if (!file.HasKey(kKey)) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(auto types, file.GetInt32Array(kKey));
  if (types.size() != spec.tokens.size()) {
    return Refuse(file, Concat("key '", kKey, "' has ", types.size(), " elements; allowed: one per token, ",
                               spec.tokens.size()));
  }
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] < 1 || types[id] > 6) {
      return Refuse(file, Concat("key '", kKey, "' is ", types[id], " for token ", id, "; allowed: 1 to 6"));
    }
  }
  spec.token_types = std::move(types);
  return absl::OkStatus();
}

// Reads the ids of tokens that begin and end prompts, and of the unknown token.
absl::Status ReadIds(const GgufFile& file, text::TokenizerSpec& spec) {
  std::optional<int32_t> turn_end;
  std::optional<int32_t> message_end;
  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &spec.bos},         {"tokenizer.ggml.eos_token_id", &spec.eos},
      {"tokenizer.ggml.unknown_token_id", &spec.unknown}, {"tokenizer.ggml.eot_token_id", &turn_end},
      {"tokenizer.ggml.eom_token_id", &message_end},
  };
  for (const auto& [key, id] : ids) {
    if (!file.HasKey(key)) continue;
    KVBLEND_ASSIGN_OR_RETURN(const int64_t value,
                             file.GetInteger(key, 0, static_cast<int64_t>(spec.tokens.size()) - 1));
    *id = static_cast<int32_t>(value);
  }
  for (const std::optional<int32_t>& id : {turn_end, message_end}) {
    if (id) spec.end_of_generation.push_back(*id);
  }
  constexpr std::string_view kMore = "tokenizer.ggml.eog_token_ids";  // written for folders that list more
  if (file.HasKey(kMore)) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> more, file.GetInt32Array(kMore));
    spec.end_of_generation.insert(spec.end_of_generation.end(), more.begin(), more.end());
  }
  return absl::OkStatus();
}

// Of a Hugging Face folder, BOS and EOS of prompts: what tokenizer_config.json names comes before what the
// tokenizer puts in front (`first`), and that before the numbers of config.json, which ReadIds has read.
// Other tokens that end an answer go on doing so.
absl::Status ReadNamedIds(const GgufFile& file, std::optional<int32_t> first, text::TokenizerSpec& spec) {
  const auto named = [&](std::string_view key) -> absl::StatusOr<std::optional<int32_t>> {
    KVBLEND_ASSIGN_OR_RETURN(const std::string_view name, file.GetString(key));
    const auto found = std::find(spec.tokens.begin(), spec.tokens.end(), name);
    if (name.empty() || found == spec.tokens.end()) return std::nullopt;
    return static_cast<int32_t>(found - spec.tokens.begin());
  };
  if (first.has_value()) spec.bos = first;
  if (constexpr std::string_view kBos = "tokenizer.huggingface.bos_token"; file.HasKey(kBos)) {
    KVBLEND_ASSIGN_OR_RETURN(const std::optional<int32_t> bos, named(kBos));
    spec.bos = bos.has_value() ? bos : first;
  }
  if (constexpr std::string_view kEos = "tokenizer.huggingface.eos_token"; file.HasKey(kEos)) {
    if (spec.eos.has_value()) spec.end_of_generation.push_back(*spec.eos);
    KVBLEND_ASSIGN_OR_RETURN(spec.eos, named(kEos));
  }
  return absl::OkStatus();
}

absl::Status ReadBool(const GgufFile& file, std::string_view key, bool& value) {
  if (!file.HasKey(key)) return absl::OkStatus();
  const absl::StatusOr<bool> read = file.GetBool(key);
  if (read.ok()) value = *read;
  return read.status();
}

absl::Status ReadByteLevel(const GgufFile& file, text::TokenizerSpec& spec) {
  spec.pre_tokenizer = "default";
  if (file.HasKey("tokenizer.ggml.pre")) {
    KVBLEND_ASSIGN_OR_RETURN(spec.pre_tokenizer, file.GetString("tokenizer.ggml.pre"));
  }
  // Unknown names are refused by Tokenizer::Create.
  if (const auto known = text::FindPreTokenizer(spec.pre_tokenizer); known.ok())
    spec.add_bos = known->add_bos;
  return ReadMerges(file, spec);
}

// Files that leave a key out mean what SentencePiece's models had when the format was made: Llama's first.
absl::Status ReadSentencePiece(const GgufFile& file, text::TokenizerSpec& spec) {
  spec.model = text::TokenizerModel::kSentencePieceBpe;
  KVBLEND_ASSIGN_OR_RETURN(spec.scores, file.GetFloatArray("tokenizer.ggml.scores"));
  if (spec.scores.size() != spec.tokens.size()) {
    return Refuse(file, Concat("key 'tokenizer.ggml.scores' has ", spec.scores.size(),
                               " elements; allowed: one per token, ", spec.tokens.size()));
  }
  spec.add_space_prefix = true;
  const auto num_tokens = static_cast<int32_t>(spec.tokens.size());
  if (num_tokens > 2) {
    spec.unknown = 0;
    spec.bos = 1;
    spec.eos = 2;
    spec.add_bos = true;
  }
  KVBLEND_RETURN_IF_ERROR(ReadBool(file, "tokenizer.ggml.add_space_prefix", spec.add_space_prefix));
  return ReadBool(file, "tokenizer.ggml.remove_extra_whitespaces", spec.remove_extra_whitespaces);
}

// Turns what ReadSentencePiece has read into a unigram model. SentencePiece scores unknown text as the least
// probable of the normal pieces, less a penalty.
absl::Status MakeUnigram(const GgufFile& file, text::TokenizerSpec& spec) {
  constexpr float kUnknownPenalty = 10;
  constexpr std::string_view kMapKey = "tokenizer.ggml.precompiled_charsmap";
  if (const GgufEntry* map = file.FindEntry(kMapKey); map != nullptr) {
    const auto* array = std::get_if<GgufArray>(&map->value);
    if (array == nullptr || array->count != 0) {
      return absl::UnimplementedError(
          Concat(file.name(), ": key '", kMapKey, "' normalizes text; implemented: an empty array"));
    }
  }
  spec.model = text::TokenizerModel::kUnigram;
  spec.unigram_precision = text::UnigramModel::Precision::kSingle;
  spec.unigram_scores.assign(spec.scores.begin(), spec.scores.end());
  spec.scores.clear();
  float lowest = std::numeric_limits<float>::max();
  int num_bytes = 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const int32_t type = spec.token_types.empty() ? text::kGgufNormal : spec.token_types[id];
    if (type == text::kGgufNormal) lowest = std::min(lowest, static_cast<float>(spec.unigram_scores[id]));
    if (type == text::kGgufByte) ++num_bytes;
  }
  if (num_bytes != 0 && num_bytes != 256) {
    return Refuse(file, Concat("key 'tokenizer.ggml.token_type' says that ", num_bytes,
                               " tokens are bytes; allowed: none, or all 256"));
  }
  spec.unigram_unknown_score = lowest - kUnknownPenalty;
  return absl::OkStatus();
}

// Tokenizers may have tokens that were added behind the embedding's last row, as Gemma 3's have for images,
// which its text models do not see. The model cannot be given them; their texts are text. Other tokens
// without a row stay, and the model is refused.
void DropTokensWithoutRows(const GgufFile& file, text::TokenizerSpec& spec) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->rows() >= static_cast<int64_t>(spec.tokens.size())) return;
  const auto rows = static_cast<size_t>(embedding->rows());
  const auto is_added = [](int32_t type) {
    return type == text::kGgufControl || type == text::kGgufUserDefined;
  };
  if (!std::all_of(spec.token_types.begin() + static_cast<int64_t>(rows), spec.token_types.end(), is_added)) {
    return;
  }
  const auto has_no_row = [&](text::TokenId id) { return std::cmp_greater_equal(id, rows); };
  if (spec.bos.has_value() && has_no_row(*spec.bos)) return;
  spec.tokens.resize(rows);
  spec.token_types.resize(rows);
  if (!spec.unigram_scores.empty()) spec.unigram_scores.resize(rows);
  std::erase_if(spec.strips_before, has_no_row);
  std::erase_if(spec.strips_behind, has_no_row);
}

}  // namespace

absl::StatusOr<text::TokenizerSpec> ReadTokenizerSpec(const GgufFile& file) {
  text::TokenizerSpec spec;
  constexpr std::string_view kModelKey = "tokenizer.ggml.model", kJsonKey = "tokenizer.huggingface.json";
  if (!file.HasKey(kModelKey) && file.HasKey(kJsonKey)) {
    KVBLEND_ASSIGN_OR_RETURN(const auto json, file.GetString(kJsonKey));
    KVBLEND_ASSIGN_OR_RETURN(spec, text::ReadTokenizerJson(json, Concat(file.name(), ": tokenizer.json")));
    DropTokensWithoutRows(file, spec);
    const std::optional<int32_t> first = spec.bos;  // what the tokenizer itself puts in front
    KVBLEND_RETURN_IF_ERROR(ReadIds(file, spec));
    KVBLEND_RETURN_IF_ERROR(ReadNamedIds(file, first, spec));
    KVBLEND_RETURN_IF_ERROR(ReadBool(file, "tokenizer.ggml.add_bos_token", spec.add_bos));
    return spec;
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto model, file.GetString(kModelKey));
  if (model != "gpt2" && model != "llama" && model != "t5") {
    return absl::UnimplementedError(
        Concat(file.name(), ": key 'tokenizer.ggml.model' is ", Quote(model),
               "; implemented: 'gpt2' (byte-level BPE), 'llama' (SentencePiece's BPE), 't5' (unigram)"));
  }
  KVBLEND_RETURN_IF_ERROR(ReadTokens(file, spec));
  KVBLEND_RETURN_IF_ERROR(ReadTokenTypes(file, spec));
  if (model == "gpt2") {
    KVBLEND_RETURN_IF_ERROR(ReadByteLevel(file, spec));
  } else {
    KVBLEND_RETURN_IF_ERROR(ReadSentencePiece(file, spec));
    if (model == "t5") KVBLEND_RETURN_IF_ERROR(MakeUnigram(file, spec));
  }
  KVBLEND_RETURN_IF_ERROR(ReadIds(file, spec));
  KVBLEND_RETURN_IF_ERROR(ReadBool(file, "tokenizer.ggml.add_bos_token", spec.add_bos));
  return spec;
}

}  // namespace kvblend::model
