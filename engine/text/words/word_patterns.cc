#include "engine/text/words/word_patterns.h"

#include <algorithm>
#include <iterator>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

using Character = Stretch::Character;

constexpr CharClasses kSpaces = AnyOf(CharClass::kSpace);
constexpr CharClasses kNumbers = AnyOf(CharClass::kNumber);
constexpr CharClasses kPunctuationOrSymbol = CharClass::kPunctuation | CharClass::kSymbol;
// GPT-4o's UP and LOW.
constexpr CharClasses kUp = CharClass::kUpper | CharClass::kCaseless | CharClass::kMark;
constexpr CharClasses kLow = CharClass::kLower | CharClass::kCaseless | CharClass::kMark;

bool Exists(const Character& character) { return character.length != 0; }

bool IsOf(const Character& character, CharClasses classes) {
  return Exists(character) && IsIn(character.char_class, classes);
}

bool IsLineBreak(const Character& character) {
  return character.code_point == '\r' || character.code_point == '\n';
}

bool IsAsciiLetter(const Character& character) {
  return (character.code_point | 0x20) >= 'a' && (character.code_point | 0x20) <= 'z';
}

// Simple case folding, as far as the letters of English contractions have partners: U+017F folds to 's'.
uint32_t FoldCase(uint32_t code_point) {
  if (code_point >= 'A' && code_point <= 'Z') return code_point + ('a' - 'A');
  return code_point == 0x17F ? 's' : code_point;
}

size_t MatchContraction(const Stretch& stretch, size_t begin, bool ignore_case) {
  if (stretch.At(begin).code_point != '\'') return begin;
  size_t end = begin + 1;
  const auto letter = [&]() -> uint32_t {
    const Character next = stretch.At(end);
    end += next.length;
    return ignore_case ? FoldCase(next.code_point) : next.code_point;
  };
  const uint32_t first = letter();
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return end;
  if (first == 'r' || first == 'v') return letter() == 'e' ? end : begin;
  if (first == 'l') return letter() == 'l' ? end : begin;
  return begin;
}

// \s+(?!\S)|\s+
size_t MatchSpaces(const Stretch& stretch, size_t begin) {
  size_t last = begin;  // where the run's last character begins
  size_t end = begin;
  for (Character next = stretch.At(end); IsOf(next, kSpaces); next = stretch.At(end)) {
    last = end;
    end += next.length;
  }
  // Before other text the run leaves its last character to the next word, unless it has only that one.
  return Exists(stretch.At(end)) && last > begin ? last : end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+: the white space up to its last line break, where it has one.
size_t MatchSpacesByLines(const Stretch& stretch, size_t begin) {
  size_t after_break = begin;
  size_t end = begin;
  for (Character next = stretch.At(end); IsOf(next, kSpaces); next = stretch.At(end)) {
    end += next.length;
    if (IsLineBreak(next)) after_break = end;
  }
  return after_break > begin ? after_break : MatchSpaces(stretch, begin);
}

// " ?[classes]+", and then any of \r, \n and `also`
size_t MatchSigns(const Stretch& stretch, size_t begin, CharClasses classes, char also) {
  const Character first = stretch.At(begin);
  const bool led_by_space = first.code_point == ' ' && IsOf(stretch.At(begin + 1), classes);
  if (!led_by_space && !IsOf(first, classes)) return begin;
  size_t end = stretch.Skip(begin + (led_by_space ? 1 : 0), classes);
  for (Character next = stretch.At(end);
       IsLineBreak(next) || (Exists(next) && next.code_point == static_cast<uint32_t>(also));
       next = stretch.At(end)) {
    end += next.length;
  }
  return end;
}

// UP*LOW+: where the run of UP ends before something else than LOW, it gives back as much as it takes.
size_t MatchLowered(const Stretch& stretch, size_t begin) {
  size_t end = begin;
  size_t after_low = begin;  // behind the last character of the run that is LOW as well
  for (Character next = stretch.At(end); IsOf(next, kUp); next = stretch.At(end)) {
    end += next.length;
    if (IsOf(next, kLow)) after_low = end;
  }
  const size_t after_lower = stretch.Skip(end, kLow);
  return after_lower > end ? after_lower : after_low;
}

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

constexpr CodePointRange kCased[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
    {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
    {0x376, 0x376},     {0x377, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},
    {0x388, 0x38A},     {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},
    {0x48A, 0x52F},     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},
    {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},
    {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
    {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
    {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},
    {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},
    {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
    {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},   {0x2184, 0x2184},
    {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},
    {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
    {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
    {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2},
    {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

bool IsCased(uint32_t code_point) {
  const auto* range = std::lower_bound(
      std::begin(kCased), std::end(kCased), code_point,
      [](const CodePointRange& candidate, uint32_t value) { return candidate.last < value; });
  return range != std::end(kCased) && code_point >= range->first;
}

// Two of the ranges in DeepSeek LLM's pattern go across letters.
bool IsListedPunctuation(uint32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '~') || (c >= 0xFF01 && c <= 0xFF0F) ||
         (c >= 0xFF1A && c <= 0xFF5E) || (c >= 0x2018 && c <= 0x201F) || (c >= 0x3000 && c <= 0x3002);
}

bool IsHanKana(uint32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

bool IsEastAsian(uint32_t c) { return (c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF); }

size_t SkipWhere(const Stretch& stretch, size_t begin, bool (*wanted)(uint32_t)) {
  size_t end = begin;
  for (Character next = stretch.At(end); Exists(next) && wanted(next.code_point); next = stretch.At(end)) {
    end += next.length;
  }
  return end;
}

// \s?[wanted]+
size_t MatchSpacedWhere(const Stretch& stretch, size_t begin, bool (*wanted)(uint32_t)) {
  if (const size_t end = SkipWhere(stretch, begin, wanted); end > begin) return end;
  const Character first = stretch.At(begin);
  if (!IsOf(first, kSpaces)) return begin;
  const size_t end = SkipWhere(stretch, begin + first.length, wanted);
  return end > begin + first.length ? end : begin;
}

}  // namespace

Character Stretch::At(size_t position) const {
  if (position >= text.size()) return {0, 0, CharClass::kOther};
  const Utf8Step step = DecodeUtf8At(text, position);
  return {step.code_point, step.length, ClassOf(step.code_point)};
}

size_t Stretch::Skip(size_t position, CharClasses classes) const {
  for (Character next = At(position); IsOf(next, classes); next = At(position)) position += next.length;
  return position;
}

size_t MatchGpt2(const Stretch& stretch, size_t begin) {
  if (const size_t end = MatchContraction(stretch, begin, /*ignore_case=*/false); end > begin) return end;
  const Character first = stretch.At(begin);
  const Character second = stretch.At(begin + first.length);
  const bool led_by_space = first.code_point == ' ' && IsOf(second, AllBut(kSpaces));
  if (IsOf(first, kSpaces) && !led_by_space) return MatchSpaces(stretch, begin);
  const Character word = led_by_space ? second : first;
  constexpr CharClasses kWords[] = {kLetters, kNumbers,
                                    AllBut(kLetters | CharClass::kNumber | CharClass::kSpace)};
  for (const CharClasses classes : kWords) {
    if (IsOf(word, classes)) return stretch.Skip(begin + (led_by_space ? 1 : 0), classes);
  }
  return begin;
}

size_t MatchLlama(const Stretch& stretch, size_t begin, const LlamaPattern& pattern) {
  if (const size_t end = MatchContraction(stretch, begin, /*ignore_case=*/true); end > begin) return end;
  const Character first = stretch.At(begin);
  const size_t after_first = begin + first.length;
  if (IsOf(first, pattern.letters)) return stretch.Skip(begin, pattern.letters);
  if (IsOf(first, AllBut(kNumbers)) && !IsLineBreak(first) &&
      IsOf(stretch.At(after_first), pattern.letters)) {
    return stretch.Skip(after_first, pattern.letters);
  }
  if (const size_t end = MatchNumbers(stretch, begin, pattern.max_numbers); end > begin) return end;
  const CharClasses signs = AllBut(pattern.letters | CharClass::kNumber | CharClass::kSpace);
  if (const size_t end = MatchSigns(stretch, begin, signs, '\n'); end > begin) return end;
  return MatchSpacesByLines(stretch, begin);
}

size_t MatchCases(const Stretch& stretch, size_t begin, const CasePattern& pattern) {
  const Character first = stretch.At(begin);
  const auto with_contraction = [&](size_t end) {
    return pattern.contractions ? MatchContraction(stretch, end, /*ignore_case=*/true) : end;
  };
  const bool may_lead = IsOf(first, AllBut(kLetters | CharClass::kNumber)) && !IsLineBreak(first);
  const size_t after_lead = begin + (may_lead ? first.length : 0);
  for (const size_t word : {after_lead, begin}) {
    if (const size_t end = MatchLowered(stretch, word); end > word) return with_contraction(end);
  }
  for (const size_t word : {after_lead, begin}) {
    const size_t end = stretch.Skip(word, kUp);
    if (end > word) return with_contraction(stretch.Skip(end, kLow));
  }
  if (const size_t end = MatchNumbers(stretch, begin, pattern.max_numbers); end > begin) return end;
  const CharClasses signs = AllBut(kLetters | CharClass::kNumber | CharClass::kSpace);
  if (const size_t end = MatchSigns(stretch, begin, signs, '/'); end > begin) return end;
  return MatchSpacesByLines(stretch, begin);
}

size_t MatchDeepSeekV3(const Stretch& stretch, size_t begin) {
  const Character first = stretch.At(begin);
  const size_t after_first = begin + first.length;
  const Character second = stretch.At(after_first);
  if (first.code_point < 0x80 && IsOf(first, kPunctuationOrSymbol) && IsAsciiLetter(second)) {
    size_t end = after_first;
    while (IsAsciiLetter(stretch.At(end))) ++end;
    return end;
  }
  const CharClasses letters = kLetters | CharClass::kMark;
  if (IsOf(first, letters)) return stretch.Skip(begin, letters);
  if (IsOf(first, AllBut(kPunctuationOrSymbol)) && !IsLineBreak(first) && IsOf(second, letters)) {
    return stretch.Skip(after_first, letters);
  }
  if (const size_t end = MatchSigns(stretch, begin, kPunctuationOrSymbol, '\n'); end > begin) return end;
  return MatchSpacesByLines(stretch, begin);
}

size_t MatchNumbers(const Stretch& stretch, size_t begin, size_t max_numbers) {
  size_t end = begin;
  for (size_t count = 0; count < max_numbers; ++count) {
    const Character next = stretch.At(end);
    if (!IsOf(next, kNumbers)) break;
    end += next.length;
  }
  return end;
}

size_t MatchThreeDigits(const Stretch& stretch, size_t begin) {
  for (size_t i = begin; i < begin + 3; ++i) {
    const uint32_t digit = stretch.At(i).code_point;
    if (digit < '0' || digit > '9') return begin;
  }
  return begin + 3;
}

size_t MatchLineBreak(const Stretch& stretch, size_t begin) {
  return begin + (IsLineBreak(stretch.At(begin)) ? 1 : 0);
}

size_t MatchSpaced(const Stretch& stretch, size_t begin, CharClasses classes) {
  const Character first = stretch.At(begin);
  const size_t word = begin + (IsOf(first, kSpaces) ? first.length : 0);
  const size_t end = stretch.Skip(word, classes);
  return end > word ? end : begin;
}

size_t MatchPunctuation(const Stretch& stretch, size_t begin) {
  constexpr std::string_view kSigns = "$+<=>^~|";
  size_t end = begin;
  for (;;) {
    const Character next = stretch.At(end);
    const bool is_sign =
        next.code_point < 0x80 && kSigns.find(static_cast<char>(next.code_point)) != std::string_view::npos;
    if (!Exists(next) || !(is_sign || next.char_class == CharClass::kPunctuation)) return end;
    end += next.length;
  }
}

size_t MatchTrailingSpaces(const Stretch& stretch, size_t begin) {
  const size_t end = stretch.Skip(begin, kSpaces);
  return end == stretch.text.size() ? end : begin;
}

size_t MatchHanKana(const Stretch& stretch, size_t begin) { return SkipWhere(stretch, begin, IsHanKana); }

size_t MatchEastAsian(const Stretch& stretch, size_t begin) { return SkipWhere(stretch, begin, IsEastAsian); }

size_t MatchSpacedCased(const Stretch& stretch, size_t begin) {
  return MatchSpacedWhere(stretch, begin, IsCased);
}

size_t MatchSpacedListedPunctuation(const Stretch& stretch, size_t begin) {
  return MatchSpacedWhere(stretch, begin, IsListedPunctuation);
}

}  // namespace kvblend::text
