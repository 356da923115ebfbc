#include "engine/serve/learned_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "engine/kv/learner_file.h"
#include "spdlog/spdlog.h"

namespace kvblend {

std::optional<kv::LearnerState> LearnedFiles::RecallMoments() const {
  const auto bytes = kv::ReadWholeFile(MomentsPath(), kv::kLearnerMagic);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (!bytes.ok()) {
    spdlog::warn("{}; learning starts anew", std::string(bytes.status().message()));
    return std::nullopt;
  }
  absl::StatusOr<kv::LearnerState> state = kv::DecodeLearner(learner_, *bytes);
  if (!state.ok()) {
    spdlog::warn("{}: {}; learning starts anew", MomentsPath(), std::string(state.status().message()));
    return std::nullopt;
  }
  if (state->tokens == 0) {  // saved with a fit on others' pairs alone
    state->fitted.clear();
    state->kept_back.clear();
  }
  return *std::move(state);
}

absl::Status LearnedFiles::Check(const absl::StatusOr<kv::CorrectionFile>& file,
                                 const blend::KeySpace& key_space) const {
  KVBLEND_RETURN_IF_ERROR(file.status());
  const kv::LearnedCorrection& correction = file->correction;
  KVBLEND_RETURN_IF_ERROR(CheckCorrectionFits(CorrectionPath(), correction, key_space));
  if (correction.anchoring != learner_.anchoring) {
    return absl::InvalidArgumentError(absl::StrCat(CorrectionPath(), " is for another kind of anchoring"));
  }
  if (correction.learned.has_value() && correction.learned->encoding != learner_.encoding) {
    return absl::InvalidArgumentError(
        absl::StrCat(CorrectionPath(), " was learned from chunks of another chunk-format"));
  }
  return absl::OkStatus();
}

LearnedFiles::Recalled LearnedFiles::Recall(const std::string& base, const blend::KeySpace& key_space) {
  if (!kept()) return {};
  kv::RemoveUnfinished(MomentsPath());
  kv::RemoveUnfinished(CorrectionPath());
  Recalled recalled{.moments = RecallMoments()};
  absl::StatusOr<kv::CorrectionFile> file = kv::ReadCorrectionFile(CorrectionPath());
  if (absl::IsNotFound(file.status())) return recalled;
  if (const absl::Status usable = Check(file, key_space); !usable.ok()) {
    spdlog::warn("{}; it is not applied", std::string(usable.message()));
    return recalled;
  }
  if (file->version == base) return recalled;  // already in force
  const auto& learned = file->correction.learned;
  std::optional<std::string> began_with;
  if (learned.has_value()) {
    began_with = learned->base;
  } else if (recalled.moments.has_value()) {
    began_with = recalled.moments->base;
  }
  unnamed_base_ = !learned.has_value() && began_with != base;
  if (!began_with.has_value()) {
    spdlog::warn(
        "{}: it is of an older kvblend, and without its moments nobody knows what its learning began with; "
        "it is not applied",
        CorrectionPath());
  } else if (*began_with != base) {
    spdlog::info("{}: learning began with another correction than the one given now, which is in force",
                 CorrectionPath());
  } else {
    recalled.correction = *std::move(file);
  }
  return recalled;
}

void LearnedFiles::SetAside() {
  if (!std::exchange(unnamed_base_, false)) return;
  const std::string aside = CorrectionPath() + ".old";
  std::error_code error;
  std::filesystem::rename(CorrectionPath(), aside, error);
  if (error) {
    spdlog::warn("{}: the next start may apply it: {}", CorrectionPath(), error.message());
  } else {
    spdlog::info("{}: learned earlier, and not applied", aside);
  }
}

void LearnedFiles::SaveMoments(const kv::LearnerState& state) {
  if (!kept()) return;
  SetAside();
  const absl::Status s = kv::ReplaceFile(MomentsPath(), kv::EncodeLearner(learner_, state));
  if (s.ok()) return;
  spdlog::warn("what was learned of stored KV will not outlive this process: {}", std::string(s.message()));
}

void LearnedFiles::SaveCorrection(const kv::LearnedCorrection& correction) {
  if (!kept()) return;
  SetAside();
  const absl::Status s = kv::WriteCorrectionFile(CorrectionPath(), correction);
  if (s.ok()) return;
  spdlog::warn("a learned correction will not outlive this process: {}", std::string(s.message()));
}

void LearnedFiles::Remove() {
  if (!kept()) return;
  unnamed_base_ = false;
  for (const std::string& path : {CorrectionPath(), MomentsPath()}) {
    if (const absl::Status s = kv::RemoveFile(path); !s.ok()) {
      spdlog::warn("what was learned is forgotten, but the next start finds it again: {}",
                   std::string(s.message()));
    }
  }
}

}  // namespace kvblend
