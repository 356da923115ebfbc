// Whole files, mapped read-only. Internal to engine/model.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::model {

/// Immutable. A file that another process truncates while it is mapped makes reads fault.
class MappedFile {
 public:
  /// kNotFound, kPermissionDenied, ... naming the path; kInvalidArgument where it is no regular file,
  /// kDataLoss where it is empty.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), size_}; }

 private:
  MappedFile(void* address, size_t size);
  void* const address_;
  const size_t size_;
};

/// Gives back the memory of what has been read of mapped files within `bytes`, and of up to two megabytes on
/// both sides, which the kernel may have brought along: it is read anew when it is needed again. Nothing
/// happens to other memory. A file that is read once from end to end would otherwise count as this process's
/// memory, beside what was made of it. Thread-safe.
void ReleaseMappedPages(absl::Span<const std::byte> bytes);

}  // namespace kvblend::model
