#include "engine/text/char_class.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace kvblend::text {
namespace {

struct ClassRange {
  uint32_t first;
  uint32_t last;
  CharClass char_class;
};

constexpr CharClass kLetter = CharClass::kLetter;
constexpr CharClass kNumber = CharClass::kNumber;
constexpr CharClass kSpace = CharClass::kSpace;

constexpr ClassRange kRanges[] = {
#include "engine/text/unicode_ranges.inc"
};

constexpr CharClass ClassByScan(uint32_t code_point) {
  for (const ClassRange& range : kRanges) {
    if (code_point <= range.last) return code_point < range.first ? CharClass::kOther : range.char_class;
  }
  return CharClass::kOther;
}

constexpr auto kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (uint32_t i = 0; i < classes.size(); ++i) classes[i] = ClassByScan(i);
  return classes;
}();

}  // namespace

CharClass ClassOf(uint32_t code_point) {
  if (code_point < kAsciiClasses.size()) return kAsciiClasses[code_point];
  const auto* range =
      std::lower_bound(std::begin(kRanges), std::end(kRanges), code_point,
                       [](const ClassRange& candidate, uint32_t value) { return candidate.last < value; });
  if (range == std::end(kRanges) || code_point < range->first) return CharClass::kOther;
  return range->char_class;
}

}  // namespace kvblend::text
