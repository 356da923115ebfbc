#include "engine/serve/sequences/shared_prefixes.h"

#include <algorithm>

namespace kvblend {
namespace {

bool RecomputesEverything(const BlendOptions& blend, const RatioOptions& ratio) {
  if (blend.reuse == Reuse::kPrefix || blend.policy == Policy::kAll) return true;
  if (blend.policy == Policy::kLink || blend.policy == Policy::kNone) return false;
  return ratio.mode == RatioMode::kFixed && ratio.ratio >= 1;
}

}  // namespace

bool MayShareMore(absl::Span<const int32_t> a, absl::Span<const int32_t> b, int32_t num_tokens) {
  const auto next = static_cast<size_t>(num_tokens);
  return next < a.size() && next < b.size() && a[next] == b[next];
}

int32_t CommonTokens(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

TokenRanges RangesBefore(const TokenRanges& ranges, int32_t end) {
  TokenRanges before;
  for (const TokenRange& range : ranges) {
    if (range.begin < end) before.push_back({range.begin, std::min(range.end, end)});
  }
  return before;
}

int32_t AgreeUntil(const TokenRanges& a, const TokenRanges& b) {
  for (size_t i = 0;; ++i) {
    if (i == a.size() && i == b.size()) return INT32_MAX;
    if (i == a.size()) return b[i].begin;
    if (i == b.size()) return a[i].begin;
    if (a[i].begin != b[i].begin) return std::min(a[i].begin, b[i].begin);
    if (a[i].end != b[i].end) return std::min(a[i].end, b[i].end);
  }
}

void AppendRange(TokenRange range, TokenRanges& ranges) {
  if (range.begin >= range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

int32_t ExactPrefixTokens(const prompt::PromptLayout& layout, const BlendOptions& blend,
                          const RatioOptions& ratio, int32_t other_anchor) {
  if (blend.reuse == Reuse::kNothing) return 0;
  const int32_t question = layout.spans.back().begin;
  if (RecomputesEverything(blend, ratio)) return question;
  // A chunk's stored KV is exact behind nothing but what it was computed behind.
  const bool isolated = blend.anchoring == Anchoring::kIsolated;
  int32_t exact_place = isolated ? 0 : static_cast<int32_t>(layout.anchor_ids.size());
  if (!isolated && !layout.anchor_is_prefix) exact_place = -1;
  for (const prompt::Span& span : layout.spans) {
    if (span.kind != prompt::SpanKind::kChunk || span.size() == 0) continue;
    if (span.begin != exact_place || span.begin >= other_anchor) return span.begin;
    exact_place = -1;
  }
  return question;
}

SharedPrefixes::Offer SharedPrefixes::Add(std::string_view tenant_namespace,
                                          absl::Span<const int32_t> token_ids, TokenRanges loaded,
                                          const kv::SequencePages& pages) {
  entries_->push_back({.tenant_namespace = std::string(tenant_namespace),
                       .token_ids = {token_ids.begin(), token_ids.end()},
                       .loaded = std::move(loaded),
                       .pages = &pages});
  return {entries_, std::prev(entries_->end())};
}

std::optional<SharedPrefix> SharedPrefixes::Find(std::string_view tenant_namespace,
                                                 absl::Span<const int32_t> token_ids) const {
  const Entry* best = nullptr;
  int32_t most = 0;
  for (const Entry& entry : *entries_) {
    if (entry.tenant_namespace != tenant_namespace || entry.pages->is_damaged()) continue;
    if (!MayShareMore(entry.token_ids, token_ids, most)) continue;
    const int32_t common = CommonTokens(entry.token_ids, token_ids);
    if (common <= most) continue;
    most = common;
    best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return SharedPrefix{best->pages, most, RangesBefore(best->loaded, most)};
}

}  // namespace kvblend
