// What a server keeps of its learning, as files in a folder: learned.kvcorrection
// (engine/kv/correction_file.h), the correction in force if it was learned, and learned.kvmoments
// (engine/kv/learner_file.h), what it was learned from. Each is replaced as a whole. What is damaged or of
// another model is named in the log and not used.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/kv/correction_file.h"
#include "engine/kv/correction_learner.h"
#include "engine/runtime/model_runtime.h"

namespace kvblend {

/// Not thread-safe. Errors are named in the log; nothing else depends on the files.
class LearnedFiles {
 public:
  /// `folder` must be there; empty: nothing outlives the process.
  LearnedFiles(std::string folder, const kv::LearnerOptions& learner)
      : folder_(std::move(folder)), learner_(learner) {}

  bool kept() const { return !folder_.empty(); }

  struct Recalled {
    std::optional<kv::LearnerState> moments = std::nullopt;
    std::optional<kv::CorrectionFile> correction = std::nullopt;
  };
  /// What is there and may be used where learning begins with the correction of version `base`. A correction
  /// that was learned on top of another one, or of which that is not known, stays a file and is not used.
  Recalled Recall(const std::string& base, const blend::KeySpace& key_space);

  void SaveMoments(const kv::LearnerState& state);
  void SaveCorrection(const kv::LearnedCorrection& correction);
  void Remove();

 private:
  std::string MomentsPath() const { return folder_ + "/learned.kvmoments"; }
  std::string CorrectionPath() const { return folder_ + "/learned.kvcorrection"; }
  std::optional<kv::LearnerState> RecallMoments() const;
  absl::Status Check(const absl::StatusOr<kv::CorrectionFile>& file, const blend::KeySpace& key_space) const;
  /// Of a correction that does not say itself what its learning began with: once there are new moments, the
  /// next start would take it for learned from these.
  void SetAside();

  const std::string folder_;
  const kv::LearnerOptions learner_;
  bool unnamed_base_ = false;  // such a correction is there and not in force
};

}  // namespace kvblend
