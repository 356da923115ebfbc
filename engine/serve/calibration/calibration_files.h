// The files of a calibration: whether they can be written is known before hours of work, and a save in
// between that fails does not end it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/api/calibration.h"

namespace kvblend {

/// Where the state of the attention passes is kept; empty: nowhere.
std::string AttentionCheckpoint(const CalibrationOptions& options);

/// kInvalidArgument: two of the files are one, whatever their names, or something else stands in their place.
/// Otherwise the system's error.
absl::Status CheckCalibrationFiles(const std::string& output, const CalibrationOptions& options);

/// kResourceExhausted unless the disk has room for a file of so many bytes and for the new one that is to
/// replace it as a whole. OK where the system does not tell.
absl::Status CheckRoomToReplace(const std::string& path, int64_t bytes);

/// Saves what was computed every few steps. A save that fails is named in the log, and the steps go on.
class PeriodicSaves {
 public:
  static constexpr int64_t kSavedEvery = 4;  // steps: at most so many are lost when the process is killed

  /// `save` brings the state after so many steps into the file, which has `done` of them.
  PeriodicSaves(int64_t done, absl::FunctionRef<absl::Status(int64_t steps)> save)
      : tried_(done), save_(save) {}

  /// After `steps` steps. `going` is returned where it is OK. Otherwise these are the last ones, and the
  /// error of a save that fails comes before it.
  absl::Status Step(int64_t steps, const absl::Status& going);
  /// After the last step: the error of a save that fails.
  absl::Status End(int64_t steps);

 private:
  int64_t tried_;
  bool failed_ = false;
  const absl::FunctionRef<absl::Status(int64_t steps)> save_;
};

}  // namespace kvblend
