// Files of what a learner has seen: whatever is read is written again byte for byte. Input: a file without its checksum.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/kv/learner_file.h"
#include "engine/kv/sealed_bytes.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvblend::test_support::Check;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  kvblend::kv::Seal(bytes);
  // The two kinds of moments have files of their own.
  for (const int64_t max_bytes : {int64_t{1} << 20, int64_t{1}}) {
    const kvblend::kv::LearnerOptions options{
        .num_layers = 2, .num_kv_heads = 1, .head_dim = 2, .max_bytes = max_bytes};
    const auto state = kvblend::kv::DecodeLearner(options, bytes);
    if (!state.ok()) {
      Check(state.status().code() == absl::StatusCode::kInvalidArgument, "errors have one code");
      continue;
    }
    Check(kvblend::kv::EncodeLearner(options, *state) == bytes, "what is read is written again");
    // Numbers that no pairs give may come out of it, but nothing worse.
    kvblend::kv::CorrectionLearner learner(options);
    learner.Restore(*state);
    learner.Fit([] { return true; });
  }
  return 0;
}
