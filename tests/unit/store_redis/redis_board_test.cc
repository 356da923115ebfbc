#include "engine/store/redis/board/redis_board.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kSpace[] = "00ff";

class RedisBoardTest : public RedisTierTest {
 protected:
  static ReplicaBoard::Place PlaceOf(const std::string& replica) { return {kSpace, replica}; }

  /// Three parts and their note.
  static void Leave(ReplicaBoard& board, const std::string& replica, const std::string& what = "note") {
    for (int32_t part = 0; part < 3; ++part) {
      ASSERT_TRUE(board.PutPart(PlaceOf(replica), part, absl::StrCat(what, part), kTtl).ok());
    }
    ASSERT_TRUE(board.PutNote(PlaceOf(replica), what, kTtl).ok());
  }
  static std::set<std::string> Found(ReplicaBoard& board) {
    std::set<std::string> found;
    const auto notes = board.Notes(kSpace, 4);
    EXPECT_TRUE(notes.ok()) << notes.status();
    for (const ReplicaBoard::Note& note : *notes) {
      found.insert(
          absl::StrCat(note.replica, " ",
                       note.bytes.ok() ? *note.bytes : absl::StatusCodeToString(note.bytes.status().code())));
    }
    return found;
  }
  static std::string KeyOf(const std::string& replica, const std::string& what) {
    return absl::StrCat("kvb1:moments:{", kSpace, ":", replica, "}:", what);
  }
  static std::string SpaceKey() { return absl::StrCat("kvb1:moments:{", kSpace, "}"); }
};

TEST_F(RedisBoardTest, WhatOneReplicaLeavesTheOthersFindInAClusterAndInOneServer) {
  FakeRedis single(0);
  for (FakeRedis* redis : {&redis_, &single}) {
    const auto one = OpenTier(TierOptions(*redis)), other = OpenTier(TierOptions(*redis));
    EXPECT_THAT(Found(*other->replica_board()), IsEmpty());
    Leave(*one->replica_board(), "1a");
    Leave(*one->replica_board(), "2b", "NOTE");
    EXPECT_THAT(Found(*other->replica_board()), UnorderedElementsAre("1a note", "2b NOTE"));
    EXPECT_EQ(*other->replica_board()->Part(PlaceOf("2b"), 2, 5), "NOTE2");
    Leave(*one->replica_board(), "1a", "next");  // in place of what was there
    EXPECT_THAT(Found(*one->replica_board()), UnorderedElementsAre("1a next", "2b NOTE"));
    EXPECT_EQ(*other->replica_board()->Part(PlaceOf("1a"), 0, 5), "next0");
    EXPECT_TRUE(other->replica_board()->Notes("00fe", 4)->empty());  // another space
  }
}

TEST_F(RedisBoardTest, AReplicaHasOneNodeAndTheyAreSpread) {
  const auto tier = OpenTier();
  std::set<int32_t> nodes;
  for (int i = 0; i < 20; ++i) {
    const std::string replica = absl::StrCat(absl::Hex(i, absl::kZeroPad16));
    Leave(*tier->replica_board(), replica);
    nodes.insert(redis_.NodeOf(KeyOf(replica, "note")));
    for (const char* part : {"0", "1", "2"}) {
      EXPECT_EQ(redis_.NodeOf(KeyOf(replica, part)), redis_.NodeOf(KeyOf(replica, "note")));
      EXPECT_NE(redis_.Get(KeyOf(replica, part)), std::nullopt);
    }
  }
  EXPECT_EQ(nodes.size(), 3);
}

TEST_F(RedisBoardTest, WhatIsNotProlongedGoesPartsLast) {
  const auto tier = OpenTier();
  ReplicaBoard& board = *tier->replica_board();
  Leave(board, "1a");
  Leave(board, "2b");
  EXPECT_EQ(redis_.TtlSeconds(KeyOf("1a", "note")), absl::ToInt64Seconds(kTtl));
  EXPECT_GT(redis_.TtlSeconds(KeyOf("1a", "2")), absl::ToInt64Seconds(kTtl));
  EXPECT_GT(redis_.TtlSeconds(SpaceKey()), absl::ToInt64Seconds(kTtl));
  redis_.clock().Advance(kTtl - absl::Seconds(1));
  const absl::StatusOr<bool> prolonged = board.Prolong(PlaceOf("1a"), 3, kTtl);
  ASSERT_TRUE(prolonged.ok()) << prolonged.status();
  EXPECT_TRUE(*prolonged);
  redis_.clock().Advance(absl::Seconds(2));
  EXPECT_THAT(Found(board), ElementsAre("1a note"));
  AwaitWrites(*tier);
  EXPECT_THAT(redis_.Members(SpaceKey()), ElementsAre("1a"));
  EXPECT_EQ(*board.Part(PlaceOf("2b"), 1, 5), "note1");  // for who has just read its note
  redis_.clock().Advance(absl::Minutes(2));
  EXPECT_EQ(board.Part(PlaceOf("2b"), 1, 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*board.Prolong(PlaceOf("2b"), 3, kTtl));
  redis_.Erase(KeyOf("1a", "1"));  // as an eviction does
  EXPECT_FALSE(*board.Prolong(PlaceOf("1a"), 3, kTtl));
}

TEST_F(RedisBoardTest, WhatIsRemovedIsGone) {
  const auto tier = OpenTier();
  Leave(*tier->replica_board(), "1a");
  Leave(*tier->replica_board(), "2b");
  ASSERT_TRUE(tier->replica_board()->Remove(PlaceOf("1a"), 3).ok());
  EXPECT_THAT(Found(*tier->replica_board()), ElementsAre("2b note"));
  for (const std::string& key : redis_.Keys()) EXPECT_THAT(key, Not(HasSubstr("1a")));
  EXPECT_THAT(redis_.Members(SpaceKey()), ElementsAre("2b"));
}

TEST_F(RedisBoardTest, PartsWithoutANoteAreNotFound) {
  const auto tier = OpenTier();
  ASSERT_TRUE(tier->replica_board()->PutPart(PlaceOf("1a"), 0, "half", kTtl).ok());
  EXPECT_THAT(Found(*tier->replica_board()), IsEmpty());
}

TEST_F(RedisBoardTest, WhatStandsInPlaceOfANoteOrAPartIsDataLossAndCostsNoConnection) {
  const auto tier = OpenTier();
  ReplicaBoard& board = *tier->replica_board();
  for (const char* replica : {"1a", "2b", "3c"}) Leave(board, replica);
  redis_.Set(KeyOf("1a", "note"), std::string(int64_t{8} << 20, 'x'));
  redis_.Erase(KeyOf("2b", "note"));
  redis_.AddMember(KeyOf("2b", "note"), "a set");
  EXPECT_THAT(Found(board), UnorderedElementsAre("1a DATA_LOSS", "2b DATA_LOSS", "3c note"));
  redis_.Set(KeyOf("3c", "1"), std::string(int64_t{8} << 20, 'x'));
  const absl::Status status = board.Part(PlaceOf("3c"), 1, 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("8388608 bytes; allowed: 5"));
  EXPECT_EQ(*board.Part(PlaceOf("3c"), 2, 5), "note2");
  EXPECT_EQ(tier->Stats().breaker_opens, 0);
}

TEST_F(RedisBoardTest, NamesThatAreNoneAreTakenOutAndThereAreNoMoreThanMayBe) {
  const auto tier = OpenTier();
  for (const char* name : {"1A", "../etc", "1a}:x", "", "0123456789abcdef0123456789abcdef0"}) {
    redis_.AddMember(SpaceKey(), name);
  }
  Leave(*tier->replica_board(), "1a");
  EXPECT_THAT(Found(*tier->replica_board()), ElementsAre("1a note"));
  AwaitWrites(*tier);
  EXPECT_THAT(redis_.Members(SpaceKey()), ElementsAre("1a"));
  for (int i = 0; i < ReplicaBoard::kMaxNotes + 5; ++i) {
    ASSERT_TRUE(tier->replica_board()
                    ->PutNote(PlaceOf(absl::StrCat(absl::Hex(i, absl::kZeroPad4))), "note", kTtl)
                    .ok());
  }
  EXPECT_EQ(Found(*tier->replica_board()).size(), ReplicaBoard::kMaxNotes);
}

TEST_F(RedisBoardTest, ARedisThatIsAwayOrFullSaysSoAtOnce) {
  RedisTier::Options options = TierOptions();
  options.max_value_bytes = 8;
  const auto tier = OpenTier(options);
  ReplicaBoard& board = *tier->replica_board();
  EXPECT_EQ(board.PutPart(PlaceOf("1a"), 0, "nine bytes", kTtl).code(), absl::StatusCode::kResourceExhausted);
  redis_.ReplyTo("SET", {.execute = false, .instead = "-OOM command not allowed\r\n"});
  EXPECT_EQ(board.PutPart(PlaceOf("1a"), 0, "part", kTtl).code(), absl::StatusCode::kResourceExhausted);
  redis_.SetScript(nullptr);
  Leave(board, "1a");
  for (int node = 0; node < 3; ++node) redis_.Kill(node);
  EXPECT_EQ(board.PutPart(PlaceOf("1a"), 0, "part", kTtl).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board.PutNote(PlaceOf("1a"), "note", kTtl).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board.Prolong(PlaceOf("1a"), 3, kTtl).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board.Remove(PlaceOf("1a"), 3).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board.Notes(kSpace, 4).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board.Part(PlaceOf("1a"), 0, 5).status().code(), absl::StatusCode::kUnavailable);
  for (int node = 0; node < 3; ++node) redis_.Revive(node);
  Recover(*tier);
  EXPECT_THAT(Found(board), ElementsAre("1a note"));
}

TEST_F(RedisBoardTest, ANodeThatIsAwayHidesOnlyWhatItHas) {
  const auto tier = OpenTier();
  std::map<int32_t, std::string> replica_on;
  for (int i = 0; replica_on.size() < 3; ++i) {
    const std::string replica = absl::StrCat(absl::Hex(i, absl::kZeroPad16));
    if (replica_on.emplace(redis_.NodeOf(KeyOf(replica, "note")), replica).second) {
      Leave(*tier->replica_board(), replica);
    }
  }
  const int32_t names = redis_.NodeOf(SpaceKey()), away = (names + 1) % 3;
  redis_.Kill(away);
  const auto found = Found(*tier->replica_board());
  EXPECT_EQ(found.size(), 3);
  EXPECT_EQ(found.count(replica_on[away] + " UNAVAILABLE"), 1);
  EXPECT_EQ(found.count(replica_on[names] + " note"), 1);
}

}  // namespace
}  // namespace kvblend::store
