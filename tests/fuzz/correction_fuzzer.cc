// Files of learned corrections: whatever is read is written again byte for byte. Input: a file without its
// checksum.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/kv/correction_file.h"
#include "engine/kv/sealed_bytes.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvblend::test_support::Check;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  kvblend::kv::Seal(bytes);
  const auto correction = kvblend::kv::DecodeCorrection(bytes);
  if (!correction.ok()) {
    Check(correction.status().code() == absl::StatusCode::kInvalidArgument, "errors have one code");
    return 0;
  }
  Check(kvblend::kv::EncodeCorrection(*correction) == bytes, "what is read is written again");
  return 0;
}
