// How a Tokenizer is built from what a model file says; the file may be wrong in every way.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/byte_level.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// Control tokens that end a turn or a text in the model families whose pre-tokenizers are implemented.
constexpr std::string_view kEndMarkers[] = {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>",
                                            "<|eot_id|>", "<|eom_id|>",    "</s>"};

bool IsTextType(int32_t type) { return type == kGgufNormal || type == kGgufByte; }

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
  KVBLEND_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, ParsePreTokenizer(spec.pre_tokenizer));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadTokens(spec));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadMerges(spec));
  KVBLEND_RETURN_IF_ERROR(tokenizer->LoadMarkers(spec));
  return tokenizer;
}

absl::Status Tokenizer::LoadTokens(const TokenizerSpec& spec) {
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

  // First all bytes, so that views of them stay valid from here on.
  std::vector<bool> is_word(count, false);
  offsets_.reserve(count + 1);
  offsets_.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    if (types_[i] < kGgufNormal || types_[i] > kGgufByte) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.token_type[", i, "] is ", types_[i], "; allowed: 1 to 6"));
    }
    std::optional<std::string> bytes;
    if (IsTextType(types_[i])) bytes = BytesOfTokenString(spec.tokens[i]);
    is_word[i] = bytes.has_value() && !bytes->empty();
    bytes_.append(bytes.has_value() ? *bytes : spec.tokens[i]);
    offsets_.push_back(bytes_.size());
  }

  for (size_t i = 0; i < count; ++i) {
    const TokenId token = static_cast<TokenId>(i);
    const std::string_view bytes = TokenBytes(token);
    const bool is_named = types_[i] == kGgufControl || types_[i] == kGgufUserDefined;
    if (!is_word[i] && !is_named) continue;
    auto& table = is_word[i] ? words_ : specials_;
    const auto [entry, is_new] = table.try_emplace(bytes, token);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens[", i, "] is ", Quote(bytes),
                                                     ", as is tokens[", entry->second,
                                                     "]; every token must differ"));
    }
    if (is_word[i] && bytes.size() == 1) merges_.SetByteToken(static_cast<uint8_t>(bytes[0]), token);
    if (types_[i] == kGgufUserDefined && !bytes.empty()) {
      user_defined_by_byte_.resize(256);
      user_defined_by_byte_[static_cast<uint8_t>(bytes[0])].push_back({bytes, token});
    }
  }
  for (auto& candidates : user_defined_by_byte_) {
    std::sort(candidates.begin(), candidates.end(),
              [](const UserDefined& a, const UserDefined& b) { return a.bytes.size() > b.bytes.size(); });
  }
  return absl::OkStatus();
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
    const auto left = BytesOfTokenString(merge.substr(0, space));
    const auto right = BytesOfTokenString(merge.substr(space + 1));
    if (!left || !right) return refuse("one of its characters stands for no byte");
    const auto left_token = words_.find(*left);
    const auto right_token = words_.find(*right);
    const auto result = words_.find(absl::StrCat(*left, *right));
    if (left_token == words_.end() || right_token == words_.end() || result == words_.end()) {
      return refuse("both parts and the result must be tokens of the vocabulary, and not control tokens");
    }
    merges_.AddRule({.left = left_token->second, .right = right_token->second, .result = result->second});
  }
  return absl::OkStatus();
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
  for (const std::string_view marker : kEndMarkers) {
    if (const auto token = FindSpecial(marker); token && IsSpecial(*token)) end_of_generation_.insert(*token);
  }
  bos_ = spec.bos;
  add_bos_ = spec.add_bos;
  return absl::OkStatus();
}

}  // namespace kvblend::text
