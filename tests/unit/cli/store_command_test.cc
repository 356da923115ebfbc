// `kvblend store` on real folders.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "engine/store/disk/disk_tier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/cli/commands_fixture.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class StoreCommandTest : public CommandsTest {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    store_ = (folder_ / "chunks").string();
    const auto tier = Open();
    Put(*tier, "", 1);
    Put(*tier, "", 2);
    Put(*tier, "tenant", 3);
    ASSERT_TRUE(tier->SetPinned(kvblend::kAllNamespaces, addresses_[2].key, true).ok());
  }

  std::unique_ptr<store::DiskTier> Open() {
    store::DiskTier::Options options;  // named, for GCC 12 takes a temporary for uninitialised memory
    options.path = store_;
    options.quota_bytes = 1 << 20;
    options.min_free_bytes = 0;
    auto tier = store::DiskTier::Open(options);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }
  void Put(store::DiskTier& tier, const std::string& tenant, int32_t token,
           const kvblend::Digest& model = {}) {
    const std::vector<int32_t> token_ids(8, token);
    addresses_.push_back(store::AddressOf({.model_fingerprint = model,
                                           .format = store::SmallFormat(),
                                           .tenant_namespace = tenant,
                                           .token_ids = token_ids}));
    ASSERT_TRUE(
        tier.Put(addresses_.back(), *store::FilledKv(addresses_.back()), {.compute_cost_seconds = 1}).ok());
  }
  std::filesystem::path EntryPath(int i) const {
    const std::string hex = addresses_[i].key.ToHex();
    return std::filesystem::path(store_) / "entries" / hex.substr(0, 2) / hex.substr(2, 2) / (hex + ".kvb1");
  }
  void Damage(int i) {
    std::fstream file(EntryPath(i), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('!');
  }

  std::string store_;
  std::vector<store::ChunkAddress> addresses_;
};

TEST_F(StoreCommandTest, CheckOfASoundFolder) {
  EXPECT_EQ(Run({"store", "check", store_ + "/"}), 0);
  EXPECT_EQ(Out(), "3 sound, 0 damaged, 0 unreadable, 0 of a newer version; 60.0 KiB read\n");
  EXPECT_EQ(Err(), "");
}

TEST_F(StoreCommandTest, CheckNamesWhatIsDamagedAndWhy) {
  Damage(1);
  std::ofstream(std::filesystem::path(store_) / "entries" / "notes.txt") << "mine";
  EXPECT_EQ(Run({"store", "check", store_}), 5);
  EXPECT_THAT(Out(), AllOf(HasSubstr("damaged     entries/"), HasSubstr(addresses_[1].key.ToHex()),
                           HasSubstr("the K section"), HasSubstr("foreign     entries/notes.txt\n"),
                           HasSubstr("2 sound, 1 damaged")));
  EXPECT_THAT(Err(), AllOf(HasSubstr("1 entry of"), HasSubstr("--quarantine")));
  EXPECT_TRUE(std::filesystem::exists(EntryPath(1))) << "looking changes nothing";

  EXPECT_EQ(Run({"store", "check", store_, "--json"}), 5);
  const OrderedJson result = OutJson().at(0);
  EXPECT_EQ(result["sound_entries"], 2);
  EXPECT_EQ(result["damaged_entries"], 1);
  EXPECT_EQ(result["findings"].size(), 2u);

  EXPECT_EQ(Run({"store", "check", store_, "--quarantine"}), 5);
  EXPECT_THAT(Out(), HasSubstr("; moved to quarantine\n"));
  EXPECT_FALSE(std::filesystem::exists(EntryPath(1)));
  EXPECT_EQ(Run({"store", "check", store_}), 0);
  EXPECT_EQ(Run({"store", "stats", store_}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("quarantine  1 files, 20.0 KiB"), HasSubstr("foreign     1;")));
}

TEST_F(StoreCommandTest, NamesOfForeignFilesReachNoTerminal) {
  const std::string name = "\033[2Jx\x9B\xC2\x9B\nsound: \xC3\xA9";
  std::ofstream(std::filesystem::path(store_) / "entries" / name) << "mine";
  EXPECT_EQ(Run({"store", "check", store_}), 0);
  const std::string out = Out();
  EXPECT_THAT(out, HasSubstr("foreign     entries/\\x1b[2Jx\\x9b\\x9b\\x0asound: \xC3\xA9\n"));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
  EXPECT_EQ(Run({"store", "stats", store_}), 0);
  EXPECT_THAT(Out(), Not(HasSubstr("\033")));
  // JSON has the name as it is, but for the byte that is no text.
  EXPECT_EQ(Run({"store", "check", store_, "--json"}), 0);
  EXPECT_EQ(OutJson().at(0)["findings"][0]["path"], "entries/\033[2Jx\xEF\xBF\xBD\xC2\x9B\nsound: \xC3\xA9");
}

TEST_F(StoreCommandTest, StatsByModelFormatAndNamespace) {
  kvblend::Digest other{};
  other[31] = 7;
  Put(*Open(), "", 4, other);
  EXPECT_EQ(Run({"store", "stats", store_}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("model " + std::string(64, '0') + "\n"),
                           HasSubstr("model " + kvblend::ToHex(other)), HasSubstr("f32 2x2x64"),
                           HasSubstr("(default)"), HasSubstr("tenant"),
                           HasSubstr("total       4 entries, 32 tokens, 80.0 KiB, 1 pinned\n")));
  EXPECT_EQ(Run({"store", "stats", store_, "--json"}), 0);
  const OrderedJson stats = OutJson().at(0);
  ASSERT_EQ(stats["groups"].size(), 3u);
  EXPECT_EQ(stats["groups"][0]["entries"], 2);
  EXPECT_EQ(stats["groups"][0]["tokens"], 16);
  EXPECT_EQ(stats["groups"][1]["namespace"], "tenant");
  EXPECT_EQ(stats["groups"][1]["pinned_entries"], 1);
  EXPECT_EQ(stats["groups"][2]["model_fingerprint"], kvblend::ToHex(other));
  EXPECT_GT(stats["groups"][2]["oldest_unix_seconds"], 1.7e9);
}

TEST_F(StoreCommandTest, GcForetellsAndRemoves) {
  EXPECT_EQ(Run({"store", "gc", store_, "--max-bytes", "20KiB", "--dry-run"}), 0);
  EXPECT_EQ(Out(), "would remove  2 entries, 40.0 KiB\nwould keep    1 entries, 20.0 KiB\n");
  EXPECT_TRUE(std::filesystem::exists(EntryPath(0)));
  EXPECT_EQ(Run({"store", "gc", store_, "--older-than", "1h"}), 0);
  EXPECT_EQ(Out(), "removed       0 entries, 0 B\nkept          3 entries, 60.0 KiB\n");
  EXPECT_EQ(Run({"store", "gc", store_, "--max-bytes", "0", "--json"}), 0);
  const OrderedJson result = OutJson().at(0);
  EXPECT_EQ(result["removed_entries"], 2);
  EXPECT_EQ(result["kept_entries"], 1);
  EXPECT_EQ(result["kept_for_their_pin"], 1);
  EXPECT_FALSE(std::filesystem::exists(EntryPath(0)));
  EXPECT_TRUE(std::filesystem::exists(EntryPath(2)));
}

TEST_F(StoreCommandTest, GcByFormatAndPinnedOnes) {
  EXPECT_EQ(Run({"store", "gc", store_, "--format", "f8", "--pinned"}), 2);
  EXPECT_THAT(Err(), HasSubstr("--format is 'f8'; allowed: f32, bf16, f16, int8, int4, fp8"));
  EXPECT_EQ(Run({"store", "gc", store_, "--pinned"}), 2) << "what is pinned, of all?";
  EXPECT_EQ(Run({"store", "gc", store_, "--format", "int8", "--pinned"}), 0);
  EXPECT_THAT(Out(), HasSubstr("removed       0 entries"));
  const std::string format(kernels::Name(store::SmallFormat().encoding));
  EXPECT_EQ(Run({"store", "gc", store_, "--format", format, "--dry-run"}), 0);
  EXPECT_EQ(
      Out(),
      "would remove  2 entries, 40.0 KiB\nwould keep    1 entries, 20.0 KiB; 1 of them only for their pin\n");
  EXPECT_EQ(Run({"store", "gc", store_, "--format", format, "--pinned"}), 0);
  EXPECT_EQ(Out(), "removed       3 entries, 60.0 KiB\nkept          0 entries, 0 B\n");
}

TEST_F(StoreCommandTest, GcByModel) {
  const std::string model = (folder_ / "tiny.gguf").string();
  ASSERT_TRUE(test_support::WriteTinyModel(model, {}).ok());
  const auto fingerprints = ModelFingerprints(model);
  ASSERT_TRUE(fingerprints.ok()) << fingerprints.status();
  ASSERT_EQ(fingerprints->size(), 1u);
  const std::string& fingerprint = fingerprints->front();
  Put(*Open(), "", 4, *kvblend::DigestFromHex(fingerprint));
  EXPECT_EQ(Run({"store", "gc", store_, "--other-models-than", model}), 0);
  EXPECT_THAT(Out(), HasSubstr("removed       2 entries"));
  EXPECT_TRUE(std::filesystem::exists(EntryPath(3)));
  EXPECT_EQ(Run({"store", "gc", store_, "--model", fingerprint}), 0);
  EXPECT_FALSE(std::filesystem::exists(EntryPath(3)));
}

TEST_F(StoreCommandTest, ARunningServerKeepsItsFolder) {
  const auto tier = Open();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"store", "gc", store_, "--max-bytes", "0"}, {"store", "check", store_, "--quarantine"}}) {
    EXPECT_EQ(Run(arguments), 1);
    EXPECT_THAT(Err(), AllOf(HasSubstr(store_ + "/lock"), HasSubstr("Stop the server")));
  }
  EXPECT_EQ(Run({"store", "check", store_}), 0);
  EXPECT_EQ(Run({"store", "stats", store_}), 0);
  EXPECT_EQ(Run({"store", "gc", store_, "--max-bytes", "0", "--dry-run"}), 0);
  EXPECT_EQ(tier->Stats().entries, 3);
}

TEST_F(StoreCommandTest, WrongUsage) {
  EXPECT_EQ(Run({"store", "check", folder_.string()}), 3);
  EXPECT_THAT(Err(), HasSubstr("no folder of stored chunks"));
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{},
                                                                                    {"--older-than", "soon"},
                                                                                    {"--older-than", "3"},
                                                                                    {"--older-than", "-3d"},
                                                                                    {"--max-bytes", "many"},
                                                                                    {"--model", "abc"}}) {
    std::vector<std::string> arguments = {"store", "gc", store_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Run(arguments), 2) << testing::PrintToString(arguments);
    EXPECT_NE(Err(), "");
  }
  EXPECT_EQ(Run({"store", "gc", store_, "--other-models-than", "/no/such.gguf"}), 3);
  EXPECT_EQ(Run({"store"}), 2);
  EXPECT_EQ(Run({"store", "check"}), 2);
  EXPECT_EQ(Open()->Stats().entries, 3);
}

TEST_F(StoreCommandTest, InterruptionIs130) {
  cancellation_.Request();
  EXPECT_EQ(Run({"store", "check", store_}), 130);
  EXPECT_EQ(Run({"store", "gc", store_, "--max-bytes", "0"}), 130);
  EXPECT_EQ(Open()->Stats().entries, 3);
}

}  // namespace
}  // namespace kvblend::server::cli
