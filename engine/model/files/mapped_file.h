// A whole file, mapped read-only. Internal to engine/model.
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
  /// kNotFound, kPermissionDenied, ... naming the path; kInvalidArgument where it is no regular file, kDataLoss
  /// where it is empty.
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

/// For bytes that are not needed for now: where they are of a MappedFile, the pages that lie wholly within them leave this
/// process's memory, and come back when they are read again. Other memory is left as it is. Thread-safe.
void DropPages(absl::Span<const std::byte> bytes);

}  // namespace kvblend::model
