// What a calibration has of its prompts so far, in a file, so that one that is interrupted can go on. The
// file is a learner's (engine/kv/learner_file.h), whose chunks count as prompts here, and which tells in
// place of the version of a correction what the prompts were.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/kv/correction_learner.h"

namespace kvblend::kv {

/// The prompts of a calibration: those that are fitted, and behind them those that are kept back.
struct CheckpointPrompts {
  int64_t fitted = 0;
  int64_t kept_back = 0;
  std::string identity;  // of all of them and of how many are fitted: IdentityOfPrompts

  /// `spans`: of each prompt where its spans begin, and its tokens.
  static CheckpointPrompts Of(absl::Span<const std::vector<int32_t>> spans, int64_t fitted);
};

/// Not thread-safe.
class MomentsCheckpoint {
 public:
  /// path: empty for none, so that nothing is written.
  MomentsCheckpoint(std::string path, const LearnerOptions& options, CheckpointPrompts prompts);

  /// What the file has, or moments of nothing where there is none. kInvalidArgument, naming the file: it is
  /// damaged, or of another model, chunk format or anchoring, or of other prompts. Otherwise what reading it
  /// gives.
  absl::StatusOr<LearnerState> Restore() const;
  int64_t file_bytes() const;
  /// Replaces the file as a whole. The system's error, naming the file.
  absl::Status Save(const LearnerState& state) const;

 private:
  std::string path_;
  LearnerOptions options_;
  CheckpointPrompts prompts_;
};

}  // namespace kvblend::kv
