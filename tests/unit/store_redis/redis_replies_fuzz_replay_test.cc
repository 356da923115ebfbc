#include "tests/support/fuzz_replay.h"

// LLVMFuzzerTestOneInput under another name (CMakeLists.txt).
extern "C" int FuzzRedisReplies(const uint8_t* data, size_t size);

namespace kvblend::store {
namespace {

TEST(RedisRepliesFuzzReplayTest, CorpusAndMutationsOfIt) {
  test_support::ReplayCorpusAndMutations(FuzzRedisReplies, "redis_replies", /*min_files=*/12,
                                         /*rounds=*/20000);
}

}  // namespace
}  // namespace kvblend::store
