// Python's operations on strings, on UTF-8. Upper and lower case are those of ASCII: nothing else is in a
// chat template's own words. Pure functions; safe from any thread. REQUIRES: valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvblend::text::jinja {

/// Without whitespace as str.strip() knows it.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);
/// Without the characters of `set`.
std::string_view StripLeft(std::string_view text, std::string_view set);
std::string_view StripRight(std::string_view text, std::string_view set);

/// str.split(): between runs of whitespace. At most `limit` splits; below 0: all.
std::vector<std::string> SplitAtSpace(std::string_view text, int64_t limit);
/// str.split(separator). REQUIRES: a separator that is not empty.
std::vector<std::string> SplitAt(std::string_view text, std::string_view separator, int64_t limit);
/// str.rsplit(separator).
std::vector<std::string> SplitAtFromRight(std::string_view text, std::string_view separator, int64_t limit);
/// str.splitlines(), at \n and \r.
std::vector<std::string> SplitLines(std::string_view text);
/// At most `limit` replacements; below 0: all. An empty `from` is before every character and at the end.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to, int64_t limit);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalized(std::string_view text);
/// str.title(): a letter is large where no letter is before it.
std::string Titled(std::string_view text);
/// The filter of that name: words are what blanks, "-" and opening brackets separate.
std::string TitledWords(std::string_view text);

/// In characters.
int64_t Length(std::string_view text);
/// Where each character begins, and the end of the text.
std::vector<size_t> CharacterOffsets(std::string_view text);

/// Appends what a string literal of Python with this inside means; false: an escape of no character.
bool AppendUnescaped(std::string_view literal, std::string* output);

}  // namespace kvblend::text::jinja
