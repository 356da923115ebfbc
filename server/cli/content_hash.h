// Names content by its hash: prompts in keys, files by what they hold. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace kvblend::server::cli {

/// XXH3-128 in 32 hexadecimal digits. Finds accidents, not somebody who means to deceive.
std::string ContentHash(std::string_view content);

}  // namespace kvblend::server::cli
