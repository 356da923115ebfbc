#include "engine/serve/calibration/calibration_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "engine/kv/correction_file.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

namespace fs = std::filesystem;

/// Files that are not there yet are told apart by their folder and name.
bool AreOneFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (a == b || fs::equivalent(a, b, error)) return true;
  const fs::path first = fs::weakly_canonical(fs::absolute(a, error), error);
  return !error && first == fs::weakly_canonical(fs::absolute(b, error), error) && !error;
}

}  // namespace

std::string AttentionCheckpoint(const CalibrationOptions& options) {
  return options.resume.empty() ? "" : options.resume + ".attention";
}

absl::Status CheckCalibrationFiles(const std::string& output, const CalibrationOptions& options) {
  for (const std::string& kept : {options.resume, AttentionCheckpoint(options)}) {
    if (kept.empty()) continue;
    if (AreOneFile(kept, output)) {
      return absl::InvalidArgumentError(absl::StrCat("the correction, ", output,
                                                     ", and what it is resumed from, ", kept,
                                                     ", are one file; allowed: two"));
    }
    KVBLEND_RETURN_IF_ERROR(kv::CheckReplaceable(kept));
  }
  return kv::CheckCorrectionWritable(output);
}

absl::Status CheckRoomToReplace(const std::string& path, int64_t bytes) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  const fs::space_info space = fs::space(folder.empty() ? "." : folder, error);
  if (error) return absl::OkStatus();
  const uintmax_t size = fs::file_size(path, error);
  const int64_t there = error ? 0 : static_cast<int64_t>(std::min<uintmax_t>(size, bytes));
  const int64_t needed = 2 * bytes - there;
  if (space.available >= static_cast<uintmax_t>(needed)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path, " takes ", bytes, " bytes, and as many again while it is replaced: its disk has ",
                   space.available, " bytes left; allowed: at least ", needed));
}

absl::Status PeriodicSaves::Step(int64_t steps, const absl::Status& going) {
  const int64_t enough = going.ok() ? kSavedEvery : 1;
  if (steps - tried_ < enough && (going.ok() || !failed_)) return going;
  const absl::Status saved = save_(steps);
  tried_ = steps;
  failed_ = !saved.ok();
  if (!failed_) return going;
  if (!going.ok()) return saved;
  spdlog::warn("what was computed so far is not saved, and would be lost now: {}",
               std::string(saved.message()));
  return going;
}

absl::Status PeriodicSaves::End(int64_t steps) {
  return failed_ || tried_ < steps ? save_(steps) : absl::OkStatus();
}

}  // namespace kvblend
