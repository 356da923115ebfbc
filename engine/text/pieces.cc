#include "engine/text/pieces.h"

#include <algorithm>

namespace kvblend::text {

bool Pieces::Add(std::string_view text, const Piece& piece) {
  if (!pieces_.try_emplace(text, piece).second) return false;
  longest_ = std::max(longest_, text.size());
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ' ' && text[i - 1] != ' ') before_space_.set(static_cast<uint8_t>(text[i - 1]));
  }
  return true;
}

void Pieces::AppendCharacter(std::string_view character, std::vector<TokenId>* output) const {
  const bool has_bytes = std::all_of(character.begin(), character.end(), [this](char byte) {
    return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken;
  });
  if (has_bytes) {
    for (const char byte : character) output->push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  } else if (unknown_) {
    output->push_back(*unknown_);
  }
}

}  // namespace kvblend::text
