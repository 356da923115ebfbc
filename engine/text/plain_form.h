// SentencePiece's treatment of spaces, before its models see a text.
#pragma once

#include <string>
#include <string_view>

namespace kvblend::text {

/// "\u2581" as in vocabularies: stands for a space.
inline constexpr std::string_view kSpaceSign = "\xE2\x96\x81";

/// `text` with every U+2581 as the space that it stands for: SentencePiece does not tell the two apart.
std::string WithPlainSpaces(std::string_view text);

/// Drops the spaces (U+0020) at both ends of `text`, and all but one of those in a row.
void RemoveExtraSpaces(std::string* text);

/// The byte that "<0x41>" names; -1 when `token` is no such name.
int ByteOfName(std::string_view token);

}  // namespace kvblend::text
