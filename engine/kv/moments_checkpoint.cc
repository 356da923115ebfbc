#include "engine/kv/moments_checkpoint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "engine/kv/learner_file.h"

namespace kvblend::kv {

CheckpointPrompts CheckpointPrompts::Of(absl::Span<const std::vector<int32_t>> spans, int64_t fitted) {
  // A hash over the hashes, so that the same tokens in other prompts give another one.
  std::vector<uint64_t> hashes = {static_cast<uint64_t>(fitted)};
  for (const std::vector<int32_t>& prompt : spans) {
    hashes.push_back(XXH3_64bits(prompt.data(), prompt.size() * sizeof(int32_t)));
  }
  const uint64_t all = XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
  return {.fitted = fitted,
          .kept_back = static_cast<int64_t>(spans.size()) - fitted,
          .identity = absl::StrFormat("%016x", all)};
}

MomentsCheckpoint::MomentsCheckpoint(std::string path, const LearnerOptions& options,
                                     CheckpointPrompts prompts)
    : path_(std::move(path)), options_(options), prompts_(std::move(prompts)) {
  options_.max_bytes = std::numeric_limits<int64_t>::max();  // maps are fitted, whatever memory they need
}

absl::StatusOr<LearnerState> MomentsCheckpoint::Restore() const {
  LearnerState fresh;
  fresh.base = prompts_.identity;
  fresh.fitted.assign(options_.num_layers, PairMoments(options_.channels()));
  fresh.kept_back = fresh.fitted;
  if (path_.empty()) return fresh;
  absl::StatusOr<std::string> bytes = ReadWholeFile(path_, kLearnerMagic);
  if (absl::IsNotFound(bytes.status())) return fresh;
  if (!bytes.ok()) return bytes.status();
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", why, "; remove it, or give another file to resume from"));
  };
  absl::StatusOr<LearnerState> state = DecodeLearner(options_, *bytes);
  if (!state.ok()) return refused(state.status().message());
  if (state->base != prompts_.identity) {
    return refused(absl::StrCat("it was made of other prompts, ",
                                state->base.empty() ? "a server's" : state->base, " instead of ",
                                prompts_.identity));
  }
  if (state->fitted_chunks > prompts_.fitted || state->kept_back_chunks > prompts_.kept_back ||
      (state->kept_back_chunks > 0 && state->fitted_chunks < prompts_.fitted)) {
    return refused(absl::StrCat("it has ", state->fitted_chunks, " prompts fitted and ",
                                state->kept_back_chunks, " kept back; allowed: up to ", prompts_.fitted,
                                ", and then up to ", prompts_.kept_back));
  }
  return state;
}

int64_t MomentsCheckpoint::file_bytes() const { return LearnerFileBytes(options_); }

absl::Status MomentsCheckpoint::Save(const LearnerState& state) const {
  return path_.empty() ? absl::OkStatus() : ReplaceFile(path_, EncodeLearner(options_, state));
}

}  // namespace kvblend::kv
