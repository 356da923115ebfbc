// Checks shared by the entries in kernels/backend.cc. Every message names the operation, the value and what
// is allowed. All functions are thread-safe and, but for CheckExpertNumbers, touch no tensor memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

template <typename... Args>
absl::Status Invalid(absl::string_view op, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", args...));
}

/// A plan, table or weight as the type that this kind of backend makes. `what`: "the BatchPlan was"
template <typename Own, typename Base>
absl::StatusOr<const Own*> OfOwnKind(const Base& object, absl::string_view what) {
  if (const auto* own = dynamic_cast<const Own*>(&object)) return own;
  return absl::InvalidArgumentError(absl::StrCat(what, " made by a backend of another kind"));
}

/// The arguments of CopyFromHost and CopyToHost.
absl::Status CheckCopy(absl::string_view op, const void* dst, const void* src, int64_t bytes);

/// Shape, dtype, stride, alignment and size of one matrix argument called `what`.
absl::Status CheckMatrix(absl::string_view op, absl::string_view what, ConstMatrixView view, int64_t rows,
                         int64_t cols, std::initializer_list<DataType> dtypes);

/// The two may share no element. Interleaved columns of one buffer (equal row strides) do not count as
/// overlap.
absl::Status CheckDisjoint(absl::string_view op, ConstMatrixView input, absl::string_view input_name,
                           ConstMatrixView out, absl::string_view out_name = "out");

/// As CheckDisjoint, but `out` may also be exactly `input` when both are f32.
absl::Status CheckDisjointOrInPlace(absl::string_view op, ConstMatrixView input, absl::string_view input_name,
                                    ConstMatrixView out);

/// Encoding, shape, alignment and size of one section argument called `what`; its part must be `part`.
absl::Status CheckSection(absl::string_view op, absl::string_view what, KvSectionView section, KvPart part,
                          int64_t rows, int64_t cols);
/// A section and a matrix may share no byte.
absl::Status CheckSectionDisjoint(absl::string_view op, KvSectionView section, absl::string_view section_name,
                                  ConstMatrixView matrix, absl::string_view matrix_name);

/// Ranges within 0 .. cols, not backwards.
absl::Status CheckColumns(absl::string_view op, absl::string_view what, absl::Span<const ColumnRange> ranges,
                          int64_t cols);
/// Ranges of one sequence's positions, ascending, none twice, that a rope table of max_position has.
absl::Status CheckSpreadRanges(absl::string_view op, absl::Span<const ColumnRange> ranges,
                               const BatchPlan& plan, const RopeTable& rope);
/// The weights called `what`.
absl::Status CheckSpread(absl::string_view op, absl::string_view what, const DeviationSpread& spread);
/// Spec `index` of several, for rows of `vocab_size` logits.
absl::Status CheckSamplingSpec(absl::string_view op, size_t index, const SamplingSpec& spec,
                               int64_t vocab_size);

/// `int8`: whether pages may be of that type; `best`: the backend's best layout of such pages.
absl::Status CheckPages(absl::string_view op, KvPagesView pages, bool int8, PageLayout best);
absl::Status CheckPlanFitsPages(absl::string_view op, const BatchPlan& plan, KvPagesView pages);
absl::Status CheckPlanFitsRope(absl::string_view op, const BatchPlan& plan, const RopeTable& rope);
/// A number whose inverse is finite too, whatever scores are divided by it.
absl::Status CheckSoftCap(absl::string_view op, absl::string_view what, float cap);
absl::Status CheckAttentionSpec(absl::string_view op, const AttentionSpec& spec, KvPagesView pages);
absl::Status CheckBatchSpec(const BatchSpec& spec);
absl::Status CheckRopeSpec(const RopeSpec& spec);
absl::Status CheckWeightShape(int64_t rows, int64_t cols);
/// For backends whose memory is the host's: each of the experts of ExpertLinear or AddExpertBias is in
/// 0 .. num_experts - 1.
absl::Status CheckExpertNumbers(absl::string_view op, IndicesView experts, int64_t num_experts);
absl::Status CheckKvCorrectionSpec(const KvCorrectionSpec& spec);

}  // namespace kvblend::kernels
