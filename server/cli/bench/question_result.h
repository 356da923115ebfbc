// What the bench has measured on one question.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// One row on one question. NaN: not measured.
struct QuestionResult {
  double prompt_tokens = 0;
  double exact_tokens = 0;
  double reused_tokens = 0;
  double recomputed_tokens = 0;
  double computed_tokens = 0;
  int missing_chunks = 0;                // that should have been in the store
  std::vector<double> ttft_seconds;      // one per repeat
  double kl_first_token = kNotMeasured;  // nats
  double kl = kNotMeasured;              // nats, mean over the continuation
  double top1_agreement = kNotMeasured;
  double answer_nll = kNotMeasured;  // nats per token of the first gold answer
  double answer_f1 = kNotMeasured;
  double exact_match = kNotMeasured;       // 1: the answer is a gold one
  double full_exact_match = kNotMeasured;  // the same of full prefill's answer
  std::string answer;
};

/// All rows on one question.
struct FinishedQuestion {
  std::string data;                  // label of the data file
  int index = 0;                     // in the data file, from 0
  std::string hash;                  // of the question, its answers and passages
  std::vector<QuestionResult> rows;  // in the order of the run's variants
};

OrderedJson ToJson(const QuestionResult& result);
OrderedJson ToJson(const FinishedQuestion& question);
/// Reads what ToJson wrote. kInvalidArgument, naming the key, for anything else.
absl::StatusOr<FinishedQuestion> FinishedQuestionFromJson(const OrderedJson& json);

/// NaN and infinities, which JSON does not have, are null.
OrderedJson NumberOrNull(double value);

}  // namespace kvblend::server::cli
