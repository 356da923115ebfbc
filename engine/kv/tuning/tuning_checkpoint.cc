#include "engine/kv/tuning/tuning_checkpoint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {

TuningCheckpoint::TuningCheckpoint(std::string path, const LearnerOptions& options, std::string_view identity)
    : path_(std::move(path)), options_(options), identity_(XXH3_64bits(identity.data(), identity.size())) {}

std::string TuningCheckpoint::Preamble() const {
  return LearnerPreamble("KVTUNING", /*version=*/1, options_);
}

absl::StatusOr<int64_t> TuningCheckpoint::Restore(LayerTuners& tuners) const {
  if (path_.empty()) return 0;
  const absl::StatusOr<std::string> file = ReadWholeFile(path_);
  if (absl::IsNotFound(file.status())) return 0;
  if (!file.ok()) return file.status();
  const auto refused = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", why.message(), "; remove it, or give another file to resume from"));
  };
  absl::StatusOr<std::string_view> bytes = Unseal("a file of tuning", Preamble(), *file);
  if (!bytes.ok()) return refused(bytes.status());
  if (bytes->size() < sizeof(uint64_t) + sizeof(int64_t))
    return refused(absl::DataLossError("it ends too early"));
  if (TakeValue<uint64_t>(*bytes) != identity_) return 0;
  const auto steps = TakeValue<int64_t>(*bytes);
  LayerTuners restored = tuners;
  for (std::optional<LayerTuner>& tuner : restored) {
    if (!tuner.has_value()) continue;
    if (absl::Status status = tuner->TakeFrom(*bytes); !status.ok()) return refused(status);
  }
  if (steps < 0 || !bytes->empty()) return refused(absl::DataLossError("it has more than belongs in it"));
  tuners = std::move(restored);
  return steps;
}

absl::Status TuningCheckpoint::Save(int64_t steps, const LayerTuners& tuners) const {
  if (path_.empty()) return absl::OkStatus();
  std::string bytes = Preamble();
  PutValue(identity_, bytes);
  PutValue(steps, bytes);
  for (const std::optional<LayerTuner>& tuner : tuners) {
    if (tuner.has_value()) tuner->AppendTo(bytes);
  }
  Seal(bytes);
  return ReplaceFile(path_, bytes);
}

}  // namespace kvblend::kv
