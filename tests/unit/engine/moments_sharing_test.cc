#include "engine/serve/sharing/moments_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/kv/learner_pairs.h"

namespace kvblend {
namespace {

using kv::CorrectionLearner;
using kv::PairMaker;
using kv::SmallLearner;

/// A board in this process, whose clock stands still.
class MemoryBoard final : public store::ReplicaBoard {
 public:
  absl::Status PutPart(const Place& place, int32_t part, std::string_view bytes,
                       absl::Duration ttl) override {
    const absl::Status put = Put(KeyOf(place, absl::StrCat(part)), bytes, ttl);
    parts_put += put.ok() ? 1 : 0;
    return put;
  }
  absl::Status PutNote(const Place& place, std::string_view bytes, absl::Duration ttl) override {
    return Put(KeyOf(place, "note"), bytes, ttl);
  }
  absl::StatusOr<bool> Prolong(const Place& place, int32_t num_parts, absl::Duration ttl) override {
    if (away) return absl::UnavailableError("away");
    ++prolonged;
    bool all_there = true;
    for (int32_t part = -1; part < num_parts; ++part) {
      Value* value = Find(KeyOf(place, part < 0 ? "note" : absl::StrCat(part)));
      all_there = all_there && value != nullptr;
      if (value != nullptr) value->expires = now + ttl;
    }
    return all_there;
  }
  absl::Status Remove(const Place& place, int32_t /*num_parts*/) override {
    if (away) return absl::UnavailableError("away");
    const std::string begin = KeyOf(place, "");
    for (auto value = values.begin(); value != values.end();) {
      value = value->first.rfind(begin, 0) == 0 ? values.erase(value) : std::next(value);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Note>> Notes(std::string_view space, int64_t note_bytes) override {
    if (away) return absl::UnavailableError("away");
    std::vector<Note> notes;
    for (auto& [key, value] : values) {
      if (key.rfind(std::string(space), 0) != 0 || key.find("/note") == key.npos || Find(key) == nullptr)
        continue;
      const std::string replica = key.substr(space.size() + 1, 16);
      if (replica == hidden) {
        notes.push_back({replica, absl::UnavailableError("its node is away")});
      } else if (static_cast<int64_t>(value.bytes.size()) != note_bytes) {
        notes.push_back({replica, absl::DataLossError("another size")});
      } else {
        notes.push_back({replica, value.bytes});
      }
    }
    return notes;
  }
  absl::StatusOr<std::string> Part(const Place& place, int32_t part, int64_t part_bytes) override {
    if (away || place.replica == hidden) return absl::UnavailableError("away");
    ++parts_read;
    const Value* value = Find(KeyOf(place, absl::StrCat(part)));
    if (value == nullptr) return absl::NotFoundError("evicted");
    if (static_cast<int64_t>(value->bytes.size()) != part_bytes) return absl::DataLossError("another size");
    return value->bytes;
  }

  struct Value {
    std::string bytes;
    absl::Time expires;
  };
  Value* Find(const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() || found->second.expires <= now ? nullptr : &found->second;
  }
  static std::string KeyOf(const Place& place, const std::string& what) {
    return absl::StrCat(place.space, "/", place.replica, "/", what);
  }

  absl::Time now = absl::FromUnixSeconds(1'000'000);
  std::map<std::string, Value> values;
  bool away = false;
  std::string hidden;  // a replica whose node is away
  int64_t parts_put = 0, prolonged = 0, parts_read = 0;

 private:
  absl::Status Put(const std::string& key, std::string_view bytes, absl::Duration ttl) {
    if (away) return absl::UnavailableError("away");
    values[key] = {std::string(bytes), now + ttl};
    return absl::OkStatus();
  }
};

/// A learner with its share in a board.
struct Replica {
  Replica(MemoryBoard& board, uint64_t name, bool left_before = false)
      : name(name),
        sharing(board, SmallLearner(), name, left_before,
                {.interval = absl::Minutes(1), .now = [&board] { return board.now; }}) {
    learner.SetReplica(name);
  }
  void Publish() {
    sharing.Publish(learner.state(), /*ends=*/false, [] { return true; });
  }
  std::optional<CorrectionLearner::Verdict> Fit() {
    auto verdict = learner.Fit([] { return true; }, &sharing);
    if (verdict.has_value()) {
      learner.NoteFit(*verdict);
      sharing.NoteFit();
    }
    return verdict;
  }

  const uint64_t name;
  CorrectionLearner learner{SmallLearner()};
  MomentsSharing sharing;
};

class MomentsSharingTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 40;

  void Teach(CorrectionLearner& learner, int chunks) {
    for (int i = 0; i < chunks; ++i) maker_.Teach(learner, kRows, i % 4 == 3);
  }
  std::string KeyOf(const Replica& replica, const std::string& what) const {
    return MemoryBoard::KeyOf(
        {kv::MomentsSpace(SmallLearner()), absl::StrCat(absl::Hex(replica.name, absl::kZeroPad16))}, what);
  }
  void Damage(const Replica& replica, const std::string& what) {
    std::string& bytes = board_.values.at(KeyOf(replica, what)).bytes;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
  }

  MemoryBoard board_;
  PairMaker maker_{3, 12};
};

TEST_F(MomentsSharingTest, EachFitsWhatAllHaveSeenEveryPairOnce) {
  Replica one(board_, 1), two(board_, 2), three(board_, 3);
  CorrectionLearner all(SmallLearner());
  for (int round = 0; round < 3; ++round) {  // each time a revision in place of the one before
    for (int i = 0; i < 24; ++i) {
      PairMaker::Chunk chunk = maker_.Make(kRows, i % 4 == 3);
      PairMaker::Teach(all, chunk);
      PairMaker::Teach(i % 3 == 0 ? one.learner : i % 3 == 1 ? two.learner : three.learner, chunk);
    }
    for (Replica* replica : {&one, &two, &three}) replica->Publish();
    board_.now += absl::Minutes(1);
    const auto expected = all.Fit([] { return true; });
    for (Replica* replica : {&one, &two, &three}) {
      replica->sharing.Look();
      EXPECT_EQ(replica->sharing.seen().learners, 2);
      const auto verdict = replica->Fit();
      ASSERT_TRUE(verdict.has_value());
      EXPECT_EQ(verdict->fitted_chunks, 18 * (round + 1));
      EXPECT_EQ(verdict->kept_back_chunks, 6 * (round + 1));
      EXPECT_EQ(verdict->correction.origin.tokens, all.state().tokens);
      for (int layer = 0; layer < 3; ++layer) {
        EXPECT_NEAR(verdict->after[layer], expected->after[layer], 1e-5);
        EXPECT_NEAR(verdict->deviations[layer], expected->deviations[layer], 1e-5);
      }
      EXPECT_EQ(replica->sharing.seen().new_chunks, 0);  // the fit had all of them
      EXPECT_EQ(replica->sharing.stats().replicas_merged, 2);
    }
  }
  EXPECT_EQ(one.sharing.stats().published, 3);
  EXPECT_EQ(one.sharing.stats().refused, 0);
}

TEST_F(MomentsSharingTest, AFitStopsBetweenTwoOthersAndLosesNone) {
  Replica one(board_, 1), two(board_, 2), reader(board_, 3);
  for (Replica* replica : {&one, &two, &reader}) {
    Teach(replica->learner, 24);
    replica->Publish();
  }
  reader.sharing.Look();
  int asked = 0;
  EXPECT_FALSE(reader.learner.Fit([&] { return ++asked < 2; }, &reader.sharing).has_value());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(board_.parts_read, 2);  // of the first
  EXPECT_EQ(reader.sharing.seen().learners, 2);
  EXPECT_EQ(reader.sharing.stats().failures + reader.sharing.stats().refused, 0);
}

TEST_F(MomentsSharingTest, WhatAnEarlierProcessLeftUnderTheSameNameIsNotCountedAgain) {
  Replica before(board_, 7);
  Teach(before.learner, 24);
  before.Publish();
  Replica after(board_, 7, /*left_before=*/true);
  kv::LearnerState recalled = before.learner.state();
  after.learner.Restore(std::move(recalled));
  after.sharing.Look();
  EXPECT_EQ(after.sharing.seen().fitted_chunks, 0);
  after.Publish();
  Replica other(board_, 8);
  other.sharing.Look();
  EXPECT_EQ(other.sharing.seen().fitted_chunks, 18);
  EXPECT_EQ(other.sharing.seen().new_chunks, 18);
}

TEST_F(MomentsSharingTest, WritesAreBoundedByGrowthAndByTime) {
  Replica one(board_, 1);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 0);  // nothing was seen
  Teach(one.learner, 1);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 6);  // two parts for each of three layers
  Teach(one.learner, 100);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 6);  // not before the interval is over
  board_.now += absl::Minutes(1);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 12);
  Teach(one.learner, 2);  // 2 of 103 are less than a thirty-second part
  board_.now += absl::Minutes(1);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 12);
  Teach(one.learner, 1);
  one.Publish();
  EXPECT_EQ(board_.parts_put, 18);
  Teach(one.learner, 1);  // at the end everything is told
  one.sharing.Publish(one.learner.state(), /*ends=*/true, [] { return true; });
  EXPECT_EQ(board_.parts_put, 24);
  one.sharing.Publish(one.learner.state(), /*ends=*/true, [] { return true; });
  EXPECT_EQ(board_.parts_put, 24);
  EXPECT_EQ(one.sharing.stats().published, 4);
}

TEST_F(MomentsSharingTest, TheLivingStayAndTheDeadGo) {
  Replica living(board_, 1), dead(board_, 2), reader(board_, 3);
  Teach(living.learner, 8);
  Teach(dead.learner, 8);
  dead.Publish();
  for (int minute = 0; minute < 70; ++minute) {
    living.Publish();
    board_.now += absl::Minutes(1);
  }
  EXPECT_EQ(board_.parts_put, 12);
  EXPECT_LE(board_.prolonged, 4);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 1);
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 6);
  board_.values.erase(KeyOf(living, "3"));  // evicted: found out when it is to be prolonged
  for (int minute = 0; minute < 30; ++minute) {
    living.Publish();
    board_.now += absl::Minutes(1);
  }
  EXPECT_NE(board_.Find(KeyOf(living, "3")), nullptr);
  EXPECT_EQ(board_.parts_put, 18);
}

/// What it has seen is of use, but nobody waits for it.
TEST_F(MomentsSharingTest, AServerThatHasEndedIsNoLearnerAnyMore) {
  Replica ended(board_, 1), reader(board_, 2);
  Teach(ended.learner, 100);
  ended.Publish();
  Teach(ended.learner, 1);
  const auto expect = [&](int32_t learners, int64_t fitted_chunks) {
    reader.sharing.Look();
    EXPECT_EQ(reader.sharing.seen().learners, learners);
    EXPECT_EQ(reader.sharing.seen().fitted_chunks, fitted_chunks);
  };
  expect(1, 75);
  const auto end = [&] { ended.sharing.Publish(ended.learner.state(), /*ends=*/true, [] { return true; }); };
  end();
  expect(0, 76);
  const auto verdict = reader.Fit();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->fitted_chunks, 76);
  Replica again(board_, 1, /*left_before=*/true);  // with its disk
  again.learner.Restore(ended.learner.state());
  again.Publish();
  expect(1, 76);
  again.sharing.Publish(again.learner.state(), /*ends=*/true,
                        [] { return true; });  // nothing new: the note alone
  EXPECT_EQ(board_.parts_put, 18);
  expect(0, 76);
}

/// When all servers are reset, what those left that are gone does not come back.
TEST_F(MomentsSharingTest, AfterAResetOnlyThoseCountThatGiveASignOfLife) {
  Replica living(board_, 1), gone(board_, 2), reader(board_, 3);
  for (Replica* replica : {&living, &gone}) {
    Teach(replica->learner, 24);
    replica->Publish();
  }
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 2 * 18);
  board_.now += absl::Seconds(1);
  reader.sharing.Forget();
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 0);
  EXPECT_EQ(reader.sharing.stats().replicas_found, 0);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 0);
  board_.now += absl::Minutes(1);
  living.Publish();  // has nothing new
  EXPECT_EQ(board_.parts_put, 12);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 18);
  EXPECT_EQ(reader.sharing.seen().new_chunks, 18);
  EXPECT_EQ(reader.sharing.stats().refused, 0);
}

TEST_F(MomentsSharingTest, WhatIsDamagedForeignOrOldIsRefusedAndCountedOnce) {
  Replica good(board_, 1), bad(board_, 2), reader(board_, 3);
  Teach(good.learner, 24);
  Teach(bad.learner, 24);
  good.Publish();
  bad.Publish();
  const auto fit = [&] {
    reader.sharing.Look();
    auto verdict = reader.Fit();
    if (!verdict.has_value()) verdict = reader.Fit();  // without whom it could not read
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->fitted_chunks, 18);
    EXPECT_EQ(reader.sharing.stats().replicas_merged, 1);
  };
  const auto old_part = board_.values.at(KeyOf(bad, "5"));
  int64_t refused = 0;
  for (const char* what : {"0", "5", "note", "evicted", "foreign", "old", "large"}) {
    SCOPED_TRACE(what);
    Teach(bad.learner, 24);
    board_.now += absl::Minutes(1);
    bad.Publish();
    if (what == std::string("evicted")) {
      board_.values.erase(KeyOf(bad, "2"));
    } else if (what == std::string("foreign")) {
      board_.values[KeyOf(bad, "note")] = board_.values[KeyOf(good, "note")];
    } else if (what == std::string("old")) {
      board_.values[KeyOf(bad, "5")] = old_part;
    } else if (what == std::string("large")) {
      board_.values[KeyOf(bad, "note")].bytes += "more";
    } else {
      Damage(bad, what);
    }
    fit();
    EXPECT_EQ(reader.sharing.stats().refused, ++refused);
    fit();  // it is not asked for again
    EXPECT_EQ(reader.sharing.stats().refused, refused);
    EXPECT_EQ(reader.sharing.stats().replicas_found, 1);
  }
  Teach(bad.learner, 24);
  board_.now += absl::Minutes(1);
  bad.Publish();  // another revision, and sound
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 2);
  EXPECT_TRUE(reader.Fit().has_value());
  EXPECT_EQ(reader.sharing.stats().failures, 0);
}

TEST_F(MomentsSharingTest, WhileTheBoardIsAwayNothingIsLost) {
  Replica one(board_, 1), two(board_, 2), reader(board_, 3);
  for (Replica* replica : {&one, &two}) {
    Teach(replica->learner, 24);
    replica->Publish();
  }
  Teach(reader.learner, 24);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 2);
  board_.away = true;
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 2);  // as it was
  EXPECT_FALSE(reader.Fit().has_value());
  EXPECT_FALSE(reader.Fit().has_value());
  ASSERT_TRUE(reader.Fit().has_value());  // alone
  EXPECT_EQ(reader.sharing.stats().replicas_merged, 0);
  reader.Publish();
  EXPECT_EQ(reader.sharing.stats().published, 0);
  EXPECT_EQ(reader.sharing.stats().failures, 4);
  EXPECT_EQ(reader.sharing.stats().refused, 0);
  board_.away = false;
  board_.now += absl::Minutes(1);
  reader.Publish();
  EXPECT_EQ(reader.sharing.stats().published, 1);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().new_chunks, 2 * 18);  // what the fit alone did not have
  ASSERT_TRUE(reader.Fit().has_value());

  board_.hidden = absl::StrCat(absl::Hex(1, absl::kZeroPad16));  // one node of several
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 2);
  EXPECT_FALSE(reader.Fit().has_value());
  ASSERT_TRUE(reader.Fit().has_value());
  EXPECT_EQ(reader.sharing.stats().replicas_merged, 1);
}

TEST_F(MomentsSharingTest, WhatIsWithdrawnIsGoneAsSoonAsItCanBe) {
  Replica one(board_, 1), frozen(board_, 2, /*left_before=*/true);
  Teach(one.learner, 24);
  one.Publish();
  board_.away = true;
  one.sharing.Withdraw();
  board_.away = false;
  EXPECT_FALSE(board_.values.empty());
  one.sharing.Withdraw();
  EXPECT_TRUE(board_.values.empty());
  board_.away = true;
  one.sharing.Withdraw();  // there is nothing left to do
  EXPECT_EQ(one.sharing.stats().failures, 1);
  frozen.sharing.Withdraw();  // what an earlier process may have left
  EXPECT_EQ(frozen.sharing.stats().failures, 1);
  board_.away = false;
  one.learner.Reset("");
  Teach(one.learner, 4);
  one.Publish();  // at once, and only what came since
  Replica reader(board_, 3);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().fitted_chunks, 3);
}

TEST_F(MomentsSharingTest, WhoStopsWhileItPublishesLeavesNothingThatIsFound) {
  Replica one(board_, 1), reader(board_, 2);
  Teach(one.learner, 24);
  int parts = 0;
  one.sharing.Publish(one.learner.state(), /*ends=*/true, [&] { return ++parts <= 3; });
  EXPECT_EQ(board_.parts_put, 3);
  EXPECT_EQ(one.sharing.stats().published, 0);
  reader.sharing.Look();
  EXPECT_EQ(reader.sharing.seen().learners, 0);
  one.sharing.Withdraw();
  EXPECT_TRUE(board_.values.empty());
}

TEST_F(MomentsSharingTest, OfManyReplicasThoseCountThatHaveSeenTheMost) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int i = 0; i < MomentsSharing::kMaxReplicas + 4; ++i) {
    replicas.push_back(std::make_unique<Replica>(board_, i + 1));
    Teach(replicas.back()->learner, 4 + 4 * (i % 7));
    replicas.back()->Publish();
  }
  std::vector<int64_t> fitted;
  for (size_t i = 1; i < replicas.size(); ++i) fitted.push_back(replicas[i]->learner.state().fitted_chunks);
  std::sort(fitted.rbegin(), fitted.rend());
  int64_t most = 0;
  for (int i = 0; i < MomentsSharing::kMaxReplicas; ++i) most += fitted[i];
  MomentsSharing& sharing = replicas[0]->sharing;
  sharing.Look();
  EXPECT_EQ(sharing.seen().learners, MomentsSharing::kMaxReplicas);
  EXPECT_EQ(sharing.seen().fitted_chunks, most);
  ASSERT_TRUE(replicas[0]->Fit().has_value());
  EXPECT_EQ(board_.parts_read, 6 * MomentsSharing::kMaxReplicas);
}

TEST_F(MomentsSharingTest, NamesDifferAndTurnsComeAtIntervals) {
  EXPECT_NE(MomentsSharing::NewReplica(), 0);
  EXPECT_NE(MomentsSharing::NewReplica(), MomentsSharing::NewReplica());
  Replica one(board_, 0x1FF);
  EXPECT_EQ(one.sharing.next_turn(), absl::InfinitePast());
  one.sharing.EndTurn();
  EXPECT_GT(one.sharing.next_turn(), board_.now + absl::Minutes(1));  // a little later than others
  EXPECT_LT(one.sharing.next_turn(), board_.now + absl::Minutes(1.25));
}

}  // namespace
}  // namespace kvblend
