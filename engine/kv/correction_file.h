// Learned corrections as files. Little-endian:
//
//       0  "kvblcorr"                         88  bytes of `data` (u32)
//       8  version (u32): 1, or 2 where       92  zero, or the encoding of that stored KV (u32)
//          learned from stored KV
//      12  anchoring (u32): 0 anchored,       96  kl_before, kl_after (f64)
//          1 isolated                        112  `data`, zeros up to 368
//      16  fingerprint of the model          368  per layer: 1 (u32), then scale, the offset of every place,
//      48  layers, KV heads, head_dim,            down, up (f32), or 0 (u32) for one that stays as stored
//          rank (u32)                        end  XXH3-64 of all bytes before it
//      64  tokens fitted on (u64)
//      72  zeros, or the version of what learning
//          began with
//
// Servers wrote what they learned as version 1 as well until there was version 2.
//
// A file is written next to its name, brought to the disk and renamed: readers see the old one or the new
// one.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/learned_correction.h"

namespace kvblend::kv {

/// REQUIRES: sizes as LearnedCorrection says.
std::string EncodeCorrection(const LearnedCorrection& correction);

/// kInvalidArgument naming what is wrong with the bytes; every value is finite, all sizes fit each other.
absl::StatusOr<LearnedCorrection> DecodeCorrection(std::string_view bytes);

/// What names these bytes in reports: 16 hexadecimal digits.
std::string CorrectionVersion(std::string_view bytes);

struct CorrectionFile {
  LearnedCorrection correction;
  std::string version;
};
/// kNotFound, kPermissionDenied, or what DecodeCorrection says; naming the file.
absl::StatusOr<CorrectionFile> ReadCorrectionFile(const std::string& path);
/// Whether the next can be done, so that a fit that takes hours does not end with an error that shows at
/// once. kInvalidArgument: what stands there is no learned correction, and would be lost. Otherwise the
/// system's error, naming the file.
absl::Status CheckCorrectionWritable(const std::string& path);
/// The system's error, naming the file. What stood there before is lost only to what is whole.
absl::Status WriteCorrectionFile(const std::string& path, const LearnedCorrection& correction);

}  // namespace kvblend::kv
