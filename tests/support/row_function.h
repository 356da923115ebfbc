// A weight whose rows a function writes.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/weight_source.h"

namespace kvblend::test_support {

class RowFunction final : public kernels::WeightSource {
 public:
  using Function = std::function<absl::Status(int64_t row, absl::Span<float> out)>;

  explicit RowFunction(Function write) : write_(std::move(write)) {}
  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override { return write_(row, out); }

 private:
  const Function write_;
};

}  // namespace kvblend::test_support
