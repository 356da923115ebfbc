// The messages by which learners of the same model share what they have seen, so that each can fit all pairs:
// a note, and the moments in parts, each complete in itself. Little-endian; both begin as a learner's file
// does (engine/kv/learner_file.h):
//
//   note     0  "kvblnote", version (u32): 2, ...     part     0  "kvblpart", version (u32): 2, ...
//           64  whose it is (u64, not 0)                      64  whose it is
//           72  revision (u64)                                72  revision
//           80  chunks fitted, chunks kept back,              80  2 * layer, + 1 for what was kept back (u32)
//               tokens (u64)                                  84  zero (u32)
//          104  weight of what is fitted in the               88  moments (PairMoments::AppendTo)
//               first layer (f64)                            end  XXH3-64 of all bytes before it
//          112  last sign of life, in microseconds
//               since 1970 (i64)
//          120  1 where its server has ended (u32)
//          124  zero (u32)
//          128  XXH3-64 of all bytes before it
//
// Revisions increase, and the parts of a revision are written before its note. So a part that is older than
// its note is left over from something else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/kv/correction_learner.h"

namespace kvblend::kv {

struct MomentsNote {
  uint64_t replica = 0;
  uint64_t revision = 0;
  int64_t fitted_chunks = 0;
  int64_t kept_back_chunks = 0;
  int64_t tokens = 0;
  double weight = 0;     // of the pairs to be fitted, in the first layer
  int64_t alive_at = 0;  // when its server last gave a sign of life: microseconds since 1970, by its clock
  bool ended = false;    // that was the last one
};

/// What learners share whose moments can be added: 32 lower-case hexadecimal digits.
std::string MomentsSpace(const LearnerOptions& options);

int32_t NumMomentsParts(const LearnerOptions& options);
int64_t MomentsNoteBytes();
int64_t MomentsPartBytes(const LearnerOptions& options);

/// Without a sign of life. REQUIRES: sizes as the options say, and something was added.
MomentsNote NoteOf(const LearnerState& state, uint64_t revision);
std::string EncodeMomentsNote(const LearnerOptions& options, const MomentsNote& note);
std::string EncodeMomentsPart(const LearnerOptions& options, const LearnerState& state, uint64_t revision,
                              int32_t part);

/// kInvalidArgument naming what is wrong with the bytes, or of another model, anchoring, encoding or size
/// than the options'.
absl::StatusOr<MomentsNote> DecodeMomentsNote(const LearnerOptions& options, std::string_view bytes);
/// The same; also where it is another part, another replica's, or older than the note. No more memory than
/// the options' sizes.
absl::StatusOr<PairMoments> DecodeMomentsPart(const LearnerOptions& options, const MomentsNote& note,
                                              int32_t part, std::string_view bytes);

}  // namespace kvblend::kv
