// What full prefill gave is kept, found again, and never believed when it is damaged or another prompt's.
#include "server/cli/bench/reference_cache.h"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/files.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/cli/bench_engine.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class ReferenceCacheTest : public testing::Test {
 protected:
  ReferenceCache Open() {
    auto cache = ReferenceCache::Open(folder_.string(),
                                      [this](std::string_view what) { warnings_.emplace_back(what); });
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }

  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) files.push_back(entry.path());
    return files;
  }

  /// Gets `key`, which would be computed as `number`; what came of it.
  float Get(const OrderedJson& key, float number) {
    ReferenceCache cache = Open();
    const auto part = cache.GetOrCompute(key, [&]() -> absl::StatusOr<ReferencePart> {
      ReferencePart computed;
      computed.prompt.set_prompt_tokens(7);
      computed.text = "text";
      for (int i = 0; i < 2; ++i) {
        v1::ScoredToken& token = computed.tokens.emplace_back();
        token.set_token_id(i);
        token.add_distribution(number);
        token.add_distribution(0.1f);  // not exact in few digits
      }
      return computed;
    });
    EXPECT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->prompt.prompt_tokens(), 7);
    EXPECT_EQ(part->text, "text");
    EXPECT_THAT(part->tokens, SizeIs(2));
    EXPECT_EQ(part->tokens[1].token_id(), 1);
    EXPECT_EQ(part->tokens[1].distribution(1), 0.1f);
    return part->tokens[0].distribution(0);
  }

  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = std::filesystem::path(temporary_folder_.path()) / "made" / "for it";
  std::vector<std::string> warnings_;
};

TEST_F(ReferenceCacheTest, KeepsOnePartPerKey) {
  EXPECT_EQ(Get({{"prompt", "a"}}, 1), 1);
  EXPECT_EQ(Get({{"prompt", "b"}}, 2), 2);
  EXPECT_EQ(Get({{"prompt", "a"}}, 3), 1);
  EXPECT_EQ(Get({{"prompt", "b"}}, 3), 2);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(Files(), SizeIs(2));
}

TEST_F(ReferenceCacheTest, DamageIsSaidAndMended) {
  const OrderedJson key = {{"prompt", "a"}};
  Get(key, 1);
  ASSERT_THAT(Files(), SizeIs(1));
  const std::string path = Files().front().string();
  const std::string whole = *ReadFileOrStdin(path);
  for (size_t i = 0; i <= whole.size(); ++i) {
    std::string damaged = whole;
    i == whole.size() ? damaged.resize(i / 2) : static_cast<void>(damaged[i] ^= 1);
    ASSERT_TRUE(WriteFile(path, damaged).ok());
    warnings_.clear();
    EXPECT_EQ(Get(key, 5), 5) << "byte " << i;
    ASSERT_THAT(warnings_, ElementsAre(HasSubstr(path))) << "byte " << i;
    EXPECT_THAT(warnings_.front(), HasSubstr("computed again"));
    EXPECT_EQ(Get(key, 6), 5) << "mended";
  }
}

TEST_F(ReferenceCacheTest, AnotherKeysFileIsNotBelieved) {
  Get({{"prompt", "a"}}, 1);
  const std::filesystem::path a = Files().front();
  const std::filesystem::path aside = std::filesystem::path(temporary_folder_.path()) / "aside";
  std::filesystem::rename(a, aside);
  Get({{"prompt", "b"}}, 2);
  std::filesystem::rename(aside, Files().front());
  EXPECT_EQ(Get({{"prompt", "b"}}, 3), 3);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("another prompt or other settings")));
}

// As on a full disk: no file may grow.
TEST_F(ReferenceCacheTest, WhatCouldNotBeWrittenLeavesNothing) {
  ReferenceCache cache = Open();
  const auto compute = []() -> absl::StatusOr<ReferencePart> { return ReferencePart(); };
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto part = cache.GetOrCompute({{"a", 1}}, compute);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument) << part.status();
  EXPECT_THAT(Files(), IsEmpty());
  // Nor does what cannot get its name.
  ASSERT_TRUE(cache.GetOrCompute({{"a", 1}}, compute).ok());
  const std::filesystem::path name = Files().at(0);
  std::filesystem::remove(name);
  std::filesystem::create_directory(name);
  EXPECT_THAT(cache.GetOrCompute({{"a", 1}}, compute).status().ToString(), HasSubstr("cannot write"));
  EXPECT_THAT(Files(), ElementsAre(name));
}

TEST_F(ReferenceCacheTest, WhatWasLeftHalfWrittenIsRemovedLater) {
  Open();
  const auto now = std::filesystem::file_time_type::clock::now();
  const auto write = [&](const std::string& name, std::chrono::hours ago) {
    ASSERT_TRUE(WriteFile((folder_ / name).string(), "x").ok());
    std::filesystem::last_write_time(folder_ / name, now - ago);
  };
  write("left.reference.12", std::chrono::hours(2));
  write("goes_on.reference.13", std::chrono::hours(0));
  write("whole.reference", std::chrono::hours(1000));
  write("mine.reference.txt", std::chrono::hours(1000));
  write("mine.12", std::chrono::hours(1000));
  Open();
  std::vector<std::string> names;
  for (const std::filesystem::path& path : Files()) names.push_back(path.filename().string());
  EXPECT_THAT(names, UnorderedElementsAre("goes_on.reference.13", "whole.reference", "mine.reference.txt",
                                          "mine.12"));
}

TEST_F(ReferenceCacheTest, ErrorsAreNotKept) {
  ReferenceCache cache = Open();
  const auto failed = cache.GetOrCompute(
      {{"a", 1}}, []() -> absl::StatusOr<ReferencePart> { return absl::UnavailableError("gone"); });
  EXPECT_EQ(failed.status(), absl::UnavailableError("gone"));
  EXPECT_THAT(Files(), IsEmpty());
  const std::string file = (std::filesystem::path(temporary_folder_.path()) / "file").string();
  ASSERT_TRUE(WriteFile(file, "x").ok());
  EXPECT_THAT(ReferenceCache::Open(file, nullptr).status().ToString(), HasSubstr(file));
}

TEST_F(ReferenceCacheTest, ABenchThatFindsItsReferencesMeasuresTheSameAndOnlyTimesFullPrefill) {
  ReferenceCache cache = Open();
  KeptReferences kept{.cache = &cache, .engine = {{"fingerprint", "f"}}};
  KnownEngine engine;
  const BenchRun first = RunTasks(engine, Questions(2), Options(kAllModes), nullptr, kept);
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(cache.found(), 0);
  EXPECT_EQ(cache.computed(), 6);  // tokens, gold answer, answer
  KnownEngine again;
  const BenchRun second = RunTasks(again, Questions(2), Options(kAllModes), nullptr, kept);
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(cache.found(), 6);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(ToJson(first.finished[i]), ToJson(second.finished[i]));
  int full = 0;
  for (const v1::GenerateRequest& request : again.generated) {
    if (request.blend().reuse() != v1::REUSE_NOTHING) continue;
    ++full;
    EXPECT_EQ(request.sampling().max_tokens(), 1);  // for its time, which is never kept
  }
  EXPECT_EQ(full, 4);
  for (const v1::ScoreRequest& request : again.scored) EXPECT_NE(request.blend().reuse(), v1::REUSE_NOTHING);
  // Another engine's are not taken.
  kept.engine["fingerprint"] = "g";
  KnownEngine other;
  ASSERT_TRUE(RunTasks(other, Questions(1), Options(kAllModes), nullptr, kept).status.ok());
  EXPECT_EQ(cache.computed(), 9);
}

TEST_F(ReferenceCacheTest, AReferenceOfOtherTokensIsNoticed) {
  ReferenceCache cache = Open();
  const KeptReferences kept{.cache = &cache, .engine = {}};
  KnownEngine engine;
  ASSERT_TRUE(RunTasks(engine, Questions(1), Options({BenchMode::kReuse}), nullptr, kept).status.ok());
  KnownEngine retokenized;
  const auto known = retokenized.on_score;
  retokenized.on_score = [&](const v1::ScoreRequest& request, const auto& send) {
    return known(request, [&](v1::ScoreEvent event) {
      if (event.has_prompt()) event.mutable_prompt()->set_prompt_tokens(99);
      send(event);
    });
  };
  const BenchRun run = RunTasks(retokenized, Questions(1), Options({BenchMode::kReuse}), nullptr, kept);
  EXPECT_EQ(run.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(run.status.ToString(), HasSubstr("is of 100 prompt tokens, reuse has 99"));
}

}  // namespace
}  // namespace kvblend::server::cli
