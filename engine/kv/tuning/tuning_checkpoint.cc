#include "engine/kv/tuning/tuning_checkpoint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {
namespace {

constexpr uint32_t kTuningVersion = 1;

}  // namespace

std::string EncodeTuning(const LearnerOptions& options, uint64_t identity, int64_t steps,
                         const LayerTuners& tuners) {
  std::string bytes = LearnerPreamble(kTuningMagic, kTuningVersion, options);
  PutValue(identity, bytes);
  PutValue(steps, bytes);
  for (const std::optional<LayerTuner>& tuner : tuners) {
    if (tuner.has_value()) tuner->AppendTo(bytes);
  }
  Seal(bytes);
  return bytes;
}

absl::StatusOr<int64_t> DecodeTuning(const LearnerOptions& options, uint64_t identity, std::string_view bytes,
                                     LayerTuners& tuners) {
  const std::string preamble = LearnerPreamble(kTuningMagic, kTuningVersion, options);
  KVBLEND_ASSIGN_OR_RETURN(std::string_view values, Unseal("a file of tuning", preamble, bytes));
  if (values.size() < sizeof(identity) + sizeof(int64_t))
    return absl::InvalidArgumentError("it ends too early");
  if (TakeValue<uint64_t>(values) != identity) return 0;
  const auto steps = TakeValue<int64_t>(values);
  if (steps < 0)
    return absl::InvalidArgumentError(absl::StrCat("it has ", steps, " steps; allowed: 0 or more"));
  LayerTuners restored = tuners;
  for (std::optional<LayerTuner>& tuner : restored) {
    if (tuner.has_value()) KVBLEND_RETURN_IF_ERROR(tuner->TakeFrom(values));
  }
  if (!values.empty()) return absl::InvalidArgumentError("it has more than belongs in it");
  tuners = std::move(restored);
  return steps;
}

TuningCheckpoint::TuningCheckpoint(std::string path, const LearnerOptions& options, std::string_view identity)
    : path_(std::move(path)), options_(options), identity_(XXH3_64bits(identity.data(), identity.size())) {}

absl::StatusOr<int64_t> TuningCheckpoint::Restore(LayerTuners& tuners) const {
  if (path_.empty()) return 0;
  const absl::StatusOr<std::string> file = ReadWholeFile(path_, kTuningMagic);
  if (absl::IsNotFound(file.status())) return 0;
  if (!file.ok()) return file.status();
  absl::StatusOr<int64_t> steps = DecodeTuning(options_, identity_, *file, tuners);
  if (steps.ok()) return steps;
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", steps.status().message(),
                                                 "; remove it, or give another file to resume from"));
}

int64_t TuningCheckpoint::FileBytes(const LayerTuners& tuners) const {
  return static_cast<int64_t>(EncodeTuning(options_, identity_, 0, tuners).size());
}

absl::Status TuningCheckpoint::Save(int64_t steps, const LayerTuners& tuners) const {
  if (path_.empty()) return absl::OkStatus();
  return ReplaceFile(path_, EncodeTuning(options_, identity_, steps, tuners));
}

}  // namespace kvblend::kv
