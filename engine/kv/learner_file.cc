#include "engine/kv/learner_file.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {
namespace {

constexpr uint32_t kLearnerVersion = 1;
constexpr size_t kLearnerHeader = 112, kBaseBytes = 16;

size_t FileBytes(const LearnerOptions& options) {
  const int64_t moments = PairMoments::EncodedBytes(options.channels(), KindOfMoments(options));
  return kLearnerHeader + static_cast<size_t>(2 * options.num_layers * moments) + kSealBytes;
}

absl::Status BadMoments(std::string_view what) { return absl::InvalidArgumentError(std::string(what)); }

}  // namespace

std::string EncodeLearner(const LearnerOptions& options, const LearnerState& state) {
  std::string bytes = LearnerPreamble(kLearnerMagic, kLearnerVersion, options);
  for (const int64_t count : {state.fitted_chunks, state.kept_back_chunks, state.tokens})
    PutValue(count, bytes);
  bytes.append(state.base);
  bytes.resize(kLearnerHeader - sizeof(state.replica), '\0');
  PutValue(state.replica, bytes);
  bytes.reserve(FileBytes(options));
  for (const auto* side : {&state.fitted, &state.kept_back}) {
    for (const PairMoments& layer : *side) layer.AppendTo(bytes);
  }
  Seal(bytes);
  return bytes;
}

absl::StatusOr<LearnerState> DecodeLearner(const LearnerOptions& options, std::string_view bytes) {
  const std::string preamble = LearnerPreamble(kLearnerMagic, kLearnerVersion, options);
  KVBLEND_ASSIGN_OR_RETURN(std::string_view values, Unseal("moments of a correction", preamble, bytes));
  if (bytes.size() != FileBytes(options)) {
    return BadMoments(absl::StrCat("it has ", bytes.size(), " bytes; allowed: ", FileBytes(options)));
  }
  LearnerState state;
  for (int64_t* count : {&state.fitted_chunks, &state.kept_back_chunks, &state.tokens}) {
    *count = TakeValue<int64_t>(values);
    constexpr int64_t kMost = int64_t{1} << 48;  // so that sums do not run over
    if (*count < 0 || *count > kMost) {
      return BadMoments(absl::StrCat("a count is ", *count, "; allowed: 0 to ", kMost));
    }
  }
  const std::string_view base = values.substr(0, kBaseBytes);
  if (base[0] != '\0') {
    state.base = base;
  } else if (base.find_first_not_of('\0') != base.npos) {
    return BadMoments("the version of what learning began with begins with a zero");
  }
  values.remove_prefix(kBaseBytes);
  state.replica = TakeValue<uint64_t>(values);
  for (auto* side : {&state.fitted, &state.kept_back}) {
    side->assign(options.num_layers, PairMoments(options.channels(), KindOfMoments(options)));
    for (PairMoments& layer : *side) KVBLEND_RETURN_IF_ERROR(layer.TakeFrom(values));
  }
  return state;
}

}  // namespace kvblend::kv
