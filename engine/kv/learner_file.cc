#include "engine/kv/learner_file.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {
namespace {

constexpr uint32_t kLearnerVersion = 2, kVersionWithoutFits = 1;
constexpr size_t kVersionAt = 8, kBaseBytes = 16;
constexpr size_t kFitsAt = 112, kFitsBytes = 16;

size_t FileBytes(const LearnerOptions& options, uint32_t version) {
  const int64_t moments = PairMoments::EncodedBytes(options.channels(), KindOfMoments(options));
  const size_t header = kFitsAt + (version == kVersionWithoutFits ? 0 : kFitsBytes);
  return header + static_cast<size_t>(2 * options.num_layers * moments) + kSealBytes;
}

/// The version whose preamble the file should have; for an unknown version the newest.
uint32_t VersionOf(std::string_view bytes) {
  if (bytes.size() < kPreambleBytes) return kLearnerVersion;
  bytes.remove_prefix(kVersionAt);
  return TakeValue<uint32_t>(bytes) == kVersionWithoutFits ? kVersionWithoutFits : kLearnerVersion;
}

absl::Status BadMoments(std::string_view what) { return absl::InvalidArgumentError(std::string(what)); }

}  // namespace

std::string EncodeLearner(const LearnerOptions& options, const LearnerState& state) {
  std::string bytes = LearnerPreamble(kLearnerMagic, kLearnerVersion, options);
  for (const int64_t count : {state.fitted_chunks, state.kept_back_chunks, state.tokens})
    PutValue(count, bytes);
  bytes.append(state.base);
  bytes.resize(kFitsAt - sizeof(state.replica), '\0');
  PutValue(state.replica, bytes);
  for (const int64_t count : {state.own_at_fit, state.all_at_fit}) PutValue(count, bytes);
  bytes.reserve(FileBytes(options, kLearnerVersion));
  const PairMoments nothing(options.channels(), KindOfMoments(options));
  for (const auto* side : {&state.fitted, &state.kept_back}) {
    for (int32_t layer = 0; layer < options.num_layers; ++layer) {
      (side->empty() ? nothing : (*side)[layer]).AppendTo(bytes);
    }
  }
  Seal(bytes);
  return bytes;
}

int64_t LearnerFileBytes(const LearnerOptions& options) {
  return static_cast<int64_t>(FileBytes(options, kLearnerVersion));
}

absl::StatusOr<LearnerState> DecodeLearner(const LearnerOptions& options, std::string_view bytes) {
  const uint32_t version = VersionOf(bytes);
  const std::string preamble = LearnerPreamble(kLearnerMagic, version, options);
  KVBLEND_ASSIGN_OR_RETURN(std::string_view values, Unseal("moments of a correction", preamble, bytes));
  if (const size_t allowed = FileBytes(options, version); bytes.size() != allowed) {
    return BadMoments(absl::StrCat("it has ", bytes.size(), " bytes; allowed: ", allowed));
  }
  const auto take_count = [&values](int64_t& count) {
    count = TakeValue<int64_t>(values);
    constexpr int64_t kMost = int64_t{1} << 48;  // so that sums do not overflow
    return count >= 0 && count <= kMost
               ? absl::OkStatus()
               : BadMoments(absl::StrCat("a count is ", count, "; allowed: 0 to ", kMost));
  };
  LearnerState state;
  for (int64_t* count : {&state.fitted_chunks, &state.kept_back_chunks, &state.tokens}) {
    KVBLEND_RETURN_IF_ERROR(take_count(*count));
  }
  const std::string_view base = values.substr(0, kBaseBytes);
  if (base[0] != '\0') {
    state.base = base;
  } else if (base.find_first_not_of('\0') != base.npos) {
    return BadMoments("the version of what learning began with begins with a zero");
  }
  values.remove_prefix(kBaseBytes);
  state.replica = TakeValue<uint64_t>(values);
  state.own_at_fit = state.all_at_fit = state.fitted_chunks;
  if (version != kVersionWithoutFits) {
    for (int64_t* count : {&state.own_at_fit, &state.all_at_fit}) KVBLEND_RETURN_IF_ERROR(take_count(*count));
    if (state.own_at_fit > state.fitted_chunks) {
      return BadMoments(absl::StrCat("the last fit had ", state.own_at_fit, " chunks; allowed: 0 to ",
                                     state.fitted_chunks));
    }
  }
  for (auto* side : {&state.fitted, &state.kept_back}) {
    side->assign(options.num_layers, PairMoments(options.channels(), KindOfMoments(options)));
    for (PairMoments& layer : *side) KVBLEND_RETURN_IF_ERROR(layer.TakeFrom(values));
  }
  return state;
}

}  // namespace kvblend::kv
