#include "tests/support/fuzz_replay.h"

// LLVMFuzzerTestOneInput of the two fuzzers, under other names (CMakeLists.txt).
extern "C" int FuzzTokenizer(const uint8_t* data, size_t size);
extern "C" int FuzzDetokenizer(const uint8_t* data, size_t size);

namespace kvblend::text {
namespace {

TEST(FuzzReplayTest, Tokenizer) {
  test_support::ReplayCorpusAndMutations(FuzzTokenizer, "tokenizer", /*min_files=*/5, /*rounds=*/3000);
}

TEST(FuzzReplayTest, Detokenizer) {
  test_support::ReplayCorpusAndMutations(FuzzDetokenizer, "detokenizer", /*min_files=*/5, /*rounds=*/3000);
}

}  // namespace
}  // namespace kvblend::text
