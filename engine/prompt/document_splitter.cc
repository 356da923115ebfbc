#include "engine/prompt/document_splitter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/prompt/text_boundary.h"
#include "engine/text/utf8.h"

namespace kvblend::prompt {
namespace {

using text::TokenId;

// Prose has about four bytes per token; a text with more is looked at again, twice as far.
constexpr size_t kWindowBytesPerToken = 6;
// A window's end may cut a word, so its last tokens may differ from those of the whole text.
constexpr size_t kWindowMarginTokens = 16;

/// Tokenizes texts and tells where tokens lie in them.
class Measurer {
 public:
  explicit Measurer(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Measure(std::string_view text) {
    text_bytes_ = text.size();
    ids_ = tokenizer_.Encode(text, text::TextPosition::kWithin);
    ends_.clear();
    size_t end = 0;
    for (const TokenId id : ids_) ends_.push_back(end += tokenizer_.TokenBytes(id).size());
    // Bytes that the vocabulary has no token for were left out: then this is no more than a guess.
    if (end != text_bytes_) {
      for (size_t i = 0; i < ends_.size(); ++i) ends_[i] = text_bytes_ * (i + 1) / ends_.size();
    }
  }

  size_t num_tokens() const { return ids_.size(); }
  /// Bytes of the first `count` tokens.
  size_t BytesOf(size_t count) const { return count == 0 ? 0 : ends_[std::min(count, ends_.size()) - 1]; }
  std::vector<TokenId> TakeIds() { return std::move(ids_); }

 private:
  const text::Tokenizer& tokenizer_;
  size_t text_bytes_ = 0;
  std::vector<TokenId> ids_;
  std::vector<size_t> ends_;
};

/// The best place in (least, most], the last of equals; `most` where there is no good one.
size_t BestEnd(std::string_view text, size_t least, size_t most) {
  size_t best = most;
  Boundary best_boundary = Boundary::kNone;
  BoundaryScanner scanner(text.substr(0, most));
  while (scanner.Next()) {
    if (scanner.position() <= least || scanner.boundary() == Boundary::kNone) continue;
    if (scanner.boundary() < best_boundary) continue;
    best = scanner.position();
    best_boundary = scanner.boundary();
  }
  return best;
}

/// The best place in [least, most], the first of equals; `least` where there is no good one.
size_t BestBegin(std::string_view text, size_t least, size_t most) {
  size_t best = least;
  Boundary best_boundary = Boundary::kNone;
  BoundaryScanner scanner(text);
  while (scanner.position() < most && scanner.Next()) {
    if (scanner.position() < least || scanner.position() > most || scanner.before_space()) continue;
    if (scanner.boundary() <= best_boundary) continue;
    best = scanner.position();
    best_boundary = scanner.boundary();
  }
  return best;
}

class Splitter {
 public:
  Splitter(std::string_view text, bool goes_on, const SplitOptions& options, const text::Tokenizer& tokenizer)
      : text_(text),
        goes_on_(goes_on),
        chunk_tokens_(static_cast<size_t>(options.chunk_tokens)),
        overlap_tokens_(static_cast<size_t>(options.overlap_tokens)),
        // Enough to advance by a quarter of a chunk, whatever the overlap.
        least_tokens_(std::max(chunk_tokens_ / 2, overlap_tokens_ + chunk_tokens_ / 4)),
        window_(tokenizer),
        chunk_(tokenizer) {}

  absl::StatusOr<size_t> Run(const OnChunk& on_chunk) {
    size_t begin = 0;
    while (begin < text_.size()) {
      KVBLEND_ASSIGN_OR_RETURN(const std::optional<size_t> end, EndOfChunk(begin));
      if (!end.has_value()) break;
      const size_t next = *end == text_.size() && !goes_on_ ? *end : NextBegin(begin, *end);
      KVBLEND_RETURN_IF_ERROR(on_chunk({.begin = begin, .end = *end, .token_ids = chunk_.TakeIds()}));
      begin = next;
    }
    return begin;
  }

 private:
  /// Leaves the chunk's tokens in chunk_. Returns nothing when that needs more text.
  absl::StatusOr<std::optional<size_t>> EndOfChunk(size_t begin) {
    const std::string_view rest = text_.substr(begin);
    size_t window_bytes = chunk_tokens_ * kWindowBytesPerToken;
    while (true) {
      const bool has_all = window_bytes >= rest.size();
      if (has_all && goes_on_) return std::optional<size_t>();
      window_.Measure(rest.substr(0, FloorToCharacter(rest, window_bytes)));
      if (has_all || window_.num_tokens() > chunk_tokens_ + kWindowMarginTokens) break;
      window_bytes *= 2;
    }
    for (size_t target = chunk_tokens_;;) {
      size_t length = rest.size();
      if (window_.num_tokens() > target) {
        const size_t most = FloorToCharacter(rest, window_.BytesOf(target));
        const size_t least = std::min(window_.BytesOf(least_tokens_), most);
        length = std::max(BestEnd(rest, least, most), CeilToCharacter(rest, 1));
      }
      chunk_.Measure(rest.substr(0, length));
      if (chunk_.num_tokens() <= chunk_tokens_) return begin + length;
      // Tokenized by itself, the text has other tokens than in the window, and more of them.
      const size_t excess = chunk_.num_tokens() - chunk_tokens_;
      if (target < least_tokens_ + excess) return ShrinkToFit(begin, length);
      target -= excess;
    }
  }

  /// The end of a chunk that is as much shorter than `length` as needed: normalization may make many
  /// characters of one, so that the text does not fit by itself.
  absl::StatusOr<std::optional<size_t>> ShrinkToFit(size_t begin, size_t length) {
    const std::string_view rest = text_.substr(begin);
    const size_t least = CeilToCharacter(rest, 1);
    while (chunk_.num_tokens() > chunk_tokens_) {
      if (length == least) {
        return absl::InvalidArgumentError(
            absl::StrCat("chunk_tokens is ", chunk_tokens_, "; allowed: ", chunk_.num_tokens(),
                         " and up, the tokens of the character at byte ", begin, " of the text"));
      }
      const size_t shorter = std::min(length * chunk_tokens_ / chunk_.num_tokens(), length - 1);
      length = std::max(FloorToCharacter(rest, shorter), least);
      chunk_.Measure(rest.substr(0, length));
    }
    return begin + length;
  }

  /// Where the chunk after [begin, end) begins.
  size_t NextBegin(size_t begin, size_t end) const {
    if (overlap_tokens_ == 0) return end;
    const std::string_view chunk = text_.substr(begin, end - begin);
    const size_t num_tokens = chunk_.num_tokens();
    const auto place_before = [&](size_t last_tokens) {
      return num_tokens > last_tokens ? chunk_.BytesOf(num_tokens - last_tokens) : 0;
    };
    const size_t least =
        std::max(CeilToCharacter(chunk, place_before(overlap_tokens_)), CeilToCharacter(chunk, 1));
    const size_t most = std::max(place_before((overlap_tokens_ + 1) / 2), least);
    return begin + BestBegin(chunk, least, most);
  }

  const std::string_view text_;
  const bool goes_on_;
  const size_t chunk_tokens_;
  const size_t overlap_tokens_;
  const size_t least_tokens_;
  Measurer window_;
  Measurer chunk_;
};

}  // namespace

absl::Status ValidateSplitOptions(const SplitOptions& options) {
  if (options.chunk_tokens < kMinChunkTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_tokens is ", options.chunk_tokens, "; allowed: ", kMinChunkTokens, " and up"));
  }
  if (options.overlap_tokens < 0 || options.overlap_tokens > options.chunk_tokens / 2) {
    return absl::InvalidArgumentError(absl::StrCat("overlap_tokens is ", options.overlap_tokens,
                                                   "; allowed: 0 to half of chunk_tokens, ",
                                                   options.chunk_tokens / 2));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> SplitDocument(std::string_view text, bool goes_on, const SplitOptions& options,
                                     const text::Tokenizer& tokenizer, const OnChunk& on_chunk) {
  if (absl::Status status = ValidateSplitOptions(options); !status.ok()) return status;
  if (const auto offset = text::FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", *offset));
  }
  return Splitter(text, goes_on, options, tokenizer).Run(on_chunk);
}

}  // namespace kvblend::prompt
