#include "tests/support/fuzz_replay.h"

// LLVMFuzzerTestOneInput under another name (CMakeLists.txt).
extern "C" int FuzzIndexRebuild(const uint8_t* data, size_t size);

namespace kvblend::store {
namespace {

TEST(IndexRebuildFuzzReplayTest, CorpusAndMutationsOfIt) {
  test_support::ReplayCorpusAndMutations(FuzzIndexRebuild, "index_rebuild", /*min_files=*/12,
                                         /*rounds=*/1000);
}

}  // namespace
}  // namespace kvblend::store
