#include "engine/store/format/chunk_kv.h"

#include <cstdint>
#include <cstring>

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
  using enum kernels::KvEncoding;
  for (const auto encoding : {kF32, kBF16, kF16, kInt8, kInt4, kFp8}) {
    for (const int32_t num_tokens : {1, 7, 300}) {
      const KvFormat format = {.encoding = encoding, .num_layers = 3, .num_kv_heads = 3, .head_dim = 5};
      auto kv = *ChunkKv::Allocate(format, num_tokens);
      uintptr_t end = reinterpret_cast<uintptr_t>(kv->LayerBytes(0).data());
      for (int layer = 0; layer < 3; ++layer) {
        const MutableLayerKv views = kv->MutableLayer(layer);
        EXPECT_EQ(views.k.part, kernels::KvPart::kKey);
        EXPECT_EQ(views.v.part, kernels::KvPart::kValue);
        EXPECT_EQ(reinterpret_cast<const std::byte*>(views.k.data), kv->LayerBytes(layer).data());
        EXPECT_EQ(reinterpret_cast<const std::byte*>(views.v.data),
                  kv->LayerBytes(layer).data() + kv->k_section_bytes());
        EXPECT_EQ(static_cast<int64_t>(kv->LayerBytes(layer).size()), kv->layer_bytes());
        for (const kernels::MutableKvSectionView& view : {views.k, views.v}) {
          EXPECT_EQ(view.encoding, encoding);
          EXPECT_EQ(view.rows, num_tokens);
          EXPECT_EQ(view.cols, 15);
          const auto begin = reinterpret_cast<uintptr_t>(view.data);
          EXPECT_EQ(begin % 4096, 0u);
          EXPECT_GE(begin, end);
          end = begin + static_cast<uintptr_t>(view.layout().size_bytes);
        }
        EXPECT_EQ(kv->Layer(layer).k.data, views.k.data);
        EXPECT_EQ(kv->Layer(layer).v.data, views.v.data);
      }
      EXPECT_LE(end, reinterpret_cast<uintptr_t>(kv->LayerBytes(0).data()) +
                         static_cast<uintptr_t>(kv->size_bytes()));
      EXPECT_EQ(kv->size_bytes(), 3 * kv->layer_bytes());
      EXPECT_EQ(kv->size_bytes(), *ChunkKv::SizeBytes(format, num_tokens));
    }
  }
}

TEST(ChunkKvTest, BytesPerTokenCountScales) {
  const auto bytes = [](kernels::KvEncoding encoding) {
    return KvFormat{.encoding = encoding, .num_layers = 2, .num_kv_heads = 2, .head_dim = 64}.BytesPerToken();
  };
  EXPECT_EQ(bytes(kernels::KvEncoding::kF32), 2 * 2 * 128 * 4);
  EXPECT_EQ(bytes(kernels::KvEncoding::kBF16), 2 * 2 * 128 * 2);
  // K: 128 channels' scales of 4 bytes per 32 tokens; V: 4 groups' per token.
  EXPECT_EQ(bytes(kernels::KvEncoding::kInt8), 2 * (2 * 128 + 16 + 16));
  EXPECT_EQ(bytes(kernels::KvEncoding::kInt4), 2 * (2 * 64 + 16 + 16));
  // Steps without offsets.
  EXPECT_EQ(bytes(kernels::KvEncoding::kFp8), 2 * (2 * 128 + 8 + 8));
}

TEST(ChunkKvTest, PaddingBetweenSectionsIsZero) {
  const KvFormat format = {
      .encoding = kernels::KvEncoding::kInt8, .num_layers = 2, .num_kv_heads = 1, .head_dim = 8};
  // Memory that was used before.
  class DirtyMemory final : public HostMemory {
   public:
    void* Allocate(int64_t bytes) override {
      void* data = Heap().Allocate(bytes);
      std::memset(data, 0xA5, static_cast<size_t>(bytes));
      return data;
    }
    void Free(void* data, int64_t bytes) override { Heap().Free(data, bytes); }
  } memory;
  const auto kv = *ChunkKv::Allocate(format, 5, memory);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const LayerKv views = kv->Layer(layer);
    const absl::Span<const std::byte> bytes = kv->LayerBytes(layer);
    for (int64_t i = views.k.layout().size_bytes; i < kv->k_section_bytes(); ++i) {
      ASSERT_EQ(bytes[i], std::byte{0}) << i;
    }
    for (int64_t i = kv->k_section_bytes() + views.v.layout().size_bytes; i < kv->layer_bytes(); ++i) {
      ASSERT_EQ(bytes[i], std::byte{0}) << i;
    }
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
  LimitedMemory memory(20000);
  {
    const auto fits = ChunkKv::Allocate(format, 3, memory);
    ASSERT_TRUE(fits.ok()) << fits.status();
    EXPECT_EQ(memory.used(), 4 * 4096);
    const auto refused = ChunkKv::Allocate(format, 1, memory);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("16384 bytes"));
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
           Case{"encoding", [](KvFormat& f) { f.encoding = static_cast<kernels::KvEncoding>(7); }},
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
  const KvFormat largest = {.encoding = kernels::KvEncoding::kF32,
                            .num_layers = 1 << 16,
                            .num_kv_heads = 1 << 20,
                            .head_dim = 1 << 18};
  EXPECT_GT(largest.BytesPerToken(), 0);
  EXPECT_TRUE(ChunkKv::SizeBytes(largest, 1).ok());
  EXPECT_EQ(ChunkKv::SizeBytes(largest, INT32_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  // Exactly at the edge: 2^57 bytes per token.
  EXPECT_TRUE(ChunkKv::SizeBytes(largest, 63).ok());
  EXPECT_EQ(ChunkKv::SizeBytes(largest, 64).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvblend::store
