#include "kernels/cuda/linear/device_weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/checks.h"
#include "kernels/host/float_convert.h"

namespace kvblend::kernels::cuda {
namespace {

// What crosses to the device at a time: few copies of many bytes each.
constexpr int64_t kStepElements = int64_t{4} << 20;
// Rows are a launch's second dimension.
constexpr int64_t kMaxStepRows = 65535;

/// Writes a weight's rows into device memory, in order.
class RowWriter {
 public:
  RowWriter(DeviceStream& stream, uint16_t* out, int64_t cols)
      : stream_(stream), out_(out), cols_(cols), stride_(RoundUp(cols, 8)) {}

  int64_t MaxRows() const { return std::clamp<int64_t>(kStepElements / stride_, 1, kMaxStepRows); }

  absl::Status WriteValues(const WeightSource& source, int64_t first, int64_t count) {
    values_.assign(count * stride_, 0);
    row_.resize(cols_);
    for (int64_t r = 0; r < count; ++r) {
      if (absl::Status s = source.ReadRow(first + r, absl::MakeSpan(row_)); !s.ok()) return s;
      for (int64_t c = 0; c < cols_; ++c) values_[r * stride_ + c] = F32ToBf16(row_[c]);
    }
    return EnqueueCopyFromHost(stream_.handle(), out_ + first * stride_, values_.data(),
                               count * stride_ * int64_t{sizeof(uint16_t)});
  }

  absl::Status WriteCodes(const WeightSource& source, const QuantizedFormat& format, int64_t first,
                          int64_t count) {
    const int64_t groups = cols_ / format.group;
    const bool nibbles = format.bits == 4;
    const int64_t code_bytes = RoundUp(count * (nibbles ? cols_ / 2 : cols_), 16);
    const int64_t scale_bytes = count * groups * int64_t{sizeof(float)};
    bytes_.resize(code_bytes + 2 * scale_bytes);
    codes_.resize(cols_);
    scales_.resize(groups);
    minimums_.resize(groups);
    for (int64_t r = 0; r < count; ++r) {
      const QuantizedRow row{absl::MakeSpan(codes_), absl::MakeSpan(scales_), absl::MakeSpan(minimums_)};
      if (absl::Status s = source.ReadCodes(first + r, row); !s.ok()) return s;
      if (nibbles) {
        unsigned char* packed = bytes_.data() + r * (cols_ / 2);
        for (int64_t c = 0; c < cols_; c += 2) {
          packed[c / 2] = static_cast<unsigned char>(codes_[c] | codes_[c + 1] << 4);
        }
      } else {
        std::memcpy(bytes_.data() + r * cols_, codes_.data(), cols_);
      }
      const int64_t at = code_bytes + r * groups * int64_t{sizeof(float)};
      std::memcpy(bytes_.data() + at, scales_.data(), groups * sizeof(float));
      std::memcpy(bytes_.data() + at + scale_bytes, minimums_.data(), groups * sizeof(float));
    }
    const auto size = static_cast<int64_t>(bytes_.size());
    const auto memory = stream_.ScratchMemory(DeviceStream::Scratch::kWorkspace, size);
    if (!memory.ok()) return memory.status();
    auto* staged = static_cast<unsigned char*>(*memory);
    if (auto s = EnqueueCopyFromHost(stream_.handle(), staged, bytes_.data(), size); !s.ok()) return s;
    const CodedRows rows{.codes = staged,
                         .scales = reinterpret_cast<const float*>(staged + code_bytes),
                         .minimums = reinterpret_cast<const float*>(staged + code_bytes + scale_bytes),
                         .rows = count,
                         .cols = cols_,
                         .group = format.group,
                         .zero_point = format.zero_point,
                         .nibbles = nibbles};
    return StatusOf(LaunchDequantize(stream_.handle(), rows, out_ + first * stride_, stride_), "PackWeights");
  }

 private:
  DeviceStream& stream_;
  uint16_t* const out_;
  const int64_t cols_, stride_;
  std::vector<float> row_, scales_, minimums_;
  std::vector<uint16_t> values_;
  std::vector<uint8_t> codes_;
  std::vector<unsigned char> bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Create(int64_t rows, int64_t cols,
                                                                     WeightUsage usage,
                                                                     const WeightSource& source) {
  auto buffer = DeviceBuffer::Allocate("PackWeights", rows * RoundUp(cols, 8) * 2);
  if (!buffer.ok()) return buffer.status();
  auto stream = DeviceStream::Create();
  if (!stream.ok()) return stream.status();
  RowWriter writer(**stream, static_cast<uint16_t*>((*buffer)->data()), cols);
  int64_t first = 0;
  while (first < rows) {
    const std::optional<QuantizedFormat> format = source.FormatOf(first);
    const int64_t end = std::min(rows, first + writer.MaxRows());
    int64_t next = first + 1;
    while (next < end && source.FormatOf(next) == format) ++next;
    if (absl::Status s = format.has_value() ? writer.WriteCodes(source, *format, first, next - first)
                                            : writer.WriteValues(source, first, next - first);
        !s.ok()) {
      return s;
    }
    first = next;
  }
  if (absl::Status s = SynchronizeStream((*stream)->handle()); !s.ok()) return s;
  return std::unique_ptr<DeviceWeights>(new DeviceWeights(rows, cols, usage, *std::move(buffer)));
}

absl::StatusOr<const DeviceWeights*> DeviceWeights::From(const PackedWeights& weights) {
  return OfOwnKind<DeviceWeights>(weights, "the PackedWeights were");
}

}  // namespace kvblend::kernels::cuda
