#include "engine/text/hugging_face/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/byte_level.h"
#include "engine/text/hugging_face/json.h"
#include "engine/text/hugging_face/pipeline.h"
#include "engine/text/plain_form.h"

namespace kvblend::text {
namespace {

constexpr int32_t kNoType = 0;  // of an id that has no token yet
// How much less probable than any piece an unknown character is, in SentencePiece and in Hugging Face
// tokenizers.
constexpr double kUnknownPenalty = 10;

// Puts `token` at `id`; false when another is there.
bool Place(int32_t id, const std::string& token, int32_t type, TokenizerSpec* spec) {
  if (spec->token_types[id] != kNoType && spec->tokens[id] != token) return false;
  spec->tokens[id] = token;
  spec->token_types[id] = type;
  return true;
}

// A unigram model's pieces: each with its log-probability, the one with id 0 first. `spec` has room for them.
absl::Status ReadPieces(const JsonValue& vocabulary, TokenizerSpec* spec) {
  absl::flat_hash_set<std::string_view> seen;
  double lowest = 0;
  for (size_t id = 0; id < vocabulary.json().size(); ++id) {
    const JsonValue piece = vocabulary.Element(id);
    KVBLEND_ASSIGN_OR_RETURN(const size_t size, piece.ArraySize());
    if (size != 2 || !piece.Element(1).json().is_number()) return piece.Invalid("is no text with a number");
    KVBLEND_ASSIGN_OR_RETURN(spec->tokens[id], piece.Element(0).String());
    if (!seen.insert(spec->tokens[id]).second) return piece.Invalid("is there twice");
    spec->token_types[id] = kGgufNormal;
    spec->unigram_scores.push_back(piece.Element(1).json().get<double>());
    lowest = id == 0 ? spec->unigram_scores[id] : std::min(lowest, spec->unigram_scores[id]);
  }
  spec->unigram_unknown_score = lowest - kUnknownPenalty;
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const JsonValue& document, TokenizerSpec* spec) {
  const JsonValue vocabulary = document["model"]["vocab"];
  const bool is_unigram = spec->model == TokenizerModel::kUnigram;
  if (is_unigram != vocabulary.json().is_array() || is_unigram == vocabulary.json().is_object()) {
    return vocabulary.Invalid(is_unigram ? "is no array" : "is no object");
  }
  const JsonValue added = document["added_tokens"];
  KVBLEND_ASSIGN_OR_RETURN(const size_t num_added, added.ArraySize());
  // Ids have no gaps, so there are no more than this, whatever numbers the file says.
  const size_t most = vocabulary.json().size() + num_added;
  spec->tokens.resize(most);
  spec->token_types.assign(most, kNoType);
  size_t count = 0;
  const auto place = [&](const JsonValue& where, const std::string& token, int32_t id,
                         int32_t type) -> absl::Status {
    if (static_cast<size_t>(id) >= most) {
      return where.Unimplemented(absl::StrCat("has the id ", id, ", but there are only ", most,
                                              " tokens; ids without gaps are implemented"));
    }
    if (!Place(id, token, type, spec)) {
      return where.Invalid(absl::StrCat("has two tokens with the id ", id));
    }
    count = std::max(count, static_cast<size_t>(id) + 1);
    return absl::OkStatus();
  };
  if (is_unigram) {
    KVBLEND_RETURN_IF_ERROR(ReadPieces(vocabulary, spec));
    count = vocabulary.json().size();
  } else {
    for (const auto& [token, unused] : vocabulary.json().items()) {
      KVBLEND_ASSIGN_OR_RETURN(const int32_t id, vocabulary[token].Id());
      KVBLEND_RETURN_IF_ERROR(place(vocabulary, token, id, kGgufNormal));
    }
  }
  const bool is_normalized = !document["normalizer"].is_null();
  for (size_t i = 0; i < num_added; ++i) {
    const JsonValue token = added.Element(i);
    KVBLEND_ASSIGN_OR_RETURN(const std::string content, token["content"].String());
    KVBLEND_ASSIGN_OR_RETURN(const bool special, token["special"].Bool(false));
    KVBLEND_ASSIGN_OR_RETURN(const bool normalized, token["normalized"].Bool(!special));
    if (content.empty()) return token.Invalid("is empty");
    KVBLEND_ASSIGN_OR_RETURN(const int32_t id, token["id"].Id());
    // Special tokens are not looked for in text, so single_word does not matter for them; what they strip
    // from their neighbours in a prompt does.
    KVBLEND_ASSIGN_OR_RETURN(const bool single_word, token["single_word"].Bool(false));
    if (single_word && !special) return token.Unimplemented("has 'single_word', and is not special");
    KVBLEND_ASSIGN_OR_RETURN(const bool strips_before, token["lstrip"].Bool(false));
    if (strips_before) spec->strips_before.push_back(id);
    KVBLEND_ASSIGN_OR_RETURN(const bool strips_behind, token["rstrip"].Bool(false));
    if (strips_behind) spec->strips_behind.push_back(id);
    if (normalized && !special && is_normalized) {
      return token.Unimplemented("is looked for in normalized text, and is not special");
    }
    KVBLEND_RETURN_IF_ERROR(place(token, content, id, special ? kGgufControl : kGgufUserDefined));
  }
  spec->tokens.resize(count);
  spec->token_types.resize(count);
  if (is_unigram) spec->unigram_scores.resize(count);  // added tokens have no score, and need none
  const auto gap = std::ranges::find(spec->token_types, kNoType);
  if (gap != spec->token_types.end()) {
    return vocabulary.Unimplemented(absl::StrCat("has no token with the id ", gap - spec->token_types.begin(),
                                                 "; ids without gaps are implemented"));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const JsonValue& model, TokenizerSpec* spec) {
  const JsonValue merges = model["merges"];
  KVBLEND_ASSIGN_OR_RETURN(const size_t count, merges.ArraySize());
  if (count == 0 && spec->model == TokenizerModel::kSentencePieceBpe) return merges.Invalid("is empty");
  spec->merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonValue merge = merges.Element(i);
    if (merge.is_string()) {
      KVBLEND_ASSIGN_OR_RETURN(std::string pair, merge.String());
      spec->merges.push_back(std::move(pair));
      continue;
    }
    KVBLEND_ASSIGN_OR_RETURN(const size_t size, merge.ArraySize());
    if (size != 2) return merge.Invalid("is no pair");
    KVBLEND_ASSIGN_OR_RETURN(const std::string left, merge.Element(0).String());
    KVBLEND_ASSIGN_OR_RETURN(const std::string right, merge.Element(1).String());
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
      return merge.Unimplemented("has a part with a space");
    }
    spec->merges.push_back(absl::StrCat(left, " ", right));
  }
  return absl::OkStatus();
}

// Reads the id of a unigram model's unknown token. Unknown neighbours become one token.
absl::Status ReadUnknownId(const JsonValue& model, int num_bytes, TokenizerSpec* spec) {
  if (num_bytes != 0 && num_bytes != 256) {
    return model["byte_fallback"].Unimplemented("is true, and some bytes are no tokens");
  }
  if (model["unk_id"].is_null()) return model["unk_id"].Unimplemented("is null; implemented: a token's id");
  KVBLEND_ASSIGN_OR_RETURN(const int32_t unknown, model["unk_id"].Id());
  if (static_cast<size_t>(unknown) >= spec->tokens.size()) {
    return model["unk_id"].Invalid("is not in the vocabulary");
  }
  spec->unknown = unknown;
  spec->token_types[unknown] = kGgufUnknown;
  return absl::OkStatus();
}

// Reads the unknown token, and whether tokens stand for bytes.
absl::Status ReadFallbacks(const JsonValue& model, TokenizerSpec* spec) {
  KVBLEND_ASSIGN_OR_RETURN(const bool byte_fallback, model["byte_fallback"].Bool(false));
  const bool of_bytes = spec->model == TokenizerModel::kByteLevelBpe;
  int num_bytes = 0;
  for (size_t id = 0; id < spec->tokens.size(); ++id) {
    if (spec->token_types[id] != kGgufNormal) continue;
    if (of_bytes) {
      const auto bytes = BytesOfTokenString(spec->tokens[id]);
      num_bytes += bytes && bytes->size() == 1;
    } else if (byte_fallback && ByteOfName(spec->tokens[id]) >= 0) {
      spec->token_types[id] = kGgufByte;
      ++num_bytes;
    }
  }
  if (spec->model == TokenizerModel::kUnigram) return ReadUnknownId(model, num_bytes, spec);
  if (model["unk_token"].is_null()) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(const std::string unknown, model["unk_token"].String());
  if (of_bytes) {
    if (num_bytes == 256) return absl::OkStatus();  // nothing is unknown
    return model["unk_token"].Unimplemented("stands for bytes that are no tokens");
  }
  const auto found = std::ranges::find(spec->tokens, unknown);
  if (found == spec->tokens.end()) return model["unk_token"].Invalid("is not in the vocabulary");
  KVBLEND_ASSIGN_OR_RETURN(const bool fuse, model["fuse_unk"].Bool(false));
  if (!fuse && num_bytes < 256)
    return model["fuse_unk"].Unimplemented("is false, and some bytes are no tokens");
  spec->unknown = static_cast<TokenId>(found - spec->tokens.begin());
  spec->token_types[*spec->unknown] = kGgufUnknown;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadTokenizerJson(std::string_view bytes, std::string_view name) {
  KVBLEND_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(bytes, name));
  const JsonValue document(name, json);
  const JsonValue model = document["model"];
  if (!model.json().is_object()) return model.Invalid("is no object");
  TokenizerSpec spec;
  // Files from before the models were told apart by name have BPE.
  if (!model["type"].is_null()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string type, model.Type());
    if (type != "BPE" && type != "Unigram") {
      return model.Unimplemented(absl::StrCat("is of type ", type, "; implemented: BPE, Unigram"));
    }
    if (type == "Unigram") spec.model = TokenizerModel::kUnigram;
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    // NOLINTNEXTLINE(readability-container-size-empty): an empty list is no empty text
    if (model[affix].is_null() || model[affix].json() == "") continue;
    return model[affix].Unimplemented("is set; implemented: none");
  }
  if (!model["dropout"].is_null() && model["dropout"].json() != 0.0) {
    return model["dropout"].Unimplemented("is set; implemented: none");
  }
  KVBLEND_RETURN_IF_ERROR(ReadPipeline(document, &spec));
  KVBLEND_RETURN_IF_ERROR(ReadVocabulary(document, &spec));
  if (spec.model != TokenizerModel::kUnigram) KVBLEND_RETURN_IF_ERROR(ReadMerges(model, &spec));
  KVBLEND_RETURN_IF_ERROR(ReadFallbacks(model, &spec));
  KVBLEND_ASSIGN_OR_RETURN(spec.ignore_merges, model["ignore_merges"].Bool(false));
  if (*spec.ignore_merges && spec.model != TokenizerModel::kByteLevelBpe) {
    return model["ignore_merges"].Unimplemented("is true for a model of characters");
  }
  KVBLEND_RETURN_IF_ERROR(ReadPostProcessor(document, &spec));
  return spec;
}

}  // namespace kvblend::text
