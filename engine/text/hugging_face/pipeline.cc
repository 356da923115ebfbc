#include "engine/text/hugging_face/pipeline.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/text/plain_form.h"

namespace kvblend::text {
namespace {

// The parts of published patterns, see word_patterns.h.
#define KVBLEND_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define KVBLEND_LINES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define KVBLEND_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define KVBLEND_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define KVBLEND_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define KVBLEND_SIGNS R"(| ?[^\s\p{L}\p{N}]+[\r\n)"

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    KVBLEND_CONTRACTIONS "|" KVBLEND_LEAD R"(\p{L}+|\p{N}{1,3})" KVBLEND_SIGNS "]*" KVBLEND_LINES;
constexpr std::string_view kQwen2 =
    KVBLEND_CONTRACTIONS "|" KVBLEND_LEAD R"(\p{L}+|\p{N})" KVBLEND_SIGNS "]*" KVBLEND_LINES;
constexpr std::string_view kQwen35 = KVBLEND_CONTRACTIONS
    "|" KVBLEND_LEAD R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" KVBLEND_LINES;
constexpr std::string_view kGpt4o = KVBLEND_LEAD KVBLEND_UPPER
    "*" KVBLEND_LOWER "+" KVBLEND_CONTRACTIONS "?|" KVBLEND_LEAD KVBLEND_UPPER "+" KVBLEND_LOWER
    "*" KVBLEND_CONTRACTIONS R"(?|\p{N}{1,3})" KVBLEND_SIGNS "/]*" KVBLEND_LINES;
constexpr std::string_view kTekken =
    KVBLEND_LEAD KVBLEND_UPPER "*" KVBLEND_LOWER "+|" KVBLEND_LEAD KVBLEND_UPPER "+" KVBLEND_LOWER
                               R"(*|\p{N})" KVBLEND_SIGNS "/]*" KVBLEND_LINES;
constexpr std::string_view kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" KVBLEND_LINES;
constexpr std::string_view kUpToThreeNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kOneNumber = R"(\p{N})";
constexpr std::string_view kHanKana = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kEastAsian = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";

#undef KVBLEND_CONTRACTIONS
#undef KVBLEND_LINES
#undef KVBLEND_UPPER
#undef KVBLEND_LOWER
#undef KVBLEND_LEAD
#undef KVBLEND_SIGNS

struct KnownPatterns {
  std::string_view name;  // in tokenizer.ggml.pre
  std::vector<std::string_view> patterns;
  bool covers;  // every text is a row of matches, without gaps
};

const std::vector<KnownPatterns>& AllKnown() {
  static const auto* const known = new std::vector<KnownPatterns>{
      {"gpt-2", {kGpt2}, true},
      {"smollm", {kOneNumber, kGpt2}, false},
      {"llama-bpe", {kLlama3}, true},
      {"qwen2", {kQwen2}, true},
      {"qwen35", {kQwen35}, true},
      {"gpt-4o", {kGpt4o}, true},
      {"tekken", {kTekken}, true},
      {"deepseek-coder", {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kEastAsian, kOneNumber}, false},
      {"deepseek-v3", {kUpToThreeNumbers, kHanKana, kDeepSeekV3}, false},
  };
  return *known;
}

// Line breaks in brackets are written as they are in some files.
std::string WithoutRawLineBreaks(std::string_view pattern) {
  std::string spelled;
  for (const char c : pattern) {
    if (c == '\r') {
      spelled += "\\r";
    } else if (c == '\n') {
      spelled += "\\n";
    } else {
      spelled.push_back(c);
    }
  }
  return spelled;
}

// Appends the steps of `value`: none for null, those inside of a Sequence, else itself.
absl::Status AppendSteps(const JsonValue& value, std::string_view inner, std::vector<JsonValue>* steps) {
  if (value.is_null()) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(const std::string type, value.Type());
  if (type != "Sequence") {
    steps->push_back(value);
    return absl::OkStatus();
  }
  const JsonValue sequence = value[inner];
  KVBLEND_ASSIGN_OR_RETURN(const size_t size, sequence.ArraySize());
  // The parser bounds how deep documents are, and so this recursion.
  for (size_t i = 0; i < size; ++i) {
    KVBLEND_RETURN_IF_ERROR(AppendSteps(sequence.Element(i), inner, steps));
  }
  return absl::OkStatus();
}

absl::Status UnknownType(const JsonValue& step, std::string_view type, std::string_view allowed) {
  return step.Unimplemented(
      absl::StrCat("is of type ", std::string(type), "; implemented: ", std::string(allowed)));
}

/// What the steps of a pre-tokenizer do.
struct PreTokenizerSteps {
  std::vector<std::string> patterns;
  bool removes_rest = false;  // a pattern whose gaps vanish
  bool bytes = false;         // ByteLevel
  bool spaces = false;        // Metaspace
};

absl::Status ReadSplit(const JsonValue& step, PreTokenizerSteps* steps) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string behavior, step["behavior"].String());
  KVBLEND_ASSIGN_OR_RETURN(const bool invert, step["invert"].Bool(false));
  const JsonValue text = step["pattern"]["String"];
  if (text.is_string()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string part, text.String());
    // Gemma's: its normalizer leaves no space that this could find.
    if (part == " " && behavior == "MergedWithPrevious" && !invert) return absl::OkStatus();
    return step.Unimplemented("splits at a string; implemented: ' ' with MergedWithPrevious");
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::string pattern, step["pattern"]["Regex"].String());
  const bool removes_rest = behavior == "Removed" && invert;
  if (!removes_rest && (behavior != "Isolated" || invert)) {
    return step.Unimplemented(absl::StrCat("has the behavior ", behavior, invert ? ", inverted" : "",
                                           "; implemented: Isolated, and Removed, inverted"));
  }
  steps->removes_rest = steps->removes_rest || removes_rest;
  steps->patterns.push_back(WithoutRawLineBreaks(pattern));
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const JsonValue& step, TokenizerSpec* spec) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string replacement, step["replacement"].String());
  if (replacement != kSpaceSign) return step.Unimplemented("has another replacement than U+2581");
  KVBLEND_ASSIGN_OR_RETURN(const bool split, step["split"].Bool(true));
  spec->splits_at_spaces = split;
  if (split && spec->model != TokenizerModel::kUnigram)
    return step.Unimplemented("splits at spaces; implemented: 'split' false");
  std::string scheme = "always";
  if (!step["prepend_scheme"].is_null()) {
    KVBLEND_ASSIGN_OR_RETURN(scheme, step["prepend_scheme"].String());
  } else {
    KVBLEND_ASSIGN_OR_RETURN(const bool prefix, step["add_prefix_space"].Bool(true));
    if (!prefix) scheme = "never";
  }
  if (scheme == "never") return absl::OkStatus();
  if (scheme != "first" && scheme != "always") {
    return step.Invalid("has an unknown 'prepend_scheme'; allowed: always, first, never");
  }
  if (spec->add_space_prefix) return step.Unimplemented("adds a space that the normalizer has added before");
  spec->add_space_prefix = true;
  spec->space_prefix_unless_space = true;
  spec->space_prefix_every_piece = scheme == "always";
  spec->space_prefix_first_only = scheme == "first";
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonValue& document, PreTokenizerSteps* steps, TokenizerSpec* spec) {
  std::vector<JsonValue> values;
  KVBLEND_RETURN_IF_ERROR(AppendSteps(document["pre_tokenizer"], "pretokenizers", &values));
  for (const JsonValue& step : values) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string type, step.Type());
    if (steps->bytes || steps->spaces) return step.Unimplemented("stands behind ByteLevel or Metaspace");
    if (type == "Split") {
      KVBLEND_RETURN_IF_ERROR(ReadSplit(step, steps));
    } else if (type == "Digits") {
      KVBLEND_ASSIGN_OR_RETURN(const bool individual, step["individual_digits"].Bool(false));
      if (!individual)
        return step.Unimplemented("keeps digits together; implemented: 'individual_digits' true");
      steps->patterns.emplace_back(kOneNumber);
    } else if (type == "ByteLevel") {
      KVBLEND_ASSIGN_OR_RETURN(const bool prefix, step["add_prefix_space"].Bool(true));
      KVBLEND_ASSIGN_OR_RETURN(const bool pattern, step["use_regex"].Bool(true));
      if (prefix) return step.Unimplemented("adds a space in front; implemented: 'add_prefix_space' false");
      if (pattern) steps->patterns.emplace_back(kGpt2);
      steps->bytes = true;
    } else if (type == "Metaspace") {
      steps->spaces = true;
      KVBLEND_RETURN_IF_ERROR(ReadMetaspace(step, spec));
    } else {
      return UnknownType(step, type, "ByteLevel, Digits, Metaspace, Sequence, Split");
    }
  }
  return absl::OkStatus();
}

/// `spaces`: whether spaces become U+2581.
absl::Status ReadNormalizer(const JsonValue& document, TokenizerSpec* spec, bool* spaces) {
  std::vector<JsonValue> steps;
  KVBLEND_RETURN_IF_ERROR(AppendSteps(document["normalizer"], "normalizers", &steps));
  for (const JsonValue& step : steps) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string type, step.Type());
    if (type == "NFC" || type == "NFKC") {
      if (spec->normalization != Normalization::kNone || *spaces || spec->add_space_prefix) {
        return step.Unimplemented("is not the first step");
      }
      spec->normalization = type == "NFC" ? Normalization::kNfc : Normalization::kNfkc;
    } else if (type == "Prepend") {
      KVBLEND_ASSIGN_OR_RETURN(const std::string prefix, step["prepend"].String());
      if (prefix != kSpaceSign || spec->add_space_prefix) {
        return step.Unimplemented("puts something else in front than one U+2581");
      }
      spec->add_space_prefix = true;
      spec->space_prefix_every_piece = true;
    } else if (type == "Replace") {
      const JsonValue pattern = step["pattern"]["String"];
      KVBLEND_ASSIGN_OR_RETURN(const std::string content, step["content"].String());
      if (!pattern.is_string() || pattern.json() != " " || content != kSpaceSign) {
        return step.Unimplemented("replaces something else than ' ' by U+2581");
      }
      *spaces = true;
    } else {
      return UnknownType(step, type, "NFC, NFKC, Prepend, Replace, Sequence");
    }
  }
  return absl::OkStatus();
}

absl::Status RecognisePatterns(const JsonValue& document, const PreTokenizerSteps& steps,
                               TokenizerSpec* spec) {
  for (const KnownPatterns& known : AllKnown()) {
    if (steps.patterns.size() != known.patterns.size() || (steps.removes_rest && !known.covers)) continue;
    if (std::equal(steps.patterns.begin(), steps.patterns.end(), known.patterns.begin())) {
      spec->pre_tokenizer = std::string(known.name);
      return absl::OkStatus();
    }
  }
  std::string patterns = absl::StrJoin(steps.patterns, "' then '");
  constexpr size_t kShown = 300;
  if (patterns.size() > kShown) patterns = absl::StrCat(patterns.substr(0, kShown), "...");
  return document["pre_tokenizer"].Unimplemented(absl::StrCat(
      "splits by the pattern '", patterns, "', which is none of ",
      absl::StrJoin(AllKnown(), ", ",
                    [](std::string* out, const KnownPatterns& known) { out->append(known.name); })));
}

}  // namespace

absl::Status ReadPipeline(const JsonValue& document, TokenizerSpec* spec) {
  bool spaces = false;
  KVBLEND_RETURN_IF_ERROR(ReadNormalizer(document, spec, &spaces));
  PreTokenizerSteps steps;
  KVBLEND_RETURN_IF_ERROR(ReadPreTokenizer(document, &steps, spec));
  spec->user_defined_first = true;
  const bool is_unigram = spec->model == TokenizerModel::kUnigram;
  if (steps.bytes) {
    if (is_unigram) return document["pre_tokenizer"].Unimplemented("has ByteLevel for a model of characters");
    spec->model = TokenizerModel::kByteLevelBpe;
    if (spaces || spec->add_space_prefix) {
      return document["normalizer"].Unimplemented("spells spaces as U+2581 for a model of bytes");
    }
    return RecognisePatterns(document, steps, spec);
  }
  if (!is_unigram) spec->model = TokenizerModel::kSentencePieceBpe;
  if (!steps.patterns.empty()) {
    return document["pre_tokenizer"].Unimplemented("splits by patterns without ByteLevel");
  }
  if (!spaces && !steps.spaces) {
    return document["pre_tokenizer"].Unimplemented(
        "has neither ByteLevel nor Metaspace, and the normalizer does not spell spaces as U+2581");
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonValue& document, TokenizerSpec* spec) {
  std::vector<JsonValue> steps;
  KVBLEND_RETURN_IF_ERROR(AppendSteps(document["post_processor"], "processors", &steps));
  for (const JsonValue& step : steps) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string type, step.Type());
    if (type == "ByteLevel") continue;  // moves offsets alone
    if (type != "TemplateProcessing") {
      return UnknownType(step, type, "ByteLevel, Sequence, TemplateProcessing");
    }
    const JsonValue single = step["single"];
    KVBLEND_ASSIGN_OR_RETURN(const size_t size, single.ArraySize());
    const bool has_bos = size == 2 && !single.Element(0)["SpecialToken"].is_null();
    if (size == 0 || size > 2 || (size == 2 && !has_bos) || single.Element(size - 1)["Sequence"].is_null()) {
      return single.Unimplemented("is not at most one token and then the text");
    }
    if (!has_bos) continue;
    KVBLEND_ASSIGN_OR_RETURN(const std::string name, single.Element(0)["SpecialToken"]["id"].String());
    const JsonValue ids = step["special_tokens"][name]["ids"];
    KVBLEND_ASSIGN_OR_RETURN(const size_t num_ids, ids.ArraySize());
    if (num_ids != 1) return ids.Unimplemented("is not one id");
    KVBLEND_ASSIGN_OR_RETURN(spec->bos, ids.Element(0).Id());
    spec->add_bos = true;
  }
  return absl::OkStatus();
}

}  // namespace kvblend::text
