#include "engine/api/chunk_key.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/token_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::store {
namespace {

std::vector<int32_t> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int32_t id = 0;
    EXPECT_TRUE(absl::SimpleAtoi(part, &id)) << part;
    ids.push_back(id);
  }
  return ids;
}

int32_t ParseInt(const std::string& text) {
  const std::vector<int32_t> ids = ParseIds(text);
  EXPECT_EQ(ids.size(), 1u);
  return ids.at(0);
}

kernels::KvEncoding ParseEncoding(const std::string& name) {
  using enum kernels::KvEncoding;
  for (const auto encoding : {kF32, kBF16, kF16, kInt8, kInt4, kFp8}) {
    if (kernels::Name(encoding) == name) return encoding;
  }
  ADD_FAILURE() << "encoding " << name;
  return kF32;
}

TEST(ChunkKeyTest, AgreesWithTheIndependentImplementation) {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/unit/store/chunk_key_vectors.tsv");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int num_vectors = 0;
  std::set<std::string> keys;
  while (std::getline(file, line)) {
    const std::vector<std::string> f = absl::StrSplit(line, '\t');
    ASSERT_EQ(f.size(), 13u) << line;
    SCOPED_TRACE(f[0]);
    const std::vector<int32_t> anchor = ParseIds(f[8]);
    const std::vector<int32_t> token_ids = ParseIds(f[9]);
    const std::string tenant = absl::HexStringToBytes(f[7]);
    const ChunkAddress address = AddressOf({.model_fingerprint = *DigestFromHex(f[1]),
                                            .format = {.encoding = ParseEncoding(f[2]),
                                                       .num_layers = ParseInt(f[3]),
                                                       .num_kv_heads = ParseInt(f[4]),
                                                       .head_dim = ParseInt(f[5]),
                                                       .version = ParseInt(f[6])},
                                            .tenant_namespace = tenant,
                                            .anchor_hash = HashTokens(anchor),
                                            .token_ids = token_ids});
    EXPECT_EQ(ToHex(address.anchor_hash), f[10]);
    EXPECT_EQ(address.key.ToHex(), f[11]);
    EXPECT_EQ(address.content_key.ToHex(), f[12]);
    EXPECT_EQ(address.num_tokens, static_cast<int32_t>(token_ids.size()));
    EXPECT_EQ(address.tenant_namespace, tenant);
    EXPECT_TRUE(keys.insert(f[11]).second) << "two cases have one key";
    ++num_vectors;
  }
  EXPECT_EQ(num_vectors, 13);
}

TEST(ChunkKeyTest, ContentKeyLeavesOutTheAnchorAndNothingElse) {
  const std::vector<int32_t> token_ids = {1, 2, 3};
  const ChunkIdentity isolated = {.model_fingerprint = {},
                                  .format = {},
                                  .tenant_namespace = "a",
                                  .anchor_hash = IsolatedAnchorHash(),
                                  .token_ids = token_ids};
  ChunkIdentity anchored = isolated;
  anchored.anchor_hash = HashTokens({7});
  ChunkIdentity other_tenant = isolated;
  other_tenant.tenant_namespace = "b";
  EXPECT_EQ(AddressOf(isolated).content_key, AddressOf(anchored).content_key);
  EXPECT_NE(AddressOf(isolated).key, AddressOf(anchored).key);
  EXPECT_NE(AddressOf(isolated).content_key, AddressOf(other_tenant).content_key);
  EXPECT_NE(AddressOf(isolated).key.digest(), AddressOf(isolated).content_key.digest());
}

TEST(ChunkKeyTest, HexRoundTripAndErrors) {
  const ChunkKey key(HashTokens({1, 2}));
  EXPECT_EQ(*ChunkKey::FromHex(key.ToHex()), key);
  std::string upper = key.ToHex();
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(*ChunkKey::FromHex(upper), key);
  EXPECT_NE(key, ChunkKey());

  const std::string hex = key.ToHex();
  std::string no_digit = hex;
  no_digit.back() = 'g';
  for (const std::string& bad : {std::string(), hex.substr(1), hex + "0", no_digit, "0x" + hex.substr(2),
                                 std::string(64, '\0'), " " + hex.substr(1)}) {
    EXPECT_EQ(ChunkKey::FromHex(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(ChunkKey::FromHex(no_digit).status().message(), ::testing::HasSubstr("character 63"));
}

}  // namespace
}  // namespace kvblend::store
