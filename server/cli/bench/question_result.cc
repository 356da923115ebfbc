#include "server/cli/bench/question_result.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {
namespace {

struct NumberField {
  const char* key;
  double QuestionResult::*field;
};
constexpr NumberField kNumbers[] = {
    {"prompt_tokens", &QuestionResult::prompt_tokens},
    {"exact_tokens", &QuestionResult::exact_tokens},
    {"reused_tokens", &QuestionResult::reused_tokens},
    {"recomputed_tokens", &QuestionResult::recomputed_tokens},
    {"computed_tokens", &QuestionResult::computed_tokens},
    {"kl_first_token", &QuestionResult::kl_first_token},
    {"kl", &QuestionResult::kl},
    {"top1_agreement", &QuestionResult::top1_agreement},
    {"f1", &QuestionResult::answer_f1},
    {"exact_match", &QuestionResult::exact_match},
    {"full_exact_match", &QuestionResult::full_exact_match},
    {"answer_nll", &QuestionResult::answer_nll},
};

constexpr std::pair<const char*, std::string FinishedQuestion::*> kTexts[] = {
    {"data", &FinishedQuestion::data}, {"hash", &FinishedQuestion::hash}};

absl::Status BadKey(const char* key, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("'", key, "' must be ", what));
}

absl::StatusOr<QuestionResult> RowFromJson(const OrderedJson& json) {
  if (!json.is_object()) return BadKey("rows", "a list of objects");
  QuestionResult result;
  for (const auto& [key, field] : kNumbers) {
    const auto it = json.find(key);
    if (it == json.end() || !(it->is_number() || it->is_null())) return BadKey(key, "a number or null");
    result.*field = it->is_null() ? kNotMeasured : it->get<double>();
  }
  const auto missing = json.find("missing_chunks");
  if (missing == json.end() || !missing->is_number_integer()) return BadKey("missing_chunks", "an integer");
  result.missing_chunks = missing->get<int>();
  const auto times = json.find("ttft_s");
  if (times == json.end() || !times->is_array()) return BadKey("ttft_s", "a list of numbers");
  for (const OrderedJson& seconds : *times) {
    if (!seconds.is_number()) return BadKey("ttft_s", "a list of numbers");
    result.ttft_seconds.push_back(seconds.get<double>());
  }
  const auto answer = json.find("answer");
  if (answer == json.end() || !answer->is_string()) return BadKey("answer", "a string");
  result.answer = answer->get<std::string>();
  return result;
}

}  // namespace

OrderedJson NumberOrNull(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson ToJson(const QuestionResult& result) {
  OrderedJson json;
  for (const auto& [key, field] : kNumbers) json[key] = NumberOrNull(result.*field);
  json["missing_chunks"] = result.missing_chunks;
  json["ttft_s"] = result.ttft_seconds;
  json["answer"] = result.answer;
  return json;
}

OrderedJson ToJson(const FinishedQuestion& question) {
  OrderedJson rows = OrderedJson::array();
  for (const QuestionResult& row : question.rows) rows.push_back(ToJson(row));
  return {{"data", question.data}, {"question", question.index}, {"hash", question.hash}, {"rows", rows}};
}

absl::StatusOr<FinishedQuestion> FinishedQuestionFromJson(const OrderedJson& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("must be a JSON object");
  FinishedQuestion question;
  for (const auto& [key, field] : kTexts) {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_string()) return BadKey(key, "a string");
    question.*field = it->get<std::string>();
  }
  const auto index = json.find("question");
  if (index == json.end() || !index->is_number_unsigned()) return BadKey("question", "an integer from 0");
  question.index = index->get<int>();
  const auto rows = json.find("rows");
  if (rows == json.end() || !rows->is_array()) return BadKey("rows", "a list of objects");
  for (const OrderedJson& row : *rows) {
    KVBLEND_ASSIGN_OR_RETURN(question.rows.emplace_back(), RowFromJson(row));
  }
  return question;
}

}  // namespace kvblend::server::cli
