// Model files in several parts.
#include "engine/model/gguf/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend::model {
namespace {

using test_support::Bytes;
using test_support::GgufBuilder;
using ::testing::HasSubstr;

class GgufSplitTest : public ::testing::Test {
 protected:
  // The tiny model's tensors, dealt out to `count` builders; the first has the metadata.
  std::vector<GgufBuilder> Deal(uint32_t count) {
    GgufBuilder first = test_support::TinyModelBuilder({});
    whole_ = first.Build();
    const auto file = GgufFile::FromMemory(Bytes(whole_), "whole.gguf");
    std::vector<GgufBuilder> parts(count);
    parts[0] = first;
    const size_t total = file->tensors().size();
    for (size_t i = 0; i < total; ++i) {
      const uint32_t part = static_cast<uint32_t>(i) % count;
      if (part == 0) continue;
      const GgufTensor& tensor = file->tensors()[i];
      const std::vector<uint64_t> dims(tensor.dims.begin(), tensor.dims.end());
      parts[part].SetTensor(tensor.name, dims, static_cast<uint32_t>(tensor.type),
                            {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()});
      parts[0].RemoveTensor(tensor.name);
    }
    for (uint32_t i = 0; i < count; ++i) {
      parts[i].SetUint32("split.no", i).SetUint32("split.count", count);
      parts[i].SetUint32("split.tensors.count", static_cast<uint32_t>(total));
    }
    return parts;
  }

  std::string PathOf(size_t part, size_t count) const {
    return folder_.path() + "/model-0000" + std::to_string(part + 1) + "-of-0000" + std::to_string(count) +
           ".gguf";
  }
  void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void Write(const std::vector<GgufBuilder>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) Write(PathOf(i, parts.size()), parts[i].Build());
  }

  void ExpectRefused(const std::vector<GgufBuilder>& parts, absl::StatusCode code,
                     const std::string& fragment, const std::string& file) {
    Write(parts);
    const auto opened = GgufFile::Open(PathOf(0, parts.size()));
    EXPECT_EQ(opened.status().code(), code) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(fragment));
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(file));
  }

  std::string whole_;
  test_support::TemporaryFolder folder_;
};

TEST_F(GgufSplitTest, PartsAreTheSameModelAsOneFile) {
  for (const uint32_t count : {1u, 2u, 3u}) {
    const auto parts = Deal(count);
    Write(parts);
    const auto whole = GgufFile::FromMemory(Bytes(whole_), "whole.gguf");
    const auto joined = GgufFile::Open(PathOf(0, count));
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE(ReadModelConfig(*joined).ok()) << ReadModelConfig(*joined).status();
    EXPECT_EQ(joined->tensors().size(), whole->tensors().size());
    EXPECT_EQ(*Fingerprint(*joined), *Fingerprint(*whole)) << count << " parts";
    for (const GgufTensor& tensor : whole->tensors()) {
      const GgufTensor* found = joined->FindTensor(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->data, tensor.data) << tensor.name;
    }
    EXPECT_EQ(joined->HasKey("split.count"), count == 1);
  }
}

TEST_F(GgufSplitTest, PartsThatDoNotBelongTogetherAreNamed) {
  const auto with = [&](size_t part, auto change) {
    auto parts = Deal(3);
    change(parts[part]);
    return parts;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kDamaged = absl::StatusCode::kDataLoss;
  ExpectRefused(with(1, [](GgufBuilder& part) { part.SetUint32("split.count", 4); }), kInvalid,
                "this is part 2 of 4 of a model file; allowed here: part 2 of 3", "-00002-of-00003.gguf");
  ExpectRefused(with(2, [](GgufBuilder& part) { part.SetUint32("split.no", 1); }), kInvalid,
                "this is part 2 of 3 of a model file; allowed here: part 3 of 3", "-00003-of-00003.gguf");
  ExpectRefused(with(1, [](GgufBuilder& part) { part.RemoveKey("split.no").RemoveKey("split.count"); }),
                kInvalid, "this is part 1 of 1", "-00002-of-00003.gguf");
  ExpectRefused(with(1, [](GgufBuilder& part) { part.SetUint32("split.tensors.count", 7); }), kInvalid,
                "key 'split.tensors.count' is 7; allowed: ", "-00002-of-00003.gguf");
  ExpectRefused(with(1, [](GgufBuilder& part) { part.SetUint32("llama.block_count", 7); }), kInvalid,
                "key 'llama.block_count' is in part 2", "-00002-of-00003.gguf");
  ExpectRefused(with(1, [](GgufBuilder& part) { part.SetString("split.no", "1"); }), kInvalid,
                "key 'split.no' is of type string; allowed: integers", "-00002-of-00003.gguf");
  ExpectRefused(with(0, [](GgufBuilder& part) { part.SetUint32("split.count", 100000); }), kInvalid,
                "key 'split.count' is 100000; allowed: 0 to 99999", "-00001-of-00003.gguf");
  ExpectRefused(with(2, [](GgufBuilder& part) { part.SetTensorF32("token_embd.weight", {1}, {1}); }),
                kDamaged, "tensor 'token_embd.weight' is in ", "-00001-of-00003.gguf");
  ExpectRefused(with(2, [](GgufBuilder& part) { part.SetTensorF32("more", {1}, {1}); }), kDamaged,
                "tensors in the 3 parts", "-00001-of-00003.gguf");
}

TEST_F(GgufSplitTest, MissingAndMisnamedParts) {
  const auto parts = Deal(3);
  Write(parts);
  ASSERT_EQ(std::remove(PathOf(2, 3).c_str()), 0);
  const auto missing = GgufFile::Open(PathOf(0, 3)).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("-00003-of-00003.gguf"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("part 3 of 3"));
  const auto second = GgufFile::Open(PathOf(1, 3)).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(second.message()), HasSubstr("allowed: the first, "));
  const std::string other = folder_.path() + "/other.gguf";
  Write(other, parts[0].Build());
  EXPECT_THAT(std::string(GgufFile::Open(other).status().message()),
              HasSubstr("allowed: a name that ends in -00001-of-00003.gguf"));
  Write(PathOf(2, 3), parts[2].Build().substr(0, 100));
  EXPECT_THAT(std::string(GgufFile::Open(PathOf(0, 3)).status().message()),
              HasSubstr("-00003-of-00003.gguf"));
}

}  // namespace
}  // namespace kvblend::model
