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

struct Spelling {
  std::array<uint16_t, 256> code_point_of_byte{};
  std::array<int16_t, kNumSpellings> byte_of_code_point{};
};

constexpr Spelling kSpelling = [] {
  Spelling spelling;
  for (auto& byte : spelling.byte_of_code_point) byte = -1;
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint16_t code_point = IsPrintable(byte) ? static_cast<uint16_t>(byte) : next++;
    spelling.code_point_of_byte[byte] = code_point;
    spelling.byte_of_code_point[code_point] = static_cast<int16_t>(byte);
  }
  return spelling;
}();

}  // namespace

std::optional<std::string> BytesOfTokenString(std::string_view token_string) {
  std::string bytes;
  bytes.reserve(token_string.size());
  for (size_t position = 0; position < token_string.size();) {
    const Utf8Step step = DecodeUtf8At(token_string, position);
    if (step.kind != Utf8Step::Kind::kValid || step.code_point >= kNumSpellings) return std::nullopt;
    const int byte = kSpelling.byte_of_code_point[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    position += step.length;
  }
  return bytes;
}

std::string TokenStringOfBytes(std::string_view bytes) {
  std::string token_string;
  for (const char byte : bytes) {
    const uint32_t code_point = kSpelling.code_point_of_byte[static_cast<uint8_t>(byte)];
    if (code_point < 0x80) {
      token_string.push_back(static_cast<char>(code_point));
    } else {
      token_string.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
      token_string.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
  return token_string;
}

}  // namespace kvblend::text
