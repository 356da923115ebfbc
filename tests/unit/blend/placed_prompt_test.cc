// What calibration sees of a prompt, layer by layer.
#include "engine/serve/calibration/placed_prompt.h"

#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class PlacedPromptTest : public BlendFixture {
 protected:
  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33)};
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, RandomTokens(13));
};

// Where it stands a chunk has the first layer's K and V that it has anywhere; behind that what stands before
// it tells.
TEST_P(PlacedPromptTest, StoredAndFreshDifferFromTheSecondLayerOn) {
  PlacedPrompt placed(*runtime_, *runner_, Anchoring::kAnchored);
  int32_t layers = 0;
  ASSERT_TRUE(
      placed
          .VisitLayers(layout_, {},
                       [&](const PlacedPrompt::Layer& layer,
                           absl::Span<const PlacedPrompt::Chunk> chunks) -> absl::Status {
                         EXPECT_EQ(layer.index(), layers++);
                         EXPECT_EQ(chunks.size(), 1);  // the first one is exact
                         EXPECT_EQ(chunks[0].begin, 61);
                         const auto stored = layer.StoredOf(chunks[0]);
                         const auto fresh = layer.FreshOf(chunks[0]);
                         EXPECT_TRUE(stored.ok()) << stored.status();
                         const double distance = RelativeDistance({fresh.begin(), fresh.end()}, *stored);
                         if (layer.index() == 0) {
                           EXPECT_LT(distance, 0.02);  // int8
                         } else {
                           EXPECT_GT(distance, 0.02) << layer.index();
                         }
                         return absl::OkStatus();
                       })
          .ok());
  EXPECT_EQ(layers, runtime_->config.num_layers);
}

TEST_P(PlacedPromptTest, OutputWeightsAreWhatAttentionIsMultipliedBy) {
  PlacedPrompt placed(*runtime_, *runner_, Anchoring::kAnchored);
  kernels::Backend& backend = *runtime_->backend;
  const model::ModelConfig& config = runtime_->config;
  const int64_t hidden = config.hidden_dim;
  ASSERT_TRUE(
      placed
          .VisitLayers(
              layout_, {},
              [&](const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk>) -> absl::Status {
                const auto weights = layer.OutputWeights();
                EXPECT_TRUE(weights.ok()) << weights.status();
                const auto inputs = static_cast<int64_t>(weights->size()) / hidden;
                std::vector<float> x(inputs), product(hidden), expected(hidden);
                for (float& value : x) value = static_cast<float>(random_() % 201) / 100 - 1;
                for (int64_t i = 0; i < inputs; ++i) {
                  for (int64_t j = 0; j < hidden; ++j) expected[j] += x[i] * (*weights)[i * hidden + j];
                }
                model::ScratchMatrix row, out;
                const auto in = row.Resize(backend, 1, inputs, kernels::DataType::kF32),
                           result = out.Resize(backend, 1, hidden, kernels::DataType::kF32);
                kernels::Stream& stream = *runtime_->stream;
                EXPECT_TRUE(backend.CopyFromHost(stream, in->data, x.data(), inputs * 4).ok());
                EXPECT_TRUE(
                    runtime_->transformer->ProjectOutput(stream, layer.index(), *in, false, *result).ok());
                EXPECT_TRUE(backend.CopyToHost(stream, product.data(), result->data, hidden * 4).ok());
                EXPECT_TRUE(backend.Synchronize(stream).ok());
                EXPECT_LT(RelativeDistance(product, expected), kRounding) << layer.index();
                return absl::OkStatus();
              })
          .ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, PlacedPromptTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
