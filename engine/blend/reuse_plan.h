// Matches a prompt against the chunk store: which spans can be reused, from which entries, and which of those
// are exact.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/chunk_key.h"
#include "engine/api/request.h"
#include "engine/blend/costs/prefill_prediction.h"
#include "engine/blend/selection_policy.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/store/arriving_kv.h"
#include "engine/store/chunk_store.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::blend {

/// The part that all keys of one engine have in common.
struct KeySpace {
  Digest model_fingerprint{};
  store::KvFormat format;
};

/// One span of the prompt and where its KV comes from.
struct PlannedSpan {
  prompt::SpanKind kind = prompt::SpanKind::kQuestion;
  int32_t chunk_index = -1;  // -1 unless a chunk
  int32_t begin = 0;         // prompt positions [begin, end)
  int32_t end = 0;
  bool is_text = false;  // text between chunks: not looked up, and not missing
  ChunkSource source = ChunkSource::kMiss;
  std::optional<ChunkKey> key = std::nullopt;  // the entry that belongs here; set for the anchor and chunks
  Tier tier = Tier::kNone;                     // where its entry was found
  std::optional<store::ChunkHandle> entry = std::nullopt;  // pinned while the plan lives; unset when computed

  int32_t num_tokens() const { return end - begin; }
};

class FreshRows;  // engine/blend/fresh_rows.h

/// An entry that the store should have for prompts like this one, but does not have.
struct MissingEntry {
  std::vector<int32_t> anchor_ids;  // tokens that it is computed behind; empty: by itself
  std::vector<int32_t> token_ids;
  int32_t begin = 0;  // the first place in the prompt where it was missed
  bool is_anchor = false;
  /// Some rows of the KV that the prompt computed for it; null: none were kept.
  std::shared_ptr<const FreshRows> fresh = {};
};

/// Owns pins on the entries it reuses. Not thread-safe.
struct ReusePlan {
  std::vector<PlannedSpan> spans;  // in prompt order, covering the prompt behind kept_tokens
  int32_t prompt_tokens = 0;
  int32_t kept_tokens = 0;    // leading tokens whose KV is in the pages already
  int32_t shared_tokens = 0;  // leading tokens whose exact KV is in pages that other sequences hold too
  Candidates candidates;      // reused, not exact
  std::vector<CandidateSpan> chunk_spans;  // all placed chunks, whatever their source
  std::vector<int32_t> computed;  // positions never in the store: misses, history, question; ascending
  int32_t exact_tokens = 0;       // including the shared ones
  int32_t shared_computed = 0;    // of the shared ones, those that would be computed if no sequence had them
  std::vector<MissingEntry> missing;  // without duplicates, anchor first
  /// The reads that the entries need. None has been asked for yet: KvLoader does that layer by layer.
  std::unique_ptr<store::PromptReads> reads;
};

/// Position at which a span begins -> the entry that was reused for it.
using ReusedEntries = std::map<int32_t, ChunkKey>;

/// Looks up every span on its own, so that a missing chunk does not affect its neighbours. The caller's
/// namespace is looked in first, then those that it may read, and only then entries of other anchors, in the
/// same order. What is missing will be stored in the caller's namespace, unless a namespace that it may read
/// has it behind this anchor.
///
/// An entry is *exact* in a place when the tokens before it in the prompt are exactly those that it was
/// computed behind: then its KV is what full prefill would compute. That holds for the anchor at position 0,
/// for the first chunk behind it, and for an isolated chunk at position 0. Everything else that is found is a
/// candidate for recomputation.
///
/// `kept_tokens`: the KV of so many leading tokens is in the pages already, and is left as it is. They end
/// within the history.
///
/// `again`: the entries that the same prompt reused before. Entries that are still stored are taken again
/// before any others, and do not count as missing, wherever they were found.
ReusePlan PlanReuse(const prompt::PromptLayout& layout, const BlendOptions& options,
                    const KeySpace& key_space, std::string_view tenant_namespace,
                    store::ChunkStore& chunk_store, int32_t kept_tokens = 0, const ReusedEntries& again = {});

/// The keys that PlanReuse looks up first, of all namespaces: what to prefetch for a prompt that waits.
std::vector<ChunkKey> KeysOf(const prompt::PromptLayout& layout, const BlendOptions& options,
                             const KeySpace& key_space, std::string_view tenant_namespace);

/// Where a chunk of these tokens behind this anchor is stored.
store::ChunkAddress AddressIn(const KeySpace& key_space, std::string_view tenant_namespace,
                              const Digest& anchor_hash, absl::Span<const int32_t> token_ids);

/// The plan as the loading controller sees it, span by span.
PromptShape ShapeOf(const ReusePlan& plan, int32_t num_layers);

/// For a prompt whose pages already hold the exact KV of so many leading tokens, because other sequences have
/// it: takes these tokens out of what is to be loaded and computed. What the plan says of entries found and
/// missing stays. REQUIRES: no kept tokens; the tokens end before the question, and neither within a chunk
/// nor within an anchor at the beginning of the prompt.
void ShareTokens(int32_t shared_tokens, ReusePlan& plan);

/// Makes the spans `bypassed` (ascending indices into plan.spans, each with an entry) computed ones, as if
/// their entries had not been found. None of their KV has been read yet, and none will be for this prompt.
void BypassSpans(absl::Span<const size_t> bypassed, ReusePlan& plan);

}  // namespace kvblend::blend
