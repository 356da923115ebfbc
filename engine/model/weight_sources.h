// What backends pack weights from: a file's tensors, in the order in which the transformer wants their rows.
// Internal to engine/model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_file.h"
#include "kernels/weight_source.h"

namespace kvblend::model {

/// kDataLoss naming the file, the tensor and the row where a value is an infinity or NaN.
absl::Status CheckFinite(const GgufFile& file, const GgufTensor& tensor, int64_t row,
                         absl::Span<const float> values);

/// Tensors of as many columns, one below the other; of several experts, the rows of the first in all of them,
/// then those of the second, and so on. The file must stay.
///
/// Rows are read one after the other, so the memory of the file's bytes is given back every megabyte: what is
/// read is never in memory as a whole beside what becomes of it.
class StackedTensors final : public kernels::WeightSource {
 public:
  /// Told how many bytes of the file were read since the last time.
  using ReadObserver = std::function<void(int64_t bytes)>;

  StackedTensors(const GgufFile& file, ReadObserver observer) : file_(file), observer_(std::move(observer)) {}

  /// Where there is one tensor, its first `rows` rows belong to the first expert, the next to the second;
  /// where there are several, each is that of one expert.
  void Add(std::vector<const GgufTensor*> tensors, int64_t rows) {
    parts_.push_back({std::move(tensors), rows});
    rows_of_expert_ += rows;
  }

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override;
  std::optional<kernels::QuantizedFormat> FormatOf(int64_t row) const override;
  absl::Status ReadCodes(int64_t row, const kernels::QuantizedRow& out) const override;

  /// Gives back the memory of the file's bytes that have been read, and tells of them.
  void ReleasePages() const;

 private:
  struct Part {
    std::vector<const GgufTensor*> tensors;
    int64_t rows;  // of each expert
  };
  /// The tensor that holds the row; *row becomes its row there.
  const GgufTensor& Find(int64_t* row) const;
  void CountRow(const GgufTensor& tensor) const;

  const GgufFile& file_;
  const ReadObserver observer_;
  mutable int64_t unreleased_ = 0;  // bytes that were read; sources are used from one thread at a time
  int64_t rows_of_expert_ = 0;
  std::vector<Part> parts_;
};

/// The same rows, those of the first `num_heads` heads in another order within each head. Source and order
/// must stay.
class ReorderedHeads final : public kernels::WeightSource {
 public:
  ReorderedHeads(const kernels::WeightSource& source, int64_t num_heads, absl::Span<const int32_t> order)
      : source_(source), num_heads_(num_heads), order_(order) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    return source_.ReadRow(Of(row), out);
  }
  std::optional<kernels::QuantizedFormat> FormatOf(int64_t row) const override {
    return source_.FormatOf(Of(row));
  }
  absl::Status ReadCodes(int64_t row, const kernels::QuantizedRow& out) const override {
    return source_.ReadCodes(Of(row), out);
  }

 private:
  int64_t Of(int64_t row) const;

  const kernels::WeightSource& source_;
  const int64_t num_heads_;
  const absl::Span<const int32_t> order_;
};

}  // namespace kvblend::model
