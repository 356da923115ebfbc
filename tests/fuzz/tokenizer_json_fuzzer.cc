// Any bytes as a tokenizer.json file: it is refused, or Tokenizer::Create judges what it says, and what is
// accepted encodes and decodes without harm.
// Input: the file.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/hugging_face/tokenizer_json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/check.h"

namespace kvblend::text {
namespace {

using test_support::Check;

void CheckFile(std::string_view bytes) {
  const auto spec = ReadTokenizerJson(bytes, "tokenizer.json");
  if (!spec.ok()) {
    const absl::StatusCode code = spec.status().code();
    Check(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kUnimplemented,
          "a refusal says what is wrong");
    return;
  }
  Check(spec->tokens.size() == spec->token_types.size(), "every token has a type");
  Check(spec->tokens.size() <= bytes.size(), "there are no more tokens than the file has room for");
  const auto tokenizer = Tokenizer::Create(*spec);
  if (!tokenizer.ok()) return;
  for (const std::string_view text :
       {std::string_view("The e\u0301 12\n\n  \u2581x\u4e16"), bytes.substr(0, 64)}) {
    const std::vector<TokenId> tokens = (*tokenizer)->Encode(text);
    for (const TokenId token : tokens) {
      Check(token >= 0 && token < (*tokenizer)->vocab_size(), "ids are of the vocabulary");
      Check(spec->token_types[token] != kGgufControl, "text gives no control token");
    }
    Check(!FirstInvalidUtf8((*tokenizer)->Decode(tokens, /*skip_special=*/false)), "text is valid UTF-8");
  }
}

}  // namespace
}  // namespace kvblend::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblend::text::CheckFile({reinterpret_cast<const char*>(data), size});
  return 0;
}
