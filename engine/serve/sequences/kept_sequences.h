// Conversations between two turns. When an answer is over, its sequence stays in the page pool: the KV of
// prompt and answer, as the answer saw it. A prompt that goes on from there takes it over and computes only
// what is new.
//
// A kept sequence is found by its tokens: a prompt goes on from it that is in the same namespace and begins
// with the prompt of the last turn in which chunks were blended, question included. As much of what follows
// is used as the prompt repeats token by token: an answer that is asked for again, or behind another
// question, finds the turns before it.
// Of a sequence in which stored chunks were blended, only the leading tokens are exact, that is, have the KV
// that full prefill would give; all of it is used by prompts that would have been blended in the same way,
// the exact tokens by others too.
//
// Kept sequences take pages that nobody else needs: the one that was used longest ago goes first when they
// would take more than they may, or when the pool runs out of pages; then those stay whose pages running
// sequences hold too, as no page would become free by their going.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/sequence_pages.h"
#include "engine/serve/sequences/shared_prefixes.h"

namespace kvblend {

/// A finished sequence, or the part of one that a prompt has taken.
struct KeptSequence {
  std::string tenant_namespace;
  BlendOptions blend;              // what its prompts asked for
  std::vector<int32_t> token_ids;  // whose KV is in the pages
  int32_t must_match = 0;          // how many leading tokens a prompt must repeat to continue it
  int32_t num_exact = 0;           // how many leading tokens are exact
  // How many leading tokens are exact and have their KV in every layer. Layers with windows have only the KV
  // that rows after the prompt see, until the rest is computed again.
  int32_t num_whole = 0;
  TokenRanges loaded = {};  // those of the exact tokens whose KV came from the store
  std::unique_ptr<kv::SequencePages> pages;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
};

/// For the engine thread only, except counts(). While it lives, the pool asks it for pages when it has too
/// few.
class KeptSequences {
 public:
  /// Kept sequences hold at most `max_pages` of the pool's pages; pages that several of them hold count once.
  /// The pool must outlive this, and no other object may hold pages of it as kept ones.
  KeptSequences(kv::PagePool& pool, int64_t max_pages);
  ~KeptSequences();
  KeptSequences(const KeptSequences&) = delete;
  KeptSequences& operator=(const KeptSequences&) = delete;

  bool enabled() const { return max_pages_ > 0; }

  /// Keeps the sequence, as the one used last, with no more pages than its tokens take; drops those whose
  /// tokens it begins with and of which no more is exact, and what there is no room for. REQUIRES: must_match
  /// <= num_tokens(), num_exact <= num_tokens()
  void Keep(KeptSequence sequence);

  /// Takes out the sequence that a prompt of these tokens can use most of, and cuts it to that; the one used
  /// last of several. The prompt is one of this namespace and blended so. At most `max_tokens` are used.
  std::optional<KeptSequence> Take(std::string_view tenant_namespace, absl::Span<const int32_t> token_ids,
                                   int32_t max_tokens, const BlendOptions& blend);

  /// What of the exact tokens that are there in every layer a prompt of this namespace can share that begins
  /// with `token_ids`: of the sequence with most of them. Valid until the next call; nothing is taken out.
  std::optional<SharedPrefix> FindExact(std::string_view tenant_namespace,
                                        absl::Span<const int32_t> token_ids) const;

  /// Identifies a sequence until it is taken or dropped; not used again.
  using Id = int64_t;
  /// The most recently used sequence that is not exact throughout, and for which there is room to compute its
  /// next `rows` tokens: for the pages that it has given back, and for copies of those that others hold too.
  std::optional<Id> FirstInexact(int32_t rows) const;
  /// The sequence, or null if it is gone. The caller may make its KV exact in place, and update its counts.
  /// Valid until the next call.
  KeptSequence* Find(Id id);
  void Drop(Id id);

  /// Which any thread may read.
  struct Counts {
    std::atomic<int32_t> sequences = 0;  // now
    std::atomic<int32_t> pages = 0;      // now; those that running sequences hold as well among them
    std::atomic<int64_t> taken = 0;      // since the start: sequences that prompts went on from
    std::atomic<int64_t> evicted = 0;    // since the start: sequences dropped for want of pages
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Entry {
    KeptSequence sequence;
    Id id = 0;
    size_t hash = 0;  // of the namespace and the tokens that must match
  };
  using Entries = std::list<Entry>;  // the one used last is the first

  Entries::iterator EntryOf(Id id);
  /// Takes an entry out.
  KeptSequence Remove(Entries::iterator entry);
  void Evict(Entries::iterator entry);
  /// Of the entries whose removal frees a page, the one used longest ago. If every page is kept by several,
  /// the one used longest ago of those that keep a page. REQUIRES: there are idle pages
  Entries::iterator FirstToFree();
  /// Drops entries until the pool has so many free pages, or no more would become free.
  void MakeFree(int64_t num_pages);
  void Count();

  kv::PagePool& pool_;
  const int64_t max_pages_;
  Entries entries_;
  absl::flat_hash_map<size_t, std::vector<Entries::iterator>> by_hash_;
  Id next_id_ = 1;
  Counts counts_;
};

/// How many of a kept sequence's leading tokens a prompt that begins with `token_ids` and is blended so can
/// use; 0: none of them.
int32_t UsableTokens(const KeptSequence& sequence, absl::Span<const int32_t> token_ids,
                     const BlendOptions& blend);

}  // namespace kvblend
