#include "engine/text/byte_level.h"

#include <array>
#include <cstdint>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// Bytes that Latin-1 prints stand for themselves; the other 68 follow in order from U+0100 on.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr int kNumSpellings = 0x100 + 68;

constexpr auto kByteOfCodePoint = [] {
  std::array<int16_t, kNumSpellings> bytes{};  // -1: stands for no byte
  for (int16_t& byte : bytes) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    bytes[IsPrintable(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::optional<std::string> BytesOfTokenString(std::string_view token_string) {
  std::string bytes;
  bytes.reserve(token_string.size());
  for (size_t position = 0; position < token_string.size();) {
    const Utf8Step step = DecodeUtf8At(token_string, position);
    if (step.kind != Utf8Step::Kind::kValid || step.code_point >= kNumSpellings) return std::nullopt;
    const int byte = kByteOfCodePoint[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    position += step.length;
  }
  return bytes;
}

}  // namespace kvblend::text
