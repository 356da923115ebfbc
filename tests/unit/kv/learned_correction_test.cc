#include "engine/kv/learned_correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/backend_decorator.h"

namespace kvblend::kv {
namespace {

/// Keeps what corrections were created of.
class Recording final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  struct Map {
    int64_t rank;
    std::vector<float> down, up;
  };
  std::vector<Map> maps;

 protected:
  absl::StatusOr<std::unique_ptr<kernels::KvCorrection>> DoCreateKvCorrection(
      const kernels::KvCorrectionSpec& spec) override {
    maps.push_back({spec.rank, {spec.down.begin(), spec.down.end()}, {spec.up.begin(), spec.up.end()}});
    return BackendDecorator::DoCreateKvCorrection(spec);
  }
};

TEST(LearnedCorrectionTest, BackendsGetTheDirectionsThatAreUsed) {
  LayerCorrection layer{.scale = {1, 1, 1, 1},
                        .offset = std::vector<float>(4 * kernels::kNumKvCorrectionPlaces, 0.5f),
                        .down = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                        .up = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 0}};
  LearnedCorrection correction{
      .num_kv_heads = 1, .head_dim = 2, .rank = 3, .layers = {{}, layer, layer, layer}};
  correction.layers[2].up[10] = 0;  // the last direction
  correction.layers[3].up.assign(12, 0.0f);
  Recording backend(kernels::CreateReferenceBackend());
  const auto loaded = LoadedCorrection::Load(correction, "version", backend);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->layers[0], nullptr);
  ASSERT_EQ(backend.maps.size(), 3);
  EXPECT_EQ(backend.maps[0].rank, 3);  // what stands between those that are used stays
  EXPECT_EQ(backend.maps[0].down, layer.down);
  EXPECT_EQ(backend.maps[0].up, layer.up);
  EXPECT_EQ(backend.maps[1].rank, 1);
  EXPECT_THAT(backend.maps[1].down, testing::ElementsAre(1, 4, 7, 10));
  EXPECT_THAT(backend.maps[1].up, testing::ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(backend.maps[2].rank, 0);
  EXPECT_THAT(backend.maps[2].down, testing::IsEmpty());
}

}  // namespace
}  // namespace kvblend::kv
