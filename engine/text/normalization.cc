#include "engine/text/normalization.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// Code points that utf8proc, which knows Unicode 15.0, would change and the tokenizers do not.
constexpr auto kLeftAlone = std::to_array<CodePointRange>({
#include "engine/text/normalization_ranges.inc"
});

// The longest decomposition, U+FDFA's, has 18 code points.
constexpr size_t kMostDecomposed = 32;

bool IsLeftAlone(uint32_t code_point) {
  const auto* range = std::lower_bound(
      kLeftAlone.begin(), kLeftAlone.end(), code_point,
      [](const CodePointRange& candidate, uint32_t value) { return candidate.last < value; });
  return range != kLeftAlone.end() && code_point >= range->first;
}

// Marks that follow each other, in canonical order (UAX #15, D109). utf8proc_decompose would swap neighbours
// until none is out of order, which takes a text of nothing but marks the square of its length.
void OrderMarks(std::vector<utf8proc_int32_t>& code_points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto is_mark = [&](utf8proc_int32_t c) { return combining_class(c) != 0; };
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    begin = std::find_if(begin, code_points.end(), is_mark);
    const auto end = std::find_if_not(begin, code_points.end(), is_mark);
    const auto goes_before = [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    };
    if (!std::is_sorted(begin, end, goes_before)) std::stable_sort(begin, end, goes_before);
    begin = end;
  }
}

void AppendNormal(std::string_view text, utf8proc_option_t options, std::string* output) {
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8At(text, at);
    const auto code_point = static_cast<utf8proc_int32_t>(step.code_point);
    std::array<utf8proc_int32_t, kMostDecomposed> parts;
    int unused = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(code_point, parts.data(), parts.size(), options, &unused);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
      code_points.push_back(code_point);  // none is as long
    } else {
      code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
    }
    at += step.length;
  }
  OrderMarks(code_points);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t size = utf8proc_encode_char(code_points[static_cast<size_t>(i)], bytes.data());
    output->append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(size));
  }
}

}  // namespace

std::string Normalize(std::string_view text, Normalization normalization) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (normalization == Normalization::kNone || std::ranges::all_of(text, is_ascii)) return std::string(text);
  int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
  if (normalization == Normalization::kNfkc) options |= UTF8PROC_COMPAT;
  std::string normal;
  size_t begin = 0;  // of what waits to be normalized
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8At(text, at);
    const size_t next = at + step.length;
    if (step.kind == Utf8Step::Kind::kValid && step.length > 1 && IsLeftAlone(step.code_point)) {
      AppendNormal(text.substr(begin, at - begin), static_cast<utf8proc_option_t>(options), &normal);
      normal.append(text.substr(at, step.length));
      begin = next;
    }
    at = next;
  }
  AppendNormal(text.substr(begin), static_cast<utf8proc_option_t>(options), &normal);
  return normal;
}

}  // namespace kvblend::text
