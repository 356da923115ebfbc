#include "engine/blend/reuse_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"

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
          std::string_view tenant_namespace, store::ChunkStore& chunk_store, int32_t kept_tokens,
          const ReusedEntries& again)
      : layout_(layout),
        options_(options),
        key_space_(key_space),
        tenant_namespace_(tenant_namespace),
        chunk_store_(chunk_store),
        again_(again),
        anchor_hash_(store::HashTokens(layout.anchor_ids)) {
    plan_.kept_tokens = kept_tokens;
  }

  ReusePlan Plan() {
    plan_.reads = std::make_unique<store::PromptReads>(chunk_store_.NewPrompt());
    plan_.prompt_tokens = static_cast<int32_t>(layout_.token_ids.size());
    const int32_t anchor_end = layout_.anchor_is_prefix ? static_cast<int32_t>(layout_.anchor_ids.size()) : 0;
    if (anchor_end > 0) spans_.push_back({.kind = SpanKind::kLeadIn, .begin = 0, .end = anchor_end});
    for (const prompt::Span& span : layout_.spans) {
      if (span.end <= anchor_end && span.kind != SpanKind::kChunk) continue;  // part of the anchor
      if (span.end < plan_.kept_tokens) continue;
      spans_.push_back({.kind = span.kind,
                        .chunk_index = span.kind == SpanKind::kChunk ? span.chunk_index : -1,
                        .begin = std::max(span.begin, plan_.kept_tokens),
                        .end = span.end,
                        .is_text = span.is_text});
    }
    if (options_.reuse != Reuse::kNothing) LookUp(anchor_end);
    for (PlannedSpan& span : spans_) Place(std::move(span));
    return std::move(plan_);
  }

 private:
  /// A span that may be stored, and what it would have been computed behind.
  struct Wanted {
    PlannedSpan* span;
    Digest anchor_hash;
  };

  /// Looks up the anchor and the chunks; all together, because a tier across the network answers many
  /// questions in the time of one.
  void LookUp(int32_t anchor_end) {
    std::vector<Wanted> wanted;
    for (PlannedSpan& span : spans_) {
      // The anchor is an entry like any other: computed by itself, and exact because it stands at position 0.
      const bool is_anchor = span.kind != SpanKind::kChunk && span.begin == 0 && span.end == anchor_end;
      if (span.num_tokens() == 0 || span.is_text || (span.kind != SpanKind::kChunk && !is_anchor)) continue;
      const bool behind_anchor = !is_anchor && options_.anchoring == Anchoring::kAnchored;
      wanted.push_back({&span, behind_anchor ? anchor_hash_ : store::IsolatedAnchorHash()});
      span.key = AddressOf(tenant_namespace_, wanted.back()).key;
    }
    LookUpAgain(wanted);
    LookUpIn(tenant_namespace_, wanted);
    for (const std::string& other : options_.read_namespaces) LookUpIn(other, wanted);
    for (const Wanted& missing : wanted) {
      const PlannedSpan& span = *missing.span;
      const bool behind_anchor = span.kind == SpanKind::kChunk && options_.anchoring == Anchoring::kAnchored;
      AddMissing(behind_anchor ? absl::MakeConstSpan(layout_.anchor_ids) : absl::Span<const int32_t>(),
                 TokensOf(layout_, span.begin, span.end), span);
    }
    if (options_.reuse != Reuse::kChunks) return;
    std::erase_if(wanted, [](const Wanted& missing) { return missing.span->kind != SpanKind::kChunk; });
    LookUpAnyAnchorIn(tenant_namespace_, wanted);
    for (const std::string& other : options_.read_namespaces) LookUpAnyAnchorIn(other, wanted);
  }

  /// Finds what was reused before, even if something better is stored by now.
  void LookUpAgain(std::vector<Wanted>& wanted) {
    std::vector<Wanted> reused, others;
    std::vector<ChunkKey> keys;
    for (const Wanted& one : wanted) {
      const auto before = again_.find(one.span->begin);
      if (before != again_.end()) keys.push_back(before->second);
      (before != again_.end() ? reused : others).push_back(one);
    }
    if (reused.empty()) return;
    std::vector<std::optional<store::ChunkHandle>> found = chunk_store_.Lookup(keys, plan_.reads.get());
    for (size_t i = 0; i < reused.size(); ++i) {
      if (found[i].has_value() && found[i]->anchor_hash() != reused[i].anchor_hash) {
        reused[i].span->source = ChunkSource::kOtherAnchor;
      }
    }
    TakeFound(std::move(found), reused);
    wanted = std::move(others);
    wanted.insert(wanted.end(), reused.begin(), reused.end());
  }

  /// Finds entries of this namespace, and takes out of `wanted` what was found.
  void LookUpIn(std::string_view name, std::vector<Wanted>& wanted) {
    if (wanted.empty()) return;
    std::vector<ChunkKey> keys;
    keys.reserve(wanted.size());
    for (const Wanted& one : wanted) keys.push_back(AddressOf(name, one).key);
    TakeFound(chunk_store_.Lookup(keys, plan_.reads.get()), wanted);
  }

  /// As LookUpIn, whatever the entries were computed behind.
  void LookUpAnyAnchorIn(std::string_view name, std::vector<Wanted>& wanted) {
    if (wanted.empty()) return;
    std::vector<ContentKey> content_keys;
    content_keys.reserve(wanted.size());
    for (const Wanted& one : wanted) content_keys.push_back(AddressOf(name, one).content_key);
    for (PlannedSpan* span :
         TakeFound(chunk_store_.LookupAnyAnchor(content_keys, plan_.reads.get()), wanted)) {
      span->source = ChunkSource::kOtherAnchor;
    }
  }

  std::vector<PlannedSpan*> TakeFound(std::vector<std::optional<store::ChunkHandle>> found,
                                      std::vector<Wanted>& wanted) {
    std::vector<PlannedSpan*> taken;
    std::vector<Wanted> rest;
    for (size_t i = 0; i < wanted.size(); ++i) {
      PlannedSpan& span = *wanted[i].span;
      span.entry = IfItFits(std::move(found[i]), span.num_tokens());
      if (span.entry.has_value()) {
        taken.push_back(&span);
      } else {
        rest.push_back(wanted[i]);
      }
    }
    wanted = std::move(rest);
    return taken;
  }

  store::ChunkAddress AddressOf(std::string_view name, const Wanted& wanted) const {
    return AddressIn(key_space_, name, wanted.anchor_hash,
                     TokensOf(layout_, wanted.span->begin, wanted.span->end));
  }

  /// An entry from outside this process may bear the right key and hold something else; it is a miss.
  std::optional<store::ChunkHandle> IfItFits(std::optional<store::ChunkHandle> entry,
                                             int32_t num_tokens) const {
    if (entry.has_value() && (entry->num_tokens() != num_tokens || entry->format() != key_space_.format)) {
      entry.reset();
    }
    return entry;
  }

  /// Whether all that stands before a span is what its entry was computed behind. Does not hash what stands
  /// before each of many chunks: that would be most of a long prompt, many times.
  bool StandsBehindItsAnchor(const PlannedSpan& span) const {
    const Digest& anchor_hash = span.entry->anchor_hash();
    if (span.begin == 0) return anchor_hash == store::IsolatedAnchorHash();
    if (anchor_hash == anchor_hash_) {
      return layout_.anchor_is_prefix && span.begin == static_cast<int32_t>(layout_.anchor_ids.size());
    }
    // An anchor is no chunk, so that only the first one can stand behind another anchor than the prompt's.
    const bool is_first = plan_.chunk_spans.size() <= 1;
    return is_first && anchor_hash == store::HashTokens(TokensOf(layout_, 0, span.begin));
  }

  /// Decides what a span is reused as.
  void Place(PlannedSpan span) {
    if (span.kind == SpanKind::kChunk) {
      plan_.chunk_spans.push_back({span.chunk_index, span.begin, span.end});
      // Without tokens there is nothing that could differ.
      if (span.num_tokens() == 0) return AddExact(std::move(span));
    }
    if (!span.entry) return AddComputed(std::move(span));
    span.tier = span.entry->tier();
    if (StandsBehindItsAnchor(span)) return AddExact(std::move(span));
    if (options_.reuse == Reuse::kPrefix) {
      span.entry.reset();
      span.tier = Tier::kNone;
      return AddComputed(std::move(span));
    }
    if (span.source != ChunkSource::kOtherAnchor) span.source = ChunkSource::kBlended;
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

  void AddMissing(absl::Span<const int32_t> anchor_ids, absl::Span<const int32_t> token_ids,
                  const PlannedSpan& span) {
    if (!missing_.insert(*span.key).second) return;
    MissingEntry entry{.anchor_ids = {anchor_ids.begin(), anchor_ids.end()},
                       .token_ids = {token_ids.begin(), token_ids.end()},
                       .begin = span.begin,
                       .is_anchor = span.kind != SpanKind::kChunk};
    plan_.missing.push_back(std::move(entry));
  }

  const prompt::PromptLayout& layout_;
  const BlendOptions& options_;
  const KeySpace& key_space_;
  const std::string_view tenant_namespace_;
  store::ChunkStore& chunk_store_;
  const ReusedEntries& again_;
  const Digest anchor_hash_;
  std::vector<PlannedSpan> spans_;         // of the prompt, in order
  absl::flat_hash_set<ChunkKey> missing_;  // of what is in plan_.missing
  ReusePlan plan_;
};

}  // namespace

ReusePlan PlanReuse(const prompt::PromptLayout& layout, const BlendOptions& options,
                    const KeySpace& key_space, std::string_view tenant_namespace,
                    store::ChunkStore& chunk_store, int32_t kept_tokens, const ReusedEntries& again) {
  return Matcher(layout, options, key_space, tenant_namespace, chunk_store, kept_tokens, again).Plan();
}

std::vector<ChunkKey> KeysOf(const prompt::PromptLayout& layout, const BlendOptions& options,
                             const KeySpace& key_space, std::string_view tenant_namespace) {
  std::vector<ChunkKey> keys;
  if (options.reuse == Reuse::kNothing) return keys;
  const Digest isolated = store::IsolatedAnchorHash();
  const Digest behind =
      options.anchoring == Anchoring::kAnchored ? store::HashTokens(layout.anchor_ids) : isolated;
  const auto add = [&](const Digest& anchor_hash, absl::Span<const int32_t> token_ids) {
    if (token_ids.empty()) return;
    keys.push_back(AddressIn(key_space, tenant_namespace, anchor_hash, token_ids).key);
    for (const std::string& other : options.read_namespaces) {
      keys.push_back(AddressIn(key_space, other, anchor_hash, token_ids).key);
    }
  };
  if (layout.anchor_is_prefix) add(isolated, layout.anchor_ids);
  for (const prompt::Span& span : layout.spans) {
    if (span.kind == SpanKind::kChunk && !span.is_text) add(behind, TokensOf(layout, span.begin, span.end));
  }
  return keys;
}

store::ChunkAddress AddressIn(const KeySpace& key_space, std::string_view tenant_namespace,
                              const Digest& anchor_hash, absl::Span<const int32_t> token_ids) {
  return store::AddressOf({.model_fingerprint = key_space.model_fingerprint,
                           .format = key_space.format,
                           .tenant_namespace = tenant_namespace,
                           .anchor_hash = anchor_hash,
                           .token_ids = token_ids});
}

PromptShape ShapeOf(const ReusePlan& plan, int32_t num_layers) {
  PromptShape shape{.num_layers = num_layers, .shared_computed = plan.shared_computed};
  for (const PlannedSpan& span : plan.spans) {
    ShapeSpan shape_span{.begin = span.begin, .end = span.end};
    if (span.end <= plan.shared_tokens) shape_span.begin = span.end;  // nothing is left to do
    if (span.entry.has_value()) {
      shape_span.use =
          span.source == ChunkSource::kExact ? ShapeSpan::Use::kExact : ShapeSpan::Use::kCandidate;
      if (span.entry->tier() != Tier::kHostMemory) {
        shape_span.tier = span.entry->tier();
        const store::KvFormat& format = span.entry->format();
        // What an entry still lacks counts as if it were spread over all layers.
        const int64_t bytes = store::ChunkKv::SizeBytes(format, span.num_tokens()).value_or(0);
        shape_span.layer_bytes =
            bytes / format.num_layers * span.entry->num_missing_layers() / format.num_layers;
      }
    }
    shape.spans.push_back(shape_span);
  }
  return shape;
}

void ShareTokens(int32_t shared_tokens, ReusePlan& plan) {
  plan.shared_tokens = shared_tokens;
  for (PlannedSpan& span : plan.spans) {
    if (span.begin >= shared_tokens) break;
    if (span.end > shared_tokens) {  // goes on behind the shared tokens
      plan.exact_tokens += shared_tokens - span.begin;
      span.begin = shared_tokens;
      break;
    }
    if (span.source != ChunkSource::kExact) plan.exact_tokens += span.num_tokens();
    span.source = ChunkSource::kExact;
    span.entry.reset();
    if (span.num_tokens() > 0) span.tier = Tier::kPages;
  }
  std::erase_if(plan.candidates.spans, [&](const CandidateSpan& candidate) {
    if (candidate.begin >= shared_tokens) return false;
    plan.candidates.num_tokens -= candidate.end - candidate.begin;
    return true;
  });
  const auto others = std::lower_bound(plan.computed.begin(), plan.computed.end(), shared_tokens);
  plan.shared_computed = static_cast<int32_t>(others - plan.computed.begin());
  plan.computed.erase(plan.computed.begin(), others);
}

void BypassSpans(absl::Span<const size_t> bypassed, ReusePlan& plan) {
  if (bypassed.empty()) return;
  for (const size_t index : bypassed) {
    PlannedSpan& span = plan.spans[index];
    if (span.source == ChunkSource::kExact) {
      plan.exact_tokens -= span.num_tokens();
    } else {
      plan.candidates.num_tokens -= span.num_tokens();
      std::erase_if(plan.candidates.spans,
                    [&](const CandidateSpan& candidate) { return candidate.begin == span.begin; });
    }
    span.source = ChunkSource::kBypassed;
    span.entry.reset();
    for (int32_t position = span.begin; position < span.end; ++position) plan.computed.push_back(position);
  }
  std::sort(plan.computed.begin(), plan.computed.end());
}

}  // namespace kvblend::blend
