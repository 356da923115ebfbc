#include "engine/store/chunk_kv.h"

#include <cstdint>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;

/// Runs out after a number of bytes.
class LimitedMemory final : public HostMemory {
 public:
  explicit LimitedMemory(int64_t limit) : limit_(limit) {}
  void* Allocate(int64_t bytes) override {
    if (used_ + bytes > limit_) return nullptr;
    used_ += bytes;
    return Heap().Allocate(bytes);
  }
  void Free(void* data, int64_t bytes) override {
    used_ -= bytes;
    Heap().Free(data, bytes);
  }
  int64_t used() const { return used_; }

 private:
  const int64_t limit_;
  int64_t used_ = 0;
};

TEST(ChunkKvTest, SectionsAreAlignedDisjointAndOfTheFormatsShape) {
  for (const auto dtype : {kernels::DataType::kF32, kernels::DataType::kBF16, kernels::DataType::kF16}) {
    const KvFormat format = {.dtype = dtype, .num_layers = 3, .num_kv_heads = 3, .head_dim = 5};
    EXPECT_EQ(format.BytesPerToken(), 2 * 3 * 3 * 5 * kernels::SizeOf(dtype));
    auto kv = *ChunkKv::Allocate(format, 7);
    const int64_t section_bytes = 7 * 15 * kernels::SizeOf(dtype);
    std::set<uintptr_t> begins;
    for (int layer = 0; layer < 3; ++layer) {
      const MutableLayerKv views = kv->MutableLayer(layer);
      for (const kernels::MatrixView& view : {views.k, views.v}) {
        EXPECT_EQ(view.dtype, dtype);
        EXPECT_EQ(view.rows, 7);
        EXPECT_EQ(view.cols, 15);
        EXPECT_EQ(view.row_stride, 15);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
        begins.insert(reinterpret_cast<uintptr_t>(view.data));
      }
      EXPECT_EQ(kv->Layer(layer).k.data, views.k.data);
      EXPECT_EQ(kv->Layer(layer).v.data, views.v.data);
    }
    ASSERT_EQ(begins.size(), 6u);
    uintptr_t end = 0;
    for (const uintptr_t begin : begins) {
      EXPECT_GE(begin, end);
      end = begin + static_cast<uintptr_t>(section_bytes);
    }
    EXPECT_LE(end, *begins.begin() + static_cast<uintptr_t>(kv->size_bytes()));
    EXPECT_EQ(kv->size_bytes(), *ChunkKv::SizeBytes(format, 7));
  }
}

TEST(ChunkKvTest, NoTokensTakeNoMemory) {
  LimitedMemory memory(0);
  const KvFormat format = {
      .encoding = kernels::KvEncoding::kF32, .num_layers = 2, .num_kv_heads = 1, .head_dim = 8};
  auto kv = ChunkKv::Allocate(format, 0, memory);
  ASSERT_TRUE(kv.ok()) << kv.status();
  EXPECT_EQ((*kv)->size_bytes(), 0);
  EXPECT_EQ((*kv)->Layer(1).v.rows, 0);
  EXPECT_EQ((*kv)->Layer(1).v.cols, 8);
}

TEST(ChunkKvTest, LackOfMemoryIsAnErrorThatNamesTheBytes) {
  const KvFormat format = {
      .encoding = kernels::KvEncoding::kF32, .num_layers = 2, .num_kv_heads = 1, .head_dim = 16};
  LimitedMemory memory(1000);
  {
    const auto fits = ChunkKv::Allocate(format, 3, memory);
    ASSERT_TRUE(fits.ok()) << fits.status();
    EXPECT_EQ(memory.used(), 768);
    const auto refused = ChunkKv::Allocate(format, 1, memory);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("256 bytes"));
  }
  EXPECT_EQ(memory.used(), 0);
}

TEST(ChunkKvTest, RefusesBadShapesByName) {
  const KvFormat good = {
      .encoding = kernels::KvEncoding::kF32, .num_layers = 2, .num_kv_heads = 1, .head_dim = 16};
  struct Case {
    const char* name;
    void (*spoil)(KvFormat&);
  };
  for (const Case& c : {
           Case{"num_layers", [](KvFormat& f) { f.num_layers = 0; }},
           Case{"num_kv_heads", [](KvFormat& f) { f.num_kv_heads = -3; }},
           Case{"head_dim", [](KvFormat& f) { f.head_dim = INT32_MAX; }},
           Case{"version", [](KvFormat& f) { f.version = 2; }},
       }) {
    KvFormat format = good;
    c.spoil(format);
    const auto kv = ChunkKv::Allocate(format, 1);
    EXPECT_EQ(kv.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(kv.status().message(), HasSubstr(c.name));
  }
  EXPECT_EQ(ChunkKv::Allocate(good, -1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChunkKvTest, RefusesSizesThatOverflow) {
  const KvFormat largest = {
      .encoding = kernels::KvEncoding::kF32, .num_layers = 1 << 16, .num_kv_heads = 1 << 20, .head_dim = 1 << 18};
  EXPECT_GT(largest.BytesPerToken(), 0);
  EXPECT_TRUE(ChunkKv::SizeBytes(largest, 1).ok());
  EXPECT_EQ(ChunkKv::SizeBytes(largest, INT32_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  // Exactly at the edge: 2^57 bytes per token.
  EXPECT_TRUE(ChunkKv::SizeBytes(largest, 63).ok());
  EXPECT_EQ(ChunkKv::SizeBytes(largest, 64).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvblend::store
