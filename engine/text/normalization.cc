#include "engine/text/normalization.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// What utf8proc, which knows Unicode 15.0, would change and the tokenizers do not.
constexpr auto kLeftAlone = std::to_array<CodePointRange>({
#include "engine/text/normalization_ranges.inc"
});

bool IsLeftAlone(uint32_t code_point) {
  const auto* range = std::lower_bound(
      kLeftAlone.begin(), kLeftAlone.end(), code_point,
      [](const CodePointRange& candidate, uint32_t value) { return candidate.last < value; });
  return range != kLeftAlone.end() && code_point >= range->first;
}

void AppendNormal(std::string_view text, utf8proc_option_t options, std::string* output) {
  if (text.empty()) return;
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &normal, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, &std::free);
  if (length < 0) {
    // Only for want of memory, for the text is valid: as it came is better than not at all.
    output->append(text);
  } else {
    output->append(reinterpret_cast<const char*>(normal), static_cast<size_t>(length));
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
