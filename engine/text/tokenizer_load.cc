// How a Tokenizer is built from what a model file says; the file may be wrong in every way.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/byte_level.h"
#include "engine/text/plain_form.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// Control tokens that end a turn or a text in the model families that are implemented.
constexpr std::string_view kEndMarkers[] = {
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<|return|>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
};
// These end turns or texts too, but mean something else in other vocabularies: Gemma's </s> ends HTML's <s>.
constexpr std::string_view kShortEndMarkers[] = {"</s>", "<EOT>"};
// Control tokens that begin a turn. Some files call them, or those of kEndMarkers, user-defined, which would
// let text become control.
constexpr std::string_view kBeginMarkers[] = {
    "<start_of_turn>",     "<|START_OF_TURN_TOKEN|>", "<|header_start|>", "<|im_start|>",
    "<|start_header_id|>", "<|start_of_role|>",       "<|start|>",
};

bool IsMarker(std::string_view token) {
  return std::ranges::find(kEndMarkers, token) != std::end(kEndMarkers) ||
         std::ranges::find(kBeginMarkers, token) != std::end(kBeginMarkers);
}

std::string Quote(std::string_view text) {
  constexpr size_t kShown = 60;
  return absl::StrCat("'", absl::CHexEscape(std::string(text.substr(0, kShown))),
                      text.size() > kShown ? "'..." : "'");
}

absl::Status CheckId(const char* key, TokenId id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", id, "; allowed: 0 to ", vocab_size - 1, " (the vocabulary)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSpec& spec) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->model_ = spec.model;
  tokenizer->normalization_ = spec.normalization;
  if (tokenizer->is_byte_level()) {
    KVBLEND_ASSIGN_OR_RETURN(const PreTokenizerName pre_tokenizer, FindPreTokenizer(spec.pre_tokenizer));
    tokenizer->pre_tokenizer_ = pre_tokenizer.pattern;
    tokenizer->ignore_merges_ = spec.ignore_merges.value_or(pre_tokenizer.ignore_merges);
  } else {
    tokenizer->by_rank_ = !spec.merges.empty();
    tokenizer->ignore_merges_ = spec.ignore_merges.value_or(false);
    tokenizer->space_prefix_ = {.wanted = spec.add_space_prefix,
                                .every_piece = spec.space_prefix_every_piece,
                                .unless_space = spec.space_prefix_unless_space,
                                .first_only = spec.space_prefix_first_only};
    tokenizer->splits_at_spaces_ = spec.splits_at_spaces;
    tokenizer->remove_extra_whitespaces_ = spec.remove_extra_whitespaces;
    tokenizer->user_defined_first_ = spec.user_defined_first || spec.normalization != Normalization::kNone;
  }
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadTypes(spec));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadTokens(spec));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadMerges(spec));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadMarkers(spec));
  tokenizer->has_byte_tokens_ = tokenizer->HasByteTokens();
  return tokenizer;
}

absl::Status Tokenizer::LoadTypes(const TokenizerSpec& spec) {
  const size_t count = spec.tokens.size();
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens has ", count,
                                                   " entries; allowed: 1 to ",
                                                   std::numeric_limits<TokenId>::max()));
  }
  if (!spec.token_types.empty() && spec.token_types.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type has ", spec.token_types.size(),
                                                   " entries; tokenizer.ggml.tokens has ", count));
  }
  types_ = spec.token_types.empty() ? std::vector<int32_t>(count, kGgufNormal) : spec.token_types;
  for (size_t i = 0; i < count; ++i) {
    if (types_[i] < kGgufNormal || types_[i] > kGgufByte) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.token_type[", i, "] is ", types_[i], "; allowed: 1 to 6"));
    }
    if (types_[i] != kGgufUnknown && IsMarker(spec.tokens[i])) types_[i] = kGgufControl;
  }
  if (spec.unknown) {
    KVBLEND_RETURN_IF_ERROR(CheckId("tokenizer.ggml.unknown_token_id", *spec.unknown, vocab_size()));
  }
  return CheckScores(spec);
}

absl::Status Tokenizer::CheckScores(const TokenizerSpec& spec) const {
  const size_t count = spec.tokens.size();
  const auto not_finite = [](size_t index, double score) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.scores[", index, "] is ", score, "; allowed: finite numbers"));
  };
  if (is_unigram()) {
    if (spec.unigram_scores.size() != count) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores has ", spec.unigram_scores.size(),
                                                     " entries; tokenizer.ggml.tokens has ", count));
    }
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(spec.unigram_scores[i])) return not_finite(i, spec.unigram_scores[i]);
    }
    return absl::OkStatus();
  }
  if (is_byte_level() || by_rank_) return absl::OkStatus();
  if (spec.scores.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores has ", spec.scores.size(),
                                                   " entries; tokenizer.ggml.tokens has ", count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(spec.scores[i])) return not_finite(i, spec.scores[i]);
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::LoadTokens(const TokenizerSpec& spec) {
  // First all bytes, so that views of them stay valid from here on.
  const size_t count = spec.tokens.size();
  std::vector<bool> is_text(count, false);
  offsets_.reserve(count + 1);
  offsets_.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    const std::string& token = spec.tokens[i];
    std::optional<std::string> bytes;
    if (is_byte_level()) {
      if (types_[i] == kGgufNormal || types_[i] == kGgufByte) bytes = BytesOfTokenString(token);
      is_text[i] = bytes.has_value() && !bytes->empty();
    } else if (types_[i] == kGgufByte) {
      const int byte = ByteOfName(token);
      if (byte < 0) {
        return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens[", i, "] is ", Quote(token),
                                                       " and of type byte; allowed: <0x00> to <0xFF>"));
      }
      bytes = std::string(1, static_cast<char>(byte));
    } else if (types_[i] != kGgufControl && types_[i] != kGgufUnknown) {
      bytes = WithPlainSpaces(token);
      is_text[i] = !bytes->empty();
    }
    bytes_.append(bytes.has_value() ? *bytes : token);
    offsets_.push_back(bytes_.size());
  }
  return LoadPieces(spec, is_text);
}

absl::Status Tokenizer::LoadPieces(const TokenizerSpec& spec, const std::vector<bool>& is_text) {
  const auto twice = [](size_t index, std::string_view bytes, TokenId first) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens[", index, "] is ", Quote(bytes),
                                                   ", as is tokens[", first, "]; every token must differ"));
  };
  for (size_t i = 0; i < is_text.size(); ++i) {
    const TokenId token = static_cast<TokenId>(i);
    const std::string_view bytes = TokenBytes(token);
    if (is_text[i]) {
      const float score = is_byte_level() || is_unigram() || by_rank_ ? 0 : spec.scores[i];
      const bool is_new = pieces_.Add(bytes, {token, score, types_[i] == kGgufUnused});
      if (!is_new && is_byte_level()) return twice(i, bytes, pieces_.Find(bytes)->token);
      if (is_byte_level() && bytes.size() == 1) merges_.SetByteToken(static_cast<uint8_t>(bytes[0]), token);
    }
    if (!is_byte_level() && types_[i] == kGgufByte) {
      pieces_.SetByteToken(static_cast<uint8_t>(bytes[0]), token);
    }
    if (types_[i] == kGgufUnknown && !is_byte_level() && !spec.unknown) pieces_.SetUnknown(token);
    if (types_[i] != kGgufControl && types_[i] != kGgufUserDefined) continue;
    const auto [entry, is_new] = specials_.try_emplace(bytes, token);
    if (!is_new) return twice(i, bytes, entry->second);
    if (types_[i] == kGgufUserDefined && !bytes.empty()) {
      user_defined_.Add({std::string(user_defined_first_ ? std::string_view(spec.tokens[i]) : bytes), token});
    }
  }
  if (spec.unknown && !is_byte_level()) pieces_.SetUnknown(*spec.unknown);
  if (is_unigram()) LoadUnigram(spec, is_text);
  user_defined_.Finish();
  return absl::OkStatus();
}

void Tokenizer::LoadUnigram(const TokenizerSpec& spec, const std::vector<bool>& is_text) {
  for (size_t i = 0; i < is_text.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    if (!is_text[i] || types_[i] == kGgufUnused) continue;
    // Two tokens may differ in U+2581 and a space alone: the first is the piece.
    if (pieces_.Find(TokenBytes(token))->token != token) continue;
    unigram_.Add(TokenBytes(token), token, spec.unigram_scores[i]);
  }
  unigram_.Finish(spec.unigram_unknown_score, spec.unigram_precision);
}

absl::Status Tokenizer::LoadMerges(const TokenizerSpec& spec) {
  if (spec.merges.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges has ", spec.merges.size(),
                                                   " entries; allowed: up to ",
                                                   std::numeric_limits<int32_t>::max()));
  }
  merges_.Reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const auto refuse = [&](const char* why) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.merges[", rank, "] is ", Quote(merge), "; ", why));
    };
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return refuse("a merge is two tokens with one space between them");
    }
    const auto bytes_of = [this](std::string_view part) -> std::optional<std::string> {
      if (is_byte_level()) return BytesOfTokenString(part);
      return WithPlainSpaces(part);
    };
    const auto left = bytes_of(merge.substr(0, space));
    const auto right = bytes_of(merge.substr(space + 1));
    if (!left || !right) return refuse("one of its characters stands for no byte");
    const Pieces::Piece* left_piece = pieces_.Find(*left);
    const Pieces::Piece* right_piece = pieces_.Find(*right);
    const Pieces::Piece* result = pieces_.Find(absl::StrCat(*left, *right));
    if (left_piece == nullptr || right_piece == nullptr || result == nullptr) {
      return refuse("both parts and the result must be tokens of the vocabulary, and not control tokens");
    }
    merges_.AddRule({.left = left_piece->token, .right = right_piece->token, .result = result->token});
  }
  return absl::OkStatus();
}

bool Tokenizer::HasByteTokens() const {
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 0xC0 || byte == 0xC1 || byte >= 0xF5) continue;  // in no valid UTF-8
    if (pieces_.ByteToken(static_cast<uint8_t>(byte)) == kNoToken) return false;
  }
  return true;
}

absl::Status Tokenizer::LoadMarkers(const TokenizerSpec& spec) {
  if (spec.bos) KVBLEND_RETURN_IF_ERROR(CheckId("tokenizer.ggml.bos_token_id", *spec.bos, vocab_size()));
  if (spec.eos) {
    KVBLEND_RETURN_IF_ERROR(CheckId("tokenizer.ggml.eos_token_id", *spec.eos, vocab_size()));
    end_of_generation_.insert(*spec.eos);
  }
  if (spec.add_bos && !spec.bos) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
  }
  for (const TokenId id : spec.end_of_generation) {
    KVBLEND_RETURN_IF_ERROR(CheckId("an end-of-generation token", id, vocab_size()));
    end_of_generation_.insert(id);
  }
  for (const auto& [from, to] :
       {std::pair{&spec.strips_before, &strips_before_}, std::pair{&spec.strips_behind, &strips_behind_}}) {
    for (const TokenId id : *from) {
      KVBLEND_RETURN_IF_ERROR(CheckId("a token that takes whitespace", id, vocab_size()));
      to->insert(id);
    }
  }
  const auto is_control = [this](std::string_view name) {
    const auto token = FindSpecial(name);
    return token && IsSpecial(*token);
  };
  // Where a vocabulary has both of these, as gpt-oss' has, <|end|> ends a message and the answer goes on.
  const bool messages_end = is_control("<|return|>") && is_control("<|call|>");
  for (const std::string_view marker : kShortEndMarkers) {
    if (is_control(marker)) end_of_generation_.insert(*FindSpecial(marker));
  }
  for (const std::string_view marker : kEndMarkers) {
    if (!is_control(marker) || (messages_end && marker == "<|end|>")) continue;
    end_of_generation_.insert(*FindSpecial(marker));
  }
  bos_ = spec.bos;
  add_bos_ = spec.add_bos;
  return absl::OkStatus();
}

}  // namespace kvblend::text
