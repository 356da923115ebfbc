#include "kernels/host/memory.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

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

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("Allocate: bytes is ", bytes, "; allowed: at least 0"));
  // Sizes that no machine has are refused here: sanitizers abort on them instead of returning null.
  void* data = bytes > (int64_t{1} << 46) ? nullptr : ::operator new(bytes, kAlignment, std::nothrow);
  if (data == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("Allocate: no memory for ", bytes, " bytes"));
  return std::make_unique<HostBuffer>(data, bytes);
}

absl::Status CopyHostBytes(absl::string_view op, void* dst, const void* src, int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat(op, ": bytes is ", bytes, "; allowed: at least 0"));
  if (bytes == 0) return absl::OkStatus();
  if (dst == nullptr || src == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", dst == nullptr ? "dst" : "src", " is null with ", bytes, " bytes"));
  }
  std::memmove(dst, src, bytes);
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
