// Every check of the parser, each with a file that is wrong in exactly one place.
#include "engine/model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/gguf/gguf_text.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::model {
namespace {

using test_support::AppendBytes;
using test_support::AppendGgufString;
using test_support::Bytes;
using test_support::GgufBuilder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<GgufFile> Parse(const std::string& bytes) {
  return GgufFile::FromMemory(Bytes(bytes), "test.gguf");
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDamaged = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

void ExpectRefused(const std::string& bytes, absl::StatusCode code, const std::string& message) {
  const auto file = Parse(bytes);
  EXPECT_EQ(file.status().code(), code) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(message));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("test.gguf"));
}

// A key and two tensors of 64 and 32 bytes.
GgufBuilder Small() {
  GgufBuilder builder;
  builder.SetUint32("answer", 42)
      .SetTensorF32("a", {8, 2}, std::vector<float>(16, 1.0f))
      .SetTensorF32("b", {8}, {0, 1, 2, 3, 4, 5, 6, 7});
  return builder;
}

// Where the fields of Small() begin in the file.
constexpr size_t kVersionAt = 4;
constexpr size_t kTensorCountAt = 8;
constexpr size_t kEntryCountAt = 16;
constexpr size_t kKeyLengthAt = 24;
constexpr size_t kKeyAt = 32;  // "answer"
constexpr size_t kValueTypeAt = kKeyAt + 6;
constexpr size_t kTensorInfoAt = kValueTypeAt + 4 + 4;  // after the value
constexpr size_t kTensorNameAt = kTensorInfoAt + 8;     // "a"
constexpr size_t kDimCountAt = kTensorNameAt + 1;
constexpr size_t kDimsAt = kDimCountAt + 4;
constexpr size_t kTypeAt = kDimsAt + 16;
constexpr size_t kOffsetAt = kTypeAt + 4;
constexpr size_t kSecondNameAt = kOffsetAt + 8 + 8;                // "b"
constexpr size_t kSecondOffsetAt = kSecondNameAt + 1 + 4 + 8 + 4;  // one dim

template <typename T>
std::string With(size_t position, T value, std::string bytes = Small().Build()) {
  std::memcpy(bytes.data() + position, &value, sizeof(T));
  return bytes;
}

TEST(GgufFileTest, ReadsWhatTheBuilderWrote) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder = Small();
    builder.SetVersion(version)
        .SetString("text", "h\xC3\xA9llo")
        .SetBool("yes", true)
        .SetFloat32("half", 0.5f)
        .SetStringArray("names", {"x", "", "zz"})
        .SetInt32Array("numbers", {-1, 0, 7});
    std::string raw;
    AppendBytes<uint64_t>(raw, std::numeric_limits<uint64_t>::max());
    builder.SetRaw("large", test_support::kGgufUint64, raw);
    const std::string bytes = builder.Build();
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*file->GetInteger("answer", 0, 100), 42);
    EXPECT_EQ(*file->GetString("text"), "h\xC3\xA9llo");
    EXPECT_TRUE(*file->GetBool("yes"));
    EXPECT_EQ(*file->GetFloat("half"), 0.5);
    EXPECT_THAT(*file->GetStringArray("names"), ElementsAre("x", "", "zz"));
    EXPECT_THAT(*file->GetInt32Array("numbers"), ElementsAre(-1, 0, 7));
    EXPECT_FALSE(file->GetInteger("large", 0, std::numeric_limits<int64_t>::max()).ok());
    EXPECT_TRUE(file->HasKey("yes"));
    EXPECT_FALSE(file->HasKey("no"));
    EXPECT_EQ(file->metadata().size(), 7u);

    ASSERT_EQ(file->tensors().size(), 2u);
    const GgufTensor* tensor = file->FindTensor("a");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->cols(), 8);
    EXPECT_EQ(tensor->rows(), 2);
    EXPECT_EQ(tensor->ShapeString(), "[8, 2]");
    tensor = file->FindTensor("b");
    ASSERT_NE(tensor, nullptr);
    std::vector<float> row(8);
    ASSERT_TRUE(tensor->ReadRow(0, absl::MakeSpan(row)).ok());
    EXPECT_THAT(row, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    for (const int64_t bad : {-1, 1}) {
      EXPECT_EQ(tensor->ReadRow(bad, absl::MakeSpan(row)).code(), kInvalid);
    }
    EXPECT_EQ(file->FindTensor("c"), nullptr);
  }
}

TEST(GgufFileTest, ReadsEveryScalarType) {
  GgufBuilder builder;
  const auto set = [&](const std::string& key, uint32_t type, auto value) {
    std::string raw;
    AppendBytes(raw, value);
    builder.SetRaw(key, type, raw);
  };
  set("u8", 0, uint8_t{200});
  set("i8", 1, int8_t{-100});
  set("u16", 2, uint16_t{60000});
  set("i16", 3, int16_t{-30000});
  set("u32", 4, uint32_t{4000000000});
  set("i32", 5, int32_t{-2000000000});
  set("u64", 10, uint64_t{1} << 60);
  set("i64", 11, -(int64_t{1} << 60));
  set("f64", 12, 0.1);
  const std::string bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*file->GetInteger("u8", kMin, kMax), 200);
  EXPECT_EQ(*file->GetInteger("i8", kMin, kMax), -100);
  EXPECT_EQ(*file->GetInteger("u16", kMin, kMax), 60000);
  EXPECT_EQ(*file->GetInteger("i16", kMin, kMax), -30000);
  EXPECT_EQ(*file->GetInteger("u32", kMin, kMax), 4000000000);
  EXPECT_EQ(*file->GetInteger("i32", kMin, kMax), -2000000000);
  EXPECT_EQ(*file->GetInteger("u64", kMin, kMax), int64_t{1} << 60);
  EXPECT_EQ(*file->GetInteger("i64", kMin, kMax), -(int64_t{1} << 60));
  EXPECT_EQ(*file->GetFloat("f64"), 0.1);
}

TEST(GgufFileTest, TypedAccessNamesTheKey) {
  GgufBuilder builder = Small();
  builder.SetString("text", "x").SetInt32Array("numbers", {1}).SetStringArray("names", {"x"});
  std::string wide;
  AppendBytes<uint32_t>(wide, test_support::kGgufUint64);
  AppendBytes<uint64_t>(wide, 1);
  AppendBytes<uint64_t>(wide, 1ull << 40);
  builder.SetRaw("wide", test_support::kGgufArray, wide);
  const std::string bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::pair<absl::Status, std::string> cases[] = {
      {file->GetInteger("none", 0, 1).status(), "key 'none' is missing"},
      {file->GetInteger("answer", 0, 41).status(), "key 'answer' is 42; allowed: 0 to 41"},
      {file->GetInteger("answer", 43, 50).status(), "key 'answer' is 42; allowed: 43 to 50"},
      {file->GetInteger("text", 0, 1).status(), "key 'text' is of type string; allowed: integers"},
      {file->GetFloat("answer").status(), "key 'answer' is of type uint32; allowed: float32"},
      {file->GetBool("answer").status(), "key 'answer' is of type uint32; allowed: bool"},
      {file->GetString("answer").status(), "key 'answer' is of type uint32; allowed: string"},
      {file->GetStringArray("numbers").status(), "key 'numbers' is of type array; allowed: array of strings"},
      {file->GetInt32Array("names").status(), "key 'names' is of type array; allowed: array of integers"},
      {file->GetInt32Array("text").status(), "key 'text' is of type string; allowed: array of integers"},
      {file->GetInt32Array("wide").status(), "key 'wide' holds a value outside of 32 bits"},
  };
  for (const auto& [status, message] : cases) {
    EXPECT_EQ(status.code(), kInvalid) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(GgufFileTest, RefusesWrongHeaders) {
  ExpectRefused(With(0, 'X'), kInvalid, "magic number is 'XGUF'");
  ExpectRefused(With<uint32_t>(kVersionAt, 1), kUnimplemented, "GGUF version 1 cannot be read");
  ExpectRefused(With<uint32_t>(kVersionAt, 4), kUnimplemented, "GGUF version 4");
  ExpectRefused(With<uint32_t>(kVersionAt, 3u << 24), kUnimplemented, "big-endian");
  for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 62, ~uint64_t{0}}) {
    ExpectRefused(With(kTensorCountAt, count), kDamaged, Concat("tensor count is ", count));
    ExpectRefused(With(kEntryCountAt, count), kDamaged, Concat("metadata count is ", count));
  }
  ExpectRefused("", kDamaged, "truncated: the magic number");
}

TEST(GgufFileTest, RefusesWrongMetadata) {
  ExpectRefused(With<uint64_t>(kKeyLengthAt, 0), kInvalid, "metadata key 0 has 0 bytes; allowed: 1 to 65535");
  ExpectRefused(With<uint64_t>(kKeyLengthAt, 1 << 20), kDamaged,
                "metadata key 0 at offset 32 claims 1048576 bytes");
  ExpectRefused(With<uint64_t>(kKeyLengthAt, ~uint64_t{0}), kDamaged, "claims 18446744073709551615 bytes");
  ExpectRefused(With(kKeyAt, '\xFF'), kInvalid, "is not valid UTF-8");
  ExpectRefused(With<uint32_t>(kValueTypeAt, 13), kInvalid,
                "key 'answer' has value type 13; allowed: 0 to 12");
  ExpectRefused(Small().SetRaw("flag", test_support::kGgufBool, "\2").Build(), kInvalid,
                "key 'flag' is a bool of value 2; allowed: 0, 1");
  ExpectRefused(Small().SetString(std::string(70000, 'k'), "").Build(), kInvalid, "has 70000 bytes");

  std::string twice = Small().SetUint32("answes", 1).Build();
  twice[twice.find("answes") + 5] = 'r';
  ExpectRefused(twice, kDamaged, "metadata key 'answer' appears twice");
}

TEST(GgufFileTest, RefusesWrongArrays) {
  const auto with_array = [](uint32_t type, uint64_t count, const std::string& elements) {
    std::string raw;
    AppendBytes(raw, type);
    AppendBytes(raw, count);
    return Small().SetRaw("list", test_support::kGgufArray, raw + elements).Build();
  };
  ExpectRefused(with_array(9, 1, std::string(16, '\0')), kInvalid,
                "key 'list' is an array of type 9 (array); allowed: scalars and strings");
  ExpectRefused(with_array(99, 1, ""), kInvalid, "array of type 99 (unknown)");
  // Counts whose byte size overflows or exceeds the file must not be allocated.
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 61, ~uint64_t{0}}) {
    for (const uint32_t type : {0u, 4u, 8u, 12u}) {
      ExpectRefused(with_array(type, count, ""), kDamaged, Concat("claims ", count, " elements"));
    }
  }
  std::string strings;
  AppendGgufString(strings, "fine");
  AppendBytes<uint64_t>(strings, 1 << 20);
  ExpectRefused(with_array(8, 2, strings), kDamaged, "(element 1)");
}

TEST(GgufFileTest, RefusesWrongTensors) {
  ExpectRefused(With<uint64_t>(kTensorInfoAt, 0), kInvalid,
                "the name of tensor 0 has 0 bytes; allowed: 1 to 64");
  ExpectRefused(Small().SetTensorF32(std::string(65, 't'), {1}, {1}).Build(), kInvalid, "has 65 bytes");
  ExpectRefused(With(kTensorNameAt, '\x80'), kInvalid, "is not valid UTF-8");
  ExpectRefused(With(kSecondNameAt, 'a'), kDamaged, "tensor 'a' appears twice");
  ExpectRefused(With<uint32_t>(kDimCountAt, 0), kInvalid, "tensor 'a' has 0 dimensions; allowed: 1 to 4");
  ExpectRefused(With<uint32_t>(kDimCountAt, 5), kInvalid, "tensor 'a' has 5 dimensions");
  ExpectRefused(With<uint64_t>(kDimsAt, 0), kDamaged, "tensor 'a' has dimension 0 of 0");
  ExpectRefused(With<uint64_t>(kDimsAt + 8, 0), kDamaged, "tensor 'a' has dimension 1 of 0");
  for (const uint64_t dim : {uint64_t{1} << 32, uint64_t{1} << 61, ~uint64_t{0}}) {
    ExpectRefused(With(kDimsAt, dim), kDamaged, Concat("dimension 0 of ", dim));
    ExpectRefused(With(kDimsAt + 8, dim), kDamaged, Concat("dimension 1 of ", dim));
  }
  ExpectRefused(With<uint32_t>(kTypeAt, 16), kUnimplemented, "tensor 'a': tensor type 16 (IQ2_XXS)");
  ExpectRefused(With<uint32_t>(kTypeAt, 99), kUnimplemented, "tensor type 99 (unknown)");
  ExpectRefused(With<uint32_t>(kTypeAt, 8), kInvalid,
                "rows of 8 elements; allowed for Q8_0: multiples of 32");
  ExpectRefused(With<uint64_t>(kOffsetAt, 16), kDamaged,
                "tensor 'a' has offset 16; allowed: multiples of 32");
  ExpectRefused(With<uint64_t>(kOffsetAt, 64), kDamaged, "tensor 'a' takes 64 bytes at data offset 64");
  ExpectRefused(With<uint64_t>(kOffsetAt, ~uint64_t{31}), kDamaged,
                "tensor 'a' takes 64 bytes at data offset");
  ExpectRefused(With<uint64_t>(kSecondOffsetAt, 0), kDamaged, "overlap at data offset 0");
  ExpectRefused(With<uint64_t>(kSecondOffsetAt, 32), kDamaged,
                "tensors 'a' and 'b' overlap at data offset 32");
}

TEST(GgufFileTest, RefusesWrongAlignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 131072u, 0xFFFFFFFFu}) {
    ExpectRefused(Small().SetUint32("general.alignment", alignment).Build(), kInvalid,
                  Concat("'general.alignment' is ", alignment, "; allowed: powers of two from 8 to 65536"));
  }
  ExpectRefused(Small().SetString("general.alignment", "32").Build(), kInvalid,
                "'general.alignment' is a string; allowed: uint32");
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    const std::string bytes = Small().SetAlignment(alignment).Build();
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<float> row(8);
    ASSERT_TRUE(file->FindTensor("b")->ReadRow(0, absl::MakeSpan(row)).ok());
    EXPECT_EQ(row[7], 7);
  }
}

TEST(GgufFileTest, RefusesEveryTruncation) {
  const std::string bytes = Small().SetStringArray("names", {"x", "yy"}).Build();
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = Parse(bytes.substr(0, size));
    ASSERT_EQ(file.status().code(), kDamaged) << size << ": " << file.status();
  }
}

TEST(GgufFileTest, ViewsOutliveAMove) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/small.gguf";
  std::ofstream(path, std::ios::binary) << Small().Build();
  auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufTensor* tensor = opened->FindTensor("b");
  const GgufFile moved = *std::move(opened);
  EXPECT_EQ(moved.FindTensor("b"), tensor);
  EXPECT_EQ(moved.name(), path);
  std::vector<float> row(8);
  ASSERT_TRUE(tensor->ReadRow(0, absl::MakeSpan(row)).ok());
  EXPECT_EQ(row[3], 3);
}

TEST(GgufFileTest, OpenNamesThePath) {
  const test_support::TemporaryFolder folder;
  auto file = GgufFile::Open(folder.path() + "/not_there.gguf");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("not_there.gguf"));
  EXPECT_EQ(GgufFile::Open(folder.path()).status().code(), kInvalid);
  const std::string empty = folder.path() + "/empty.gguf";
  std::ofstream(empty, std::ios::binary).flush();
  EXPECT_EQ(GgufFile::Open(empty).status().code(), kDamaged);
}

TEST(GgufTextTest, QuotesWhatAHostileFileChose) {
  EXPECT_EQ(Quote("a\nb"), "'a\\nb'");
  EXPECT_EQ(Quote(std::string(200, 'x')), "'" + std::string(80, 'x') + "...'");
}

}  // namespace
}  // namespace kvblend::model
