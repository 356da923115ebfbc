// Unicode's normal forms (UAX #15), as far as tokenizers ask for them.
#pragma once

#include <string>
#include <string_view>

namespace kvblend::text {

enum class Normalization { kNone, kNfc, kNfkc };

/// `text`, valid UTF-8, in the normal form, as Hugging Face tokenizers make it: by Unicode 9.0. Characters
/// that came later stay what they are, and nothing goes past them. A pure function; safe from any thread.
std::string Normalize(std::string_view text, Normalization normalization);

}  // namespace kvblend::text
