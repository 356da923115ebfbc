#include "tests/support/fuzz_replay.h"

// LLVMFuzzerTestOneInput under another name (CMakeLists.txt).
extern "C" int FuzzEntry(const uint8_t* data, size_t size);

namespace kvblend::store {
namespace {

TEST(EntryFuzzReplayTest, CorpusAndMutationsOfIt) {
  test_support::ReplayCorpusAndMutations(FuzzEntry, "entry", /*min_files=*/8, /*rounds=*/5000);
}

}  // namespace
}  // namespace kvblend::store
