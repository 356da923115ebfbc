// Counts what `new` is asked for in the whole program that links allocation_counter.cc.
#pragma once

#include <cstdint>

namespace kvblend::test_support {

/// So far, on all threads.
int64_t NumAllocations();

}  // namespace kvblend::test_support
