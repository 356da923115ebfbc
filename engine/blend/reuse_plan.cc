#include "engine/blend/reuse_plan.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvblend::blend {
namespace {

using prompt::SpanKind;

absl::Span<const int32_t> TokensOf(const prompt::PromptLayout& layout, int32_t begin, int32_t end) {
  return absl::MakeConstSpan(layout.token_ids).subspan(begin, end - begin);
}

/// Looks up what belongs into the spans of one prompt.
class Matcher {
 public:
  Matcher(const prompt::PromptLayout& layout, const BlendOptions& options, const KeySpace& key_space,
          std::string_view tenant_namespace, store::ChunkStore& chunk_store)
      : layout_(layout),
        options_(options),
        key_space_(key_space),
        tenant_namespace_(tenant_namespace),
        chunk_store_(chunk_store),
        reads_(chunk_store.NewPrompt()),
        anchor_hash_(store::HashTokens(layout.anchor_ids)) {}

  ReusePlan Plan() {
    plan_.prompt_tokens = static_cast<int32_t>(layout_.token_ids.size());
    const int32_t anchor_end = layout_.anchor_is_prefix ? static_cast<int32_t>(layout_.anchor_ids.size()) : 0;
    if (anchor_end > 0) PlanAnchor(anchor_end);
    for (const prompt::Span& span : layout_.spans) {
      if (span.end <= anchor_end && span.kind != SpanKind::kChunk) continue;  // part of the anchor
      if (span.kind == SpanKind::kChunk) {
        PlanChunk(span);
      } else {
        AddComputed({.kind = span.kind, .begin = span.begin, .end = span.end});
      }
    }
    return std::move(plan_);
  }

 private:
  store::ChunkIdentity Identity(const store::Digest& anchor_hash, absl::Span<const int32_t> token_ids) const {
    return {.model_fingerprint = key_space_.model_fingerprint,
            .format = key_space_.format,
            .tenant_namespace = tenant_namespace_,
            .anchor_hash = anchor_hash,
            .token_ids = token_ids};
  }

  // The anchor is an entry like any other: computed by itself, and exact because it stands at position 0.
  void PlanAnchor(int32_t anchor_end) {
    PlannedSpan span{.kind = SpanKind::kLeadIn, .begin = 0, .end = anchor_end};
    if (options_.reuse != Reuse::kNothing) {
      span.key = store::AddressOf(Identity(store::IsolatedAnchorHash(), layout_.anchor_ids)).key;
      span.entry = IfItFits(chunk_store_.Lookup(*span.key, &reads_), span.num_tokens());
      if (!span.entry) AddMissing({}, layout_.anchor_ids);
    }
    if (span.entry) {
      AddExact(std::move(span));
    } else {
      AddComputed(std::move(span));
    }
  }

  /// An entry from outside this process may bear the right key and hold something else; it is a miss.
  std::optional<store::ChunkHandle> IfItFits(std::optional<store::ChunkHandle> entry,
                                             int32_t num_tokens) const {
    if (entry.has_value() && (entry->num_tokens() != num_tokens || entry->format() != key_space_.format)) {
      entry.reset();
    }
    return entry;
  }

  void PlanChunk(const prompt::Span& layout_span) {
    PlannedSpan span{.kind = SpanKind::kChunk,
                     .chunk_index = layout_span.chunk_index,
                     .begin = layout_span.begin,
                     .end = layout_span.end};
    plan_.chunk_spans.push_back({span.chunk_index, span.begin, span.end});
    if (span.num_tokens() == 0) {
      span.source = ChunkSource::kExact;  // nothing there that could differ
      plan_.spans.push_back(std::move(span));
      return;
    }
    if (options_.reuse == Reuse::kNothing) return AddComputed(std::move(span));

    const absl::Span<const int32_t> token_ids = TokensOf(layout_, span.begin, span.end);
    const store::Digest& behind =
        options_.anchoring == Anchoring::kAnchored ? anchor_hash_ : store::IsolatedAnchorHash();
    const store::ChunkAddress address = store::AddressOf(Identity(behind, token_ids));
    span.key = address.key;
    span.entry = IfItFits(chunk_store_.Lookup(*span.key, &reads_), span.num_tokens());
    bool other_anchor = false;
    if (!span.entry) {
      AddMissing(options_.anchoring == Anchoring::kAnchored ? absl::MakeConstSpan(layout_.anchor_ids)
                                                            : absl::Span<const int32_t>(),
                 token_ids);
      if (options_.reuse == Reuse::kChunks) {
        span.entry = IfItFits(chunk_store_.LookupAnyAnchor(address.content_key, &reads_), span.num_tokens());
        other_anchor = span.entry.has_value();
      }
    }
    if (!span.entry) return AddComputed(std::move(span));
    if (span.entry->anchor_hash() == store::HashTokens(TokensOf(layout_, 0, span.begin))) {
      return AddExact(std::move(span));
    }
    if (options_.reuse == Reuse::kPrefix) {
      span.entry.reset();
      return AddComputed(std::move(span));
    }
    span.source = other_anchor ? ChunkSource::kOtherAnchor : ChunkSource::kBlended;
    plan_.candidates.spans.push_back({span.chunk_index, span.begin, span.end});
    plan_.candidates.num_tokens += span.num_tokens();
    plan_.spans.push_back(std::move(span));
  }

  void AddExact(PlannedSpan span) {
    span.source = ChunkSource::kExact;
    plan_.exact_tokens += span.num_tokens();
    plan_.spans.push_back(std::move(span));
  }

  void AddComputed(PlannedSpan span) {
    span.source = ChunkSource::kMiss;
    for (int32_t position = span.begin; position < span.end; ++position) plan_.computed.push_back(position);
    plan_.spans.push_back(std::move(span));
  }

  void AddMissing(absl::Span<const int32_t> anchor_ids, absl::Span<const int32_t> token_ids) {
    MissingEntry entry{{anchor_ids.begin(), anchor_ids.end()}, {token_ids.begin(), token_ids.end()}};
    const auto same = [&](const MissingEntry& other) {
      return other.anchor_ids == entry.anchor_ids && other.token_ids == entry.token_ids;
    };
    if (std::none_of(plan_.missing.begin(), plan_.missing.end(), same))
      plan_.missing.push_back(std::move(entry));
  }

  const prompt::PromptLayout& layout_;
  const BlendOptions& options_;
  const KeySpace& key_space_;
  const std::string_view tenant_namespace_;
  store::ChunkStore& chunk_store_;
  store::PromptReads reads_;  // begin when all is looked up
  const store::Digest anchor_hash_;
  ReusePlan plan_;
};

}  // namespace

ReusePlan PlanReuse(const prompt::PromptLayout& layout, const BlendOptions& options,
                    const KeySpace& key_space, std::string_view tenant_namespace,
                    store::ChunkStore& chunk_store) {
  return Matcher(layout, options, key_space, tenant_namespace, chunk_store).Plan();
}

}  // namespace kvblend::blend
