#include "engine/kv/moments_messages.h"

#define XXH_INLINE_ALL
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <limits>
#include <set>

#include "tests/unit/kv/learner_pairs.h"

namespace kvblend::kv {
namespace {

using testing::HasSubstr;

class MomentsMessagesTest : public testing::Test {
 protected:
  MomentsMessagesTest() {
    learner_.SetReplica(0xABCD);
    for (int i = 0; i < 6; ++i) maker_.Teach(learner_, 10, i % 3 == 2, 0.5);
    note_ = NoteOf(learner_.state(), 7);
    note_.alive_at = 1'700'000'000'000'000;
    note_.ended = true;
  }

  static std::string Resealed(std::string bytes) {
    bytes.resize(bytes.size() - sizeof(uint64_t));
    const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
    bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
    return bytes;
  }
  /// What is said of bytes whose value at `at` is another.
  template <typename T, typename Decode>
  static std::string Error(std::string bytes, size_t at, T value, const Decode& decode) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return std::string(decode(Resealed(std::move(bytes))).status().message());
  }
  std::string Part(int32_t part) const {
    return EncodeMomentsPart(SmallLearner(), learner_.state(), 7, part);
  }

  PairMaker maker_{3, 12};
  CorrectionLearner learner_{SmallLearner()};
  MomentsNote note_;
};

TEST_F(MomentsMessagesTest, WhatIsReadIsWhatWasSeen) {
  const std::string bytes = EncodeMomentsNote(SmallLearner(), note_);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), MomentsNoteBytes());
  const absl::StatusOr<MomentsNote> note = DecodeMomentsNote(SmallLearner(), bytes);
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_EQ(note->replica, 0xABCD);
  EXPECT_EQ(note->revision, 7);
  EXPECT_EQ(note->fitted_chunks, 4);
  EXPECT_EQ(note->kept_back_chunks, 2);
  EXPECT_EQ(note->tokens, 60);
  EXPECT_EQ(note->weight, learner_.state().fitted.front().weight());
  EXPECT_EQ(note->alive_at, note_.alive_at);
  EXPECT_TRUE(note->ended);
  EXPECT_EQ(NumMomentsParts(SmallLearner()), 6);
  for (int32_t part = 0; part < 6; ++part) {
    const std::string of_part = Part(part);
    EXPECT_EQ(static_cast<int64_t>(of_part.size()), MomentsPartBytes(SmallLearner()));
    const absl::StatusOr<PairMoments> moments = DecodeMomentsPart(SmallLearner(), *note, part, of_part);
    ASSERT_TRUE(moments.ok()) << moments.status();
    std::string actual, expected;
    moments->AppendTo(actual);
    const LearnerState& state = learner_.state();
    (part % 2 == 0 ? state.fitted : state.kept_back)[part / 2].AppendTo(expected);
    EXPECT_EQ(actual, expected);
  }
}

TEST_F(MomentsMessagesTest, EveryChangedByteAndEveryShorterMessageIsRefused) {
  const std::string note = EncodeMomentsNote(SmallLearner(), note_), part = Part(3);
  const auto note_ok = [](std::string_view bytes) { return DecodeMomentsNote(SmallLearner(), bytes).ok(); };
  const auto part_ok = [&](std::string_view bytes) {
    return DecodeMomentsPart(SmallLearner(), note_, 3, bytes).ok();
  };
  for (size_t i = 0; i < part.size(); ++i) {
    std::string bad = part;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(part_ok(bad)) << i;
    EXPECT_FALSE(part_ok(part.substr(0, i))) << i;
    if (i >= note.size()) continue;
    bad = note;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(note_ok(bad)) << i;
    EXPECT_FALSE(note_ok(note.substr(0, i))) << i;
  }
  EXPECT_FALSE(note_ok(Resealed(note + "more")));
  EXPECT_FALSE(part_ok(Resealed(part + "more")));
  EXPECT_FALSE(note_ok(part));
  EXPECT_FALSE(part_ok(note));
}

TEST_F(MomentsMessagesTest, WhatIsOfSomethingElseIsRefusedAndLiesElsewhere) {
  const std::string note = EncodeMomentsNote(SmallLearner(), note_), part = Part(3);
  std::set<std::string> spaces = {MomentsSpace(SmallLearner())};
  EXPECT_EQ(spaces.begin()->size(), 32);
  const auto expect_refused = [&](auto change) {
    LearnerOptions options = SmallLearner();
    change(options);
    EXPECT_TRUE(spaces.insert(MomentsSpace(options)).second);
    for (const absl::Status& status :
         {DecodeMomentsNote(options, note).status(), DecodeMomentsPart(options, note_, 3, part).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("it is of another version, model, anchoring"));
    }
  };
  expect_refused([](auto& o) { o.model_fingerprint[31] ^= 1; });
  expect_refused([](auto& o) { o.anchoring = Anchoring::kIsolated; });
  expect_refused([](auto& o) { o.encoding = 3; });
  expect_refused([](auto& o) { o.num_layers = 4; });
  expect_refused([](auto& o) { o.num_kv_heads = 2; });
  expect_refused([](auto& o) { o.head_dim = 5; });
  expect_refused([](auto& o) { o.max_bytes = 1; });
}

TEST_F(MomentsMessagesTest, PartsOfOthersAndOldOnesAreRefused) {
  const std::string part = Part(3);
  const auto error = [&](const MomentsNote& note, int32_t number) {
    return std::string(DecodeMomentsPart(SmallLearner(), note, number, part).status().message());
  };
  EXPECT_EQ(error(note_, 3), "");
  EXPECT_THAT(error(note_, 2), HasSubstr("part 3 instead of 2"));
  MomentsNote other = note_;
  other.replica = 0xABCE;
  EXPECT_THAT(error(other, 3), HasSubstr("of replica abcd instead of abce"));
  other = note_;
  other.revision = 8;
  EXPECT_THAT(error(other, 3), HasSubstr("revision 7; allowed: 8 or later"));
  other.revision = 6;  // a part of what is being written now
  EXPECT_EQ(error(other, 3), "");
}

TEST_F(MomentsMessagesTest, NumbersThatNoPairsGiveAreRefused) {
  const auto note_error = [&](size_t at, auto value) {
    return Error(EncodeMomentsNote(SmallLearner(), note_), at, value,
                 [](const std::string& bytes) { return DecodeMomentsNote(SmallLearner(), bytes); });
  };
  EXPECT_EQ(note_error(80, int64_t{5}), "");
  EXPECT_THAT(note_error(64, int64_t{0}), HasSubstr("replica 0; allowed: any other"));
  EXPECT_THAT(note_error(80, int64_t{-5}), HasSubstr("a count is -5; allowed: 0 to"));
  EXPECT_THAT(note_error(96, int64_t{1} << 62), HasSubstr("allowed: 0 to"));
  EXPECT_THAT(note_error(104, -1.0), HasSubstr("the pairs weigh -1; allowed: 0 to 262144"));
  EXPECT_THAT(note_error(104, std::numeric_limits<double>::quiet_NaN()), HasSubstr("the pairs weigh"));
  EXPECT_EQ(note_error(120, uint32_t{0}), "");
  EXPECT_THAT(note_error(120, uint32_t{2}), HasSubstr("whether a server has ended is 2; allowed: 0, 1"));
  EXPECT_THAT(note_error(124, uint32_t{1}), HasSubstr("reserved bytes of a note are 1; allowed: 0"));
  const auto part_error = [&](size_t at, auto value) {
    return Error(Part(3), at, value, [&](const std::string& bytes) {
      return DecodeMomentsPart(SmallLearner(), note_, 3, bytes);
    });
  };
  EXPECT_THAT(part_error(84, uint32_t{1}), HasSubstr("reserved bytes of moments are 1; allowed: 0"));
  EXPECT_THAT(part_error(88, int64_t{-1}), HasSubstr("a number of pairs is -1"));
  EXPECT_THAT(part_error(88, std::numeric_limits<int64_t>::max()), HasSubstr("a number of pairs is 9223"));
  EXPECT_THAT(part_error(96, 1e9),
              HasSubstr("the pairs weigh 1e+09"));  // one replica must not drown the others
}

}  // namespace
}  // namespace kvblend::kv
