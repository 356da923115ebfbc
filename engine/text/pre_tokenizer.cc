#include "engine/text/pre_tokenizer.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

bool IsLineBreak(uint32_t code_point) { return code_point == '\r' || code_point == '\n'; }

// Simple case folding, as far as the letters of English contractions have partners: U+017F folds to 's'.
uint32_t FoldCase(uint32_t code_point) {
  if (code_point >= 'A' && code_point <= 'Z') return code_point + ('a' - 'A');
  return code_point == 0x17F ? 's' : code_point;
}

}  // namespace

absl::StatusOr<PreTokenizer> ParsePreTokenizer(std::string_view name) {
  if (name == "gpt-2") return PreTokenizer::kGpt2;
  if (name == "smollm") return PreTokenizer::kSmolLm;
  if (name == "llama-bpe") return PreTokenizer::kLlamaBpe;
  if (name == "qwen2") return PreTokenizer::kQwen2;
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.ggml.pre is '", std::string(name),
                   "', which is not implemented; allowed: 'gpt-2', 'llama-bpe', 'qwen2', 'smollm'"));
}

bool IgnoresMerges(PreTokenizer pre_tokenizer) { return pre_tokenizer == PreTokenizer::kLlamaBpe; }

WordScanner::WordScanner(PreTokenizer pre_tokenizer, std::string_view text)
    : pre_tokenizer_(pre_tokenizer),
      text_(text),
      end_(pre_tokenizer == PreTokenizer::kSmolLm ? 0 : text.size()) {}

std::string_view WordScanner::Next() {
  if (position_ >= text_.size()) return {};
  const size_t begin = position_;
  switch (pre_tokenizer_) {
    case PreTokenizer::kGpt2:
      position_ = NextGpt2();
      break;
    case PreTokenizer::kSmolLm:
      position_ = NextSmolLm();
      break;
    case PreTokenizer::kLlamaBpe:
      position_ = NextLlama(3);
      break;
    case PreTokenizer::kQwen2:
      position_ = NextLlama(1);
      break;
  }
  return text_.substr(begin, position_ - begin);
}

WordScanner::Character WordScanner::At(size_t position) const {
  if (position >= end_) return {0, 0, CharClass::kOther};
  const Utf8Step step = DecodeUtf8At(text_, position);
  return {step.code_point, step.length, ClassOf(step.code_point)};
}

size_t WordScanner::SkipClass(size_t position, CharClass char_class) const {
  for (;;) {
    const Character next = At(position);
    if (next.length == 0 || next.char_class != char_class) return position;
    position += next.length;
  }
}

size_t WordScanner::Contraction(bool ignore_case) const {
  const Character apostrophe = At(position_);
  if (apostrophe.length == 0 || apostrophe.code_point != '\'') return position_;
  size_t end = position_ + 1;
  const auto letter = [&]() -> uint32_t {
    const Character next = At(end);
    end += next.length;
    if (next.length == 0) return 0;
    return ignore_case ? FoldCase(next.code_point) : next.code_point;
  };
  const uint32_t first = letter();
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return end;
  if (first == 'r' || first == 'v') return letter() == 'e' ? end : position_;
  if (first == 'l') return letter() == 'l' ? end : position_;
  return position_;
}

size_t WordScanner::Whitespace() const {
  size_t last = position_;  // where the run's last character begins
  size_t end = position_;
  for (Character next = At(end); next.length != 0 && next.char_class == CharClass::kSpace; next = At(end)) {
    last = end;
    end += next.length;
  }
  // Before other text the run leaves its last character to the next word, unless it has only that one.
  return end < end_ && last > position_ ? last : end;
}

size_t WordScanner::NextGpt2() const {
  if (const size_t end = Contraction(/*ignore_case=*/false); end > position_) return end;
  const Character first = At(position_);
  const Character second = At(position_ + first.length);
  const bool led_by_space =
      first.code_point == ' ' && second.length != 0 && second.char_class != CharClass::kSpace;
  if (first.char_class == CharClass::kSpace && !led_by_space) return Whitespace();
  const Character word = led_by_space ? second : first;
  return SkipClass(position_ + (led_by_space ? 1 : 0), word.char_class);
}

size_t WordScanner::NextSmolLm() {
  if (position_ == end_) {
    const Character first = [&] {
      end_ = text_.size();
      return At(position_);
    }();
    if (first.char_class == CharClass::kNumber) {
      end_ = position_ + first.length;
      return end_;
    }
    for (size_t end = position_;;) {
      const Character next = At(end);
      if (next.length == 0 || next.char_class == CharClass::kNumber) {
        end_ = end;
        break;
      }
      end += next.length;
    }
  }
  return NextGpt2();
}

size_t WordScanner::NextLlama(int max_numbers) const {
  if (const size_t end = Contraction(/*ignore_case=*/true); end > position_) return end;
  const Character first = At(position_);
  const size_t after_first = position_ + first.length;
  const Character second = At(after_first);
  const bool second_exists = second.length != 0;

  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.char_class == CharClass::kLetter) return SkipClass(after_first, CharClass::kLetter);
  if (first.char_class != CharClass::kNumber && !IsLineBreak(first.code_point) && second_exists &&
      second.char_class == CharClass::kLetter) {
    return SkipClass(after_first, CharClass::kLetter);
  }

  // \p{N}{1,max_numbers}
  if (first.char_class == CharClass::kNumber) {
    size_t end = after_first;
    for (int count = 1; count < max_numbers; ++count) {
      const Character next = At(end);
      if (next.length == 0 || next.char_class != CharClass::kNumber) break;
      end += next.length;
    }
    return end;
  }

  // ?[^\s\p{L}\p{N}]+[\r\n]*
  if (first.char_class == CharClass::kOther ||
      (first.code_point == ' ' && second_exists && second.char_class == CharClass::kOther)) {
    size_t end = SkipClass(after_first, CharClass::kOther);
    for (Character next = At(end); next.length != 0 && IsLineBreak(next.code_point); next = At(end)) {
      end += next.length;
    }
    return end;
  }

  // \s*[\r\n]+: the whitespace up to its last line break
  size_t after_break = position_;
  for (size_t end = position_;;) {
    const Character next = At(end);
    if (next.length == 0 || next.char_class != CharClass::kSpace) break;
    end += next.length;
    if (IsLineBreak(next.code_point)) after_break = end;
  }
  return after_break > position_ ? after_break : Whitespace();
}

}  // namespace kvblend::text
