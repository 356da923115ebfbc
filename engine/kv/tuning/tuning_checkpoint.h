// What tuners (engine/kv/tuning/layer_tuner.h) have made of their steps so far, in a file, so that a
// calibration that is interrupted can go on. Format: the preamble of a learner's files
// (engine/kv/sealed_bytes.h) with the magic "KVTUNING"; XXH3-64 of an identity, steps (i64); what each tuner
// appends; a checksum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/correction_learner.h"
#include "engine/kv/tuning/layer_tuner.h"

namespace kvblend::kv {

/// One for each layer; none: the layer stays as it is stored.
using LayerTuners = std::vector<std::optional<LayerTuner>>;

/// What such files begin with.
inline constexpr std::string_view kTuningMagic = "KVTUNING";

std::string EncodeTuning(const LearnerOptions& options, uint64_t identity, int64_t steps,
                         const LayerTuners& tuners);

/// Sets the tuners to the state in `bytes` and returns how many steps it has. Returns 0 and leaves the tuners
/// alone if the bytes have another identity. kInvalidArgument: the bytes are damaged, or of another model,
/// chunk format or anchoring; the tuners are left as they were.
absl::StatusOr<int64_t> DecodeTuning(const LearnerOptions& options, uint64_t identity, std::string_view bytes,
                                     LayerTuners& tuners);

/// Not thread-safe.
class TuningCheckpoint {
 public:
  /// path: empty for none, so that nothing is written. `identity`: all that the steps depend on besides the
  /// model, in any words.
  TuningCheckpoint(std::string path, const LearnerOptions& options, std::string_view identity);

  /// Reads the file into `tuners` as DecodeTuning does, whose errors then name the file. Returns the steps
  /// done; 0 if there is no file. Other errors are those of reading it.
  absl::StatusOr<int64_t> Restore(LayerTuners& tuners) const;
  /// How many the file of such tuners has.
  int64_t FileBytes(const LayerTuners& tuners) const;
  /// Replaces the file as a whole. The system's error, naming the file.
  absl::Status Save(int64_t steps, const LayerTuners& tuners) const;

 private:
  const std::string path_;
  const LearnerOptions options_;
  const uint64_t identity_;
};

}  // namespace kvblend::kv
