#include "engine/serve/self_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/serve/sequences/prompt_runner.h"

namespace kvblend {
namespace {

// Tokens per span. Odd, so that spans straddle pages and tiles.
constexpr int32_t kSpanTokens = 37;
constexpr int32_t kNumChunks = 3;
static_assert(kMinCheckedTokens == kNumChunks + 2);  // an anchor, the chunks, a question

absl::Status NeverStop() { return absl::OkStatus(); }

// A prompt of arbitrary tokens: anchor, chunks, question. Real text is not needed to compare two ways of
// computing.
prompt::PromptLayout MakeLayout(int32_t vocab_size, int32_t span_tokens) {
  prompt::PromptLayout layout;
  uint32_t state = 12345;
  const auto add = [&](prompt::SpanKind kind, int32_t chunk_index) {
    const int32_t begin = static_cast<int32_t>(layout.token_ids.size());
    for (int32_t i = 0; i < span_tokens; ++i) {
      state = state * 1664525u + 1013904223u;  // Numerical Recipes' linear congruential generator
      layout.token_ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size)));
    }
    layout.spans.push_back({kind, chunk_index, begin, begin + span_tokens});
  };
  add(prompt::SpanKind::kSystem, -1);
  for (int32_t i = 0; i < kNumChunks; ++i) add(prompt::SpanKind::kChunk, i);
  add(prompt::SpanKind::kQuestion, -1);
  layout.anchor_ids.assign(layout.token_ids.begin(), layout.token_ids.begin() + span_tokens);
  layout.anchor_is_prefix = true;
  return layout;
}

double RelativeError(absl::Span<const float> value, absl::Span<const float> expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{value[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// Rounding of activations and KV, grown through the layers. fp32: 2^-24 per operation; bf16 GEMM inputs and
// KV: 2^-9; products in 8 bits: more. Blending bugs (a wrong position, mask or rotation) give errors of order
// 1.
double Limit(const ModelRuntime& runtime) {
  const kernels::KvEncoding encoding = runtime.key_space.format.encoding;
  if (encoding == kernels::KvEncoding::kInt4 || encoding == kernels::KvEncoding::kFp8) return 0.3;
  const bool low_precision = runtime.backend->best_page_dtype() != kernels::DataType::kF32 ||
                             runtime.page_pool->dtype() != kernels::DataType::kF32 ||
                             encoding != kernels::KvEncoding::kF32;
  return low_precision ? 0.1 : 1e-3;
}

}  // namespace

absl::StatusOr<double> RunSelfCheck(ModelRuntime& runtime) {
  KVBLEND_RETURN_IF_ERROR(CheckIsLongEnough(runtime.max_context_tokens));
  const int32_t span_tokens = std::min(kSpanTokens, runtime.max_context_tokens / kMinCheckedTokens);
  const prompt::PromptLayout layout = MakeLayout(runtime.config.vocab_size, span_tokens);
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = int64_t{1} << 30}));
  PromptRunner runner(runtime, *chunk_store);

  const auto prefill_logits = [&](Reuse reuse, Policy policy) -> absl::StatusOr<std::vector<float>> {
    BlendOptions options;
    options.reuse = reuse;
    options.policy = policy;
    options.ratio = 1.0;
    KVBLEND_ASSIGN_OR_RETURN(PrefilledPrompt prompt,
                             runner.Prefill(layout, options, /*tenant_namespace=*/"", NeverStop));
    return std::move(prompt.logits);
  };
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> full, prefill_logits(Reuse::kNothing, Policy::kAll));
  for (const prompt::Span& span : layout.spans) {
    if (span.kind != prompt::SpanKind::kChunk) continue;
    const absl::Span<const int32_t> tokens =
        absl::MakeConstSpan(layout.token_ids).subspan(span.begin, span.end - span.begin);
    KVBLEND_RETURN_IF_ERROR(runner.EnsureStored("", layout.anchor_ids, tokens, {}, NeverStop).status());
  }

  // Everything in the store, everything recomputed.
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> blended, prefill_logits(Reuse::kChunks, Policy::kQuery));
  const double ratio_one_error = RelativeError(blended, full);
  // Only the exact prefix reused: exercises storing, rotating and placing KV.
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> prefix, prefill_logits(Reuse::kPrefix, Policy::kNone));
  const double prefix_error = RelativeError(prefix, full);

  const double limit = Limit(runtime);
  const double worst = std::max(ratio_one_error, prefix_error);
  if (!(worst <= limit)) {  // also catches NaN
    return absl::FailedPreconditionError(absl::StrCat(
        "self-check failed: blended prefill differs from full prefill by ", ratio_one_error,
        " at ratio 1 and by ", prefix_error, " with an exact prefix (of the logits' norm; allowed: at most ",
        limit, "). This model and backend can not be served correctly together."));
  }
  return worst;
}

}  // namespace kvblend
