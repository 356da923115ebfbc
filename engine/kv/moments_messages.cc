#include "engine/kv/moments_messages.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {
namespace {

constexpr std::string_view kNoteMagic = "kvblnote", kPartMagic = "kvblpart";
constexpr uint32_t kMessageVersion = 2;
constexpr int64_t kNoteBytes = 136, kPartHeader = 88;
/// In max_tokens: older pairs fade above 1, except beside a chunk that alone weighs more.
constexpr double kMostWeight = 2;

std::string Begin(std::string_view magic, const LearnerOptions& options, uint64_t replica,
                  uint64_t revision) {
  std::string bytes = LearnerPreamble(magic, kMessageVersion, options);
  PutValue(replica, bytes);
  PutValue(revision, bytes);
  return bytes;
}

template <typename... Parts>
absl::Status BadMessage(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

/// NaN is refused too.
absl::Status CheckWeight(const LearnerOptions& options, double weight) {
  const double most = kMostWeight * options.max_tokens;
  if (weight >= 0 && weight <= most) return absl::OkStatus();
  return BadMessage("the pairs weigh ", weight, "; allowed: 0 to ", most);
}

}  // namespace

std::string MomentsSpace(const LearnerOptions& options) {
  const std::string same = LearnerPreamble(kPartMagic, kMessageVersion, options);
  const XXH128_hash_t hash = XXH3_128bits(same.data(), same.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

int32_t NumMomentsParts(const LearnerOptions& options) { return 2 * options.num_layers; }

int64_t MomentsNoteBytes() { return kNoteBytes; }

int64_t MomentsPartBytes(const LearnerOptions& options) {
  return kPartHeader + PairMoments::EncodedBytes(options.channels(), KindOfMoments(options)) +
         static_cast<int64_t>(kSealBytes);
}

MomentsNote NoteOf(const LearnerState& state, uint64_t revision) {
  return {.replica = state.replica,
          .revision = revision,
          .fitted_chunks = state.fitted_chunks,
          .kept_back_chunks = state.kept_back_chunks,
          .tokens = state.tokens,
          .weight = state.fitted.front().weight()};
}

std::string EncodeMomentsNote(const LearnerOptions& options, const MomentsNote& note) {
  std::string bytes = Begin(kNoteMagic, options, note.replica, note.revision);
  for (const int64_t count : {note.fitted_chunks, note.kept_back_chunks, note.tokens}) PutValue(count, bytes);
  PutValue(note.weight, bytes);
  PutValue(note.alive_at, bytes);
  PutValue(static_cast<uint32_t>(note.ended), bytes);
  PutValue(uint32_t{0}, bytes);
  Seal(bytes);
  return bytes;
}

std::string EncodeMomentsPart(const LearnerOptions& options, const LearnerState& state, uint64_t revision,
                              int32_t part) {
  std::string bytes = Begin(kPartMagic, options, state.replica, revision);
  bytes.reserve(MomentsPartBytes(options));
  PutValue(static_cast<uint32_t>(part), bytes);
  PutValue(uint32_t{0}, bytes);
  (part % 2 == 0 ? state.fitted : state.kept_back)[part / 2].AppendTo(bytes);
  Seal(bytes);
  return bytes;
}

absl::StatusOr<MomentsNote> DecodeMomentsNote(const LearnerOptions& options, std::string_view bytes) {
  const std::string preamble = LearnerPreamble(kNoteMagic, kMessageVersion, options);
  KVBLEND_ASSIGN_OR_RETURN(std::string_view body, Unseal("a note of moments", preamble, bytes));
  if (bytes.size() != kNoteBytes)
    return BadMessage("a note has ", bytes.size(), " bytes; allowed: ", kNoteBytes);
  MomentsNote note;
  note.replica = TakeValue<uint64_t>(body);
  note.revision = TakeValue<uint64_t>(body);
  for (int64_t* count : {&note.fitted_chunks, &note.kept_back_chunks, &note.tokens}) {
    *count = TakeValue<int64_t>(body);
    // Sums over all replicas must not overflow.
    constexpr int64_t kMost = int64_t{1} << 48;
    if (*count < 0 || *count > kMost) return BadMessage("a count is ", *count, "; allowed: 0 to ", kMost);
  }
  note.weight = TakeValue<double>(body);
  KVBLEND_RETURN_IF_ERROR(CheckWeight(options, note.weight));
  note.alive_at = TakeValue<int64_t>(body);
  const auto ended = TakeValue<uint32_t>(body), zero = TakeValue<uint32_t>(body);
  if (ended > 1) return BadMessage("whether a server has ended is ", ended, "; allowed: 0, 1");
  if (zero != 0) return BadMessage("reserved bytes of a note are ", zero, "; allowed: 0");
  note.ended = ended == 1;
  if (note.replica == 0) return BadMessage("a note is of replica 0; allowed: any other");
  return note;
}

absl::StatusOr<PairMoments> DecodeMomentsPart(const LearnerOptions& options, const MomentsNote& note,
                                              int32_t part, std::string_view bytes) {
  const std::string preamble = LearnerPreamble(kPartMagic, kMessageVersion, options);
  KVBLEND_ASSIGN_OR_RETURN(std::string_view body, Unseal("moments", preamble, bytes));
  if (static_cast<int64_t>(bytes.size()) != MomentsPartBytes(options)) {
    return BadMessage("moments have ", bytes.size(), " bytes; allowed: ", MomentsPartBytes(options));
  }
  if (const auto replica = TakeValue<uint64_t>(body); replica != note.replica) {
    return BadMessage("moments are of replica ", absl::Hex(replica), " instead of ", absl::Hex(note.replica));
  }
  if (const auto revision = TakeValue<uint64_t>(body); revision < note.revision) {
    return BadMessage("moments are of revision ", revision, "; allowed: ", note.revision, " or later");
  }
  if (const auto found = TakeValue<uint32_t>(body); found != static_cast<uint32_t>(part)) {
    return BadMessage("moments are part ", found, " instead of ", part);
  }
  if (const auto zero = TakeValue<uint32_t>(body); zero != 0) {
    return BadMessage("reserved bytes of moments are ", zero, "; allowed: 0");
  }
  PairMoments moments(options.channels(), KindOfMoments(options));
  KVBLEND_RETURN_IF_ERROR(moments.TakeFrom(body));
  KVBLEND_RETURN_IF_ERROR(CheckWeight(options, moments.weight()));
  return moments;
}

}  // namespace kvblend::kv
