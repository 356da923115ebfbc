#include "kernels/host/host_backend.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/host/batch_plan.h"
#include "kernels/host/mass_scores.h"

namespace kvblend::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};  // a cache line, and the widest vector register

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, int64_t bytes) : data_(data), size_bytes_(bytes) {}
  ~HostBuffer() override { ::operator delete(data_, kAlignment); }
  void* data() const override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  void* const data_;
  const int64_t size_bytes_;
};

class HostStream final : public Stream {};

absl::Status Copy(absl::string_view op, void* dst, const void* src, int64_t bytes) {
  KVBLEND_RETURN_IF_ERROR(CheckCopy(op, dst, src, bytes));
  if (bytes > 0) std::memmove(dst, src, bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> HostBackend::Allocate(int64_t bytes) {
  if (bytes < 0) return Invalid("Allocate", "bytes is ", bytes, "; allowed: at least 0");
  // Sizes that no machine has are refused here: sanitizers abort on them instead of returning null.
  void* data = bytes > (int64_t{1} << 46) ? nullptr : ::operator new(bytes, kAlignment, std::nothrow);
  if (data == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("Allocate: no memory for ", bytes, " bytes"));
  return std::make_unique<HostBuffer>(data, bytes);
}

absl::StatusOr<std::unique_ptr<Stream>> HostBackend::CreateStream() { return std::make_unique<HostStream>(); }

absl::Status HostBackend::CopyFromHost(Stream&, void* dst, const void* src, int64_t bytes) {
  return Copy("CopyFromHost", dst, src, bytes);
}

absl::Status HostBackend::CopyToHost(Stream&, void* dst, const void* src, int64_t bytes) {
  return Copy("CopyToHost", dst, src, bytes);
}

absl::StatusOr<std::unique_ptr<RopeTable>> HostBackend::DoCreateRopeTable(const RopeSpec& spec) {
  return HostRopeTable::Create(spec);
}

absl::StatusOr<std::unique_ptr<BatchPlan>> HostBackend::DoPlanBatch(const BatchSpec& spec) {
  return std::make_unique<HostBatchPlan>(spec);
}

absl::Status HostBackend::DoMassScores(Stream&, ConstMatrixView mass, ConstMatrixView lengths,
                                       absl::Span<const ColumnRange> counted,
                                       absl::Span<const ColumnRange> wanted, MatrixView out) {
  ScoreColumns(mass, lengths, counted, wanted, static_cast<float*>(out.data));
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
