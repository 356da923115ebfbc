// How well a generated answer matches gold answers: the F1 score of SQuAD (Rajpurkar et al., EMNLP 2016).
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace kvblend::server::cli {

/// Lower case (ASCII and the Latin-1 letters of UTF-8), ASCII punctuation dropped, then split at white space
/// with the articles a, an and the left out.
std::vector<std::string> NormalizedAnswerWords(std::string_view text);

/// Harmonic mean of the precision and recall of the prediction's words, repeated words counted as often as
/// they occur. When one side has no words left: 1 if both have none, else 0.
double AnswerF1(std::string_view prediction, std::string_view gold);

/// The best AnswerF1 over all gold answers; 0 when there are none.
double BestAnswerF1(std::string_view prediction, absl::Span<const std::string> golds);

/// Whether the prediction's words are those of a gold answer, in order.
bool IsExactMatch(std::string_view prediction, absl::Span<const std::string> golds);

/// What counts as the answer in a completion: its first line that is not blank, trimmed.
std::string_view FirstLine(std::string_view completion);

}  // namespace kvblend::server::cli
