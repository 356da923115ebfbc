// Sequences that begin with the same tokens, each of them exact there, hold the pages of these together: the
// first one has loaded or computed them, the others read them as they are, and whoever writes behind them
// does so in pages of his own (engine/kv/sequence_pages.h). That takes the memory of one, and spares all
// others what the first one has done.
//
// What was blended is never shared: it is right for one prompt alone. Nor does a prompt take more than what
// would be exact in it anyway, so that its answer is the same, but for the roundings of sums, whoever else is
// there.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/kv/sequence_pages.h"
#include "engine/prompt/prompt_layout.h"

namespace kvblend {

/// Tokens begin .. end-1 of a sequence.
struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const TokenRange&) const = default;
};

/// Ascending, without common tokens, none empty.
using TokenRanges = std::vector<TokenRange>;

/// How many leading tokens the two have in common.
int32_t CommonTokens(absl::Span<const int32_t> a, absl::Span<const int32_t> b);
/// False: they have no more than `num_tokens` leading tokens in common. Looks at one token, so that a search
/// for the longest common beginning compares few of many long prompts that begin alike.
bool MayShareMore(absl::Span<const int32_t> a, absl::Span<const int32_t> b, int32_t num_tokens);

/// The ranges below `end`; one that reaches beyond is cut there.
TokenRanges RangesBefore(const TokenRanges& ranges, int32_t end);
/// The first token that is in only one of the two; INT32_MAX: there is none.
int32_t AgreeUntil(const TokenRanges& a, const TokenRanges& b);
/// REQUIRES: it begins where the last one of `ranges` ends, or behind.
void AppendRange(TokenRange range, TokenRanges& ranges);

/// How many leading tokens of a prompt would be exact if it were prefilled by itself: all before the second
/// chunk, and where everything is recomputed all before the question. `other_anchor`: where the first chunk
/// begins that the store has only behind another anchor, as which it is not exact; INT32_MAX: there is none.
int32_t ExactPrefixTokens(const prompt::PromptLayout& layout, const BlendOptions& blend,
                          const RatioOptions& ratio, int32_t other_anchor);

/// What another sequence may begin with.
struct SharedPrefix {
  const kv::SequencePages* pages = nullptr;
  int32_t num_tokens = 0;
  TokenRanges loaded = {};  // those of the tokens whose KV came from the store; the others were computed
};

/// The prefixes of running sequences; KeptSequences has those that are kept. For the engine thread only.
class SharedPrefixes {
 private:
  struct Entry {
    std::string tenant_namespace;
    std::vector<int32_t> token_ids;
    TokenRanges loaded;
    const kv::SequencePages* pages;
  };
  using Entries = std::list<Entry>;

 public:
  SharedPrefixes() = default;
  SharedPrefixes(const SharedPrefixes&) = delete;
  SharedPrefixes& operator=(const SharedPrefixes&) = delete;

  /// Ends with its owner. Move-only.
  class Offer {
   public:
    Offer() = default;
    Offer(Offer&& other) noexcept : entries_(std::exchange(other.entries_, nullptr)), entry_(other.entry_) {}
    Offer& operator=(Offer&& other) noexcept {
      std::swap(entries_, other.entries_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Offer() {
      if (entries_ != nullptr) entries_->erase(entry_);
    }

   private:
    friend class SharedPrefixes;
    Offer(std::shared_ptr<Entries> entries, Entries::iterator entry)
        : entries_(std::move(entries)), entry_(entry) {}

    std::shared_ptr<Entries> entries_;
    Entries::iterator entry_;
  };

  /// Offers the KV of these tokens, exact and there in every layer, to prompts of the same namespace. The
  /// pages must outlive the offer, and keep them as they are that long.
  Offer Add(std::string_view tenant_namespace, absl::Span<const int32_t> token_ids, TokenRanges loaded,
            const kv::SequencePages& pages);

  /// The offer that begins with most of these tokens, if any does with one. Valid while it lasts.
  std::optional<SharedPrefix> Find(std::string_view tenant_namespace,
                                   absl::Span<const int32_t> token_ids) const;

 private:
  const std::shared_ptr<Entries> entries_ = std::make_shared<Entries>();
};

}  // namespace kvblend
