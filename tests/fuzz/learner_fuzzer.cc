// Files of what a learner has seen: whatever is read is written again byte for byte, or as the newest
// version, which has the bytes of its first one and two counts. Input: a file without its checksum.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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
    const std::string again = kvblend::kv::EncodeLearner(options, *state);
    if (bytes[8] == 1) {
      std::string_view kept = again, old = bytes;
      Check(kept.size() == old.size() + 16, "there are two counts more");
      Check(kept.substr(12, 100) == old.substr(12, 100), "the header is written again");
      kept.remove_prefix(128);
      old.remove_prefix(112);
      Check(kept.substr(0, kept.size() - 8) == old.substr(0, old.size() - 8), "moments are written again");
    } else {
      Check(again == bytes, "what is read is written again");
    }
    // Numbers that no pairs give may come out of it, but nothing worse.
    kvblend::kv::CorrectionLearner learner(options);
    learner.Restore(*state);
    learner.Fit([] { return true; });
  }
  return 0;
}
