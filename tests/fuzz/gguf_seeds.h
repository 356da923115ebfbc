// Small files from which the GGUF fuzzer starts.
#pragma once

#include <string>
#include <vector>

namespace kvblend::test_support {

/// Models of a few kilobytes: tied, untied, scaled RoPE, quantized, version 2.
std::vector<std::string> GgufSeeds();

}  // namespace kvblend::test_support
