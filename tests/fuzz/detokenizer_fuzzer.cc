// Any token stream: every piece of text is valid UTF-8, at most three bytes are held back, and the pieces
// together equal decoding all at once.
// Input: one byte that says whether control tokens are shown, then two bytes (little endian) per token id.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/stream_decoder.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/check.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::text {
namespace {

using test_support::Check;

std::unique_ptr<Tokenizer> MakeTokenizer() {
  SmallVocabulary vocabulary;
  for (const char* bytes : {"\xE4\xB8", "\x96\xE4", "\xB8\x96", "\xF0\x9F", "\x98\x80", "\x80\xF0", "ab",
                            "\xFF\xC3", "\xA9\xE4\xB8"}) {
    vocabulary.Add(bytes);
  }
  auto tokenizer = Tokenizer::Create(vocabulary.spec);
  Check(tokenizer.ok(), "the vocabulary is accepted");
  return *std::move(tokenizer);
}

void CheckStream(const Tokenizer& tokenizer, bool skip_special, const std::vector<TokenId>& tokens) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  size_t bytes_in = 0;
  for (const TokenId token : tokens) {
    const std::string piece = decoder.Append(token);
    Check(!FirstInvalidUtf8(piece).has_value(), "a piece is valid UTF-8");
    text += piece;
    if (!skip_special || !tokenizer.IsSpecial(token)) bytes_in += tokenizer.TokenBytes(token).size();
    Check(bytes_in <= text.size() + 3, "at most three bytes are held back");
  }
  text += decoder.Flush();
  Check(decoder.Flush().empty(), "a flushed decoder holds nothing");
  Check(text == tokenizer.Decode(tokens, skip_special), "the pieces equal decoding all at once");
}

}  // namespace
}  // namespace kvblend::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const tokenizer = kvblend::text::MakeTokenizer().release();
  if (size == 0) return 0;
  std::vector<kvblend::text::TokenId> tokens;
  for (size_t i = 1; i + 1 < size; i += 2) {
    // Ids from -4 to a few beyond the vocabulary.
    tokens.push_back((data[i] | data[i + 1] << 8) % (tokenizer->vocab_size() + 8) - 4);
  }
  kvblend::text::CheckStream(*tokenizer, data[0] % 2 == 0, tokens);
  return 0;
}
