// GPT-2's spelling of bytes in vocabulary files: every byte is one printable character, so that token strings
// hold neither spaces nor control characters ("Ġ" stands for a space).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvblend::text {

/// The bytes that a token string of a byte-level vocabulary stands for; nullopt when one of its characters
/// stands for no byte.
std::optional<std::string> BytesOfTokenString(std::string_view token_string);

}  // namespace kvblend::text
