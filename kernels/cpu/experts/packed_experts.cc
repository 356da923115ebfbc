#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cpu/experts/experts.h"

namespace kvblend::kernels {
namespace {

/// Rows [first, ...) of another source.
class RowsFrom final : public WeightSource {
 public:
  RowsFrom(const WeightSource& source, int64_t first) : source_(source), first_(first) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    return source_.ReadRow(first_ + row, out);
  }
  std::optional<QuantizedFormat> FormatOf(int64_t row) const override {
    return source_.FormatOf(first_ + row);
  }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    return source_.ReadCodes(first_ + row, out);
  }

 private:
  const WeightSource& source_;
  const int64_t first_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CpuExperts>> CpuExperts::Create(CpuContext& context, int32_t num_experts,
                                                               int64_t rows, int64_t cols,
                                                               const WeightSource& source) {
  std::vector<std::unique_ptr<CpuWeights>> experts;
  for (int32_t e = 0; e < num_experts; ++e) {
    KVBLEND_ASSIGN_OR_RETURN(auto expert, CpuWeights::Create(context, rows, cols, WeightUsage::kLinear,
                                                             RowsFrom(source, e * rows)));
    experts.push_back(std::move(expert));
  }
  return std::unique_ptr<CpuExperts>(new CpuExperts(std::move(experts)));
}

absl::StatusOr<const CpuExperts*> CpuExperts::From(const PackedExperts& experts, DataType dtype) {
  KVBLEND_ASSIGN_OR_RETURN(const auto* own, OfOwnKind<CpuExperts>(experts, "the PackedExperts were"));
  KVBLEND_RETURN_IF_ERROR(CpuWeights::From(own->expert(0), dtype).status());
  return own;
}

}  // namespace kvblend::kernels
