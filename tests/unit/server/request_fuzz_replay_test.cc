#include "tests/support/fuzz_replay.h"

// LLVMFuzzerTestOneInput under another name (CMakeLists.txt).
extern "C" int FuzzRequest(const uint8_t* data, size_t size);

namespace kvblend::server {
namespace {

TEST(RequestFuzzReplayTest, CorpusAndMutationsOfIt) {
  test_support::ReplayCorpusAndMutations(FuzzRequest, "request", /*min_files=*/8, /*rounds=*/5000);
}

}  // namespace
}  // namespace kvblend::server
