// Files of a calibration's steps on what attention reads: whatever is read is written again byte for byte,
// and can be gone on from. Input: a file without its checksum.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kv/sealed_bytes.h"
#include "engine/kv/tuning/tuning_checkpoint.h"
#include "tests/fuzz/check.h"

namespace {

using kvblend::kv::LayerTuners;

constexpr uint64_t kIdentity = 0x1122334455667788;

/// Of two layers, the first of which stays as it is stored.
LayerTuners Tuners() {
  const std::vector<float> stored = {1, 2, 3, 4, 2, 1, 0, 5}, fresh = {2, 2, 2, 2, 1, 1, 1, 3},
                           weights = {1, 1};
  const std::vector<int32_t> tokens = {0, 1};
  kvblend::kv::PairMoments pairs(4);
  pairs.Add({.stored = stored, .fresh = fresh, .tokens = tokens, .weights = weights});
  kvblend::kv::LayerCorrection start{
      .scale = std::vector<float>(4, 1),
      .offset = std::vector<float>(kvblend::kernels::kNumKvCorrectionPlaces * 4),
      .down = {1, 0, 0, 1},
      .up = {0, 1, 1, 0}};
  LayerTuners tuners(2);
  tuners[1].emplace(std::move(start), /*rank=*/1, pairs);
  return tuners;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvblend::test_support::Check;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  kvblend::kv::Seal(bytes);
  const kvblend::kv::LearnerOptions options{.num_layers = 2, .num_kv_heads = 1, .head_dim = 2};
  static const LayerTuners kFresh = Tuners();
  LayerTuners tuners = kFresh;
  const std::string before = EncodeTuning(options, kIdentity, 0, tuners);
  const auto steps = DecodeTuning(options, kIdentity, bytes, tuners);
  const std::string after = EncodeTuning(options, kIdentity, steps.value_or(0), tuners);
  if (!steps.ok()) {
    Check(steps.status().code() == absl::StatusCode::kInvalidArgument, "errors have one code");
    Check(after == before, "what is refused changes nothing");
    return 0;
  }
  Check(after == bytes || (*steps == 0 && after == before), "what is read is written again");
  // Numbers that no steps give may come out of it, but nothing worse.
  const std::vector<float> stored = {1, 2, 3, 4}, gradient = {1, -1, 0, 2};
  const std::vector<int32_t> tokens = {3};
  tuners[1]->AddGradient(stored, tokens, gradient);
  tuners[1]->Step(0.01);
  tuners[1]->Mean();
  return 0;
}
