#include "engine/text/char_class.h"

#include <algorithm>
#include <array>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// The letters of unicode_ranges.inc: upper, lower and other letters, marks, numbers, punctuation, symbols,
// white space, and upper and lower case in turn.
enum class RangeClass : uint8_t { U, L, O, M, N, P, S, W, A };

struct ClassRange {
  uint32_t first;
  uint32_t last;
  RangeClass range_class;
};

constexpr auto kRanges = [] {
  using enum RangeClass;
  return std::to_array<ClassRange>({
#include "engine/text/unicode_ranges.inc"
  });
}();

constexpr CharClass ClassIn(const ClassRange& range, uint32_t code_point) {
  switch (range.range_class) {
    case RangeClass::U:
      return CharClass::kUpper;
    case RangeClass::L:
      return CharClass::kLower;
    case RangeClass::O:
      return CharClass::kCaseless;
    case RangeClass::M:
      return CharClass::kMark;
    case RangeClass::N:
      return CharClass::kNumber;
    case RangeClass::P:
      return CharClass::kPunctuation;
    case RangeClass::S:
      return CharClass::kSymbol;
    case RangeClass::W:
      return CharClass::kSpace;
    case RangeClass::A:
      return (code_point - range.first) % 2 == 0 ? CharClass::kUpper : CharClass::kLower;
  }
  return CharClass::kOther;
}

constexpr CharClass ClassByScan(uint32_t code_point) {
  for (const ClassRange& range : kRanges) {
    if (code_point > range.last) continue;
    return code_point < range.first ? CharClass::kOther : ClassIn(range, code_point);
  }
  return CharClass::kOther;
}

}  // namespace

constinit const std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (uint32_t i = 0; i < classes.size(); ++i) classes[i] = ClassByScan(i);
  return classes;
}();

CharClass ClassBeyondAscii(uint32_t code_point) {
  const auto* range =
      std::lower_bound(kRanges.begin(), kRanges.end(), code_point,
                       [](const ClassRange& candidate, uint32_t value) { return candidate.last < value; });
  if (range == kRanges.end() || code_point < range->first) return CharClass::kOther;
  return ClassIn(*range, code_point);
}

std::string_view WithoutSpaceInFront(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8At(text, 0);
    if (step.kind != Utf8Step::Kind::kValid || ClassOf(step.code_point) != CharClass::kSpace) break;
    text.remove_prefix(step.length);
  }
  return text;
}

std::string_view WithoutSpaceAtEnd(std::string_view text) {
  const auto goes_on = [](char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; };
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && goes_on(text[last])) --last;
    const Utf8Step step = DecodeUtf8At(text, last);
    if (step.kind != Utf8Step::Kind::kValid || ClassOf(step.code_point) != CharClass::kSpace) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace kvblend::text
