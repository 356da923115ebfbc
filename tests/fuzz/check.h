// What a fuzzer's body holds its code to.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvblend::test_support {

/// Ends the program unless `holds`: a violation is a finding.
inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace kvblend::test_support
