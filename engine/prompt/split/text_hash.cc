#include "engine/prompt/split/text_hash.h"

#include <random>

namespace kvblend::prompt {

uint64_t TextHash::Times(uint64_t x, uint64_t y) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(x) * y;
  const uint64_t sum = static_cast<uint64_t>(product & kModulus) + static_cast<uint64_t>(product >> 61);
  return sum >= kModulus ? sum - kModulus : sum;
}

uint64_t TextHash::Power(uint64_t x, uint64_t n) {
  uint64_t power = 1;
  for (; n > 0; n >>= 1, x = Times(x, x)) {
    if ((n & 1) != 0) power = Times(power, x);
  }
  return power;
}

uint64_t TextHash::Append(uint64_t hash, uint64_t base, char byte) {
  const uint64_t sum = Times(hash, base) + static_cast<unsigned char>(byte) + 1;
  return sum >= kModulus ? sum - kModulus : sum;
}

uint64_t TextHash::RandomBase() {
  std::random_device device;
  constexpr uint64_t kLeast = uint64_t{1} << 32;
  const uint64_t random = (uint64_t{device()} << 32) | device();
  return kLeast + random % (kModulus - kLeast);
}

TextHash::TextHash(std::string_view text, uint64_t base) : text_(text), base_(base) {
  prefixes_.reserve(text.size() / kStep + 1);
  uint64_t hash = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i % kStep == 0) prefixes_.push_back(hash);
    hash = Append(hash, base_, text[i]);
  }
  if (text.size() % kStep == 0) prefixes_.push_back(hash);
}

uint64_t TextHash::Prefix(size_t end) const {
  uint64_t hash = prefixes_[end / kStep];
  for (size_t i = end / kStep * kStep; i < end; ++i) hash = Append(hash, base_, text_[i]);
  return hash;
}

uint64_t TextHash::Of(size_t begin, size_t end) const {
  const uint64_t before = Times(Prefix(begin), Power(base_, end - begin));
  const uint64_t all = Prefix(end);
  return all >= before ? all - before : all + kModulus - before;
}

RollingHash::RollingHash(std::string_view text, size_t window, uint64_t base)
    : text_(text), window_(window), base_(base), leaving_(TextHash::Power(base, window)) {
  for (size_t i = 0; i < window; ++i) value_ = TextHash::Append(value_, base, text[i]);
}

bool RollingHash::Next() {
  if (begin_ + window_ >= text_.size()) return false;
  const uint64_t longer = TextHash::Append(value_, base_, text_[begin_ + window_]);
  const uint64_t gone = TextHash::Times(static_cast<unsigned char>(text_[begin_]) + uint64_t{1}, leaving_);
  value_ = longer >= gone ? longer - gone : longer + TextHash::kModulus - gone;
  ++begin_;
  return true;
}

}  // namespace kvblend::prompt
