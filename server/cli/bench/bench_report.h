// The bench's figures as JSON for machines and as tables for people.
#pragma once

#include <string>
#include <vector>

#include "server/cli/bench/bench_summary.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// One line of the bench's JSON; what was not measured, or does not apply to the mode, is null. `data`: label
/// of the data file.
OrderedJson ToJson(const BenchRow& row, const std::string& data, int repeats);
/// One question under one variant, for studies of single questions.
OrderedJson ToJson(const BenchVariant& variant, const FinishedQuestion& question,
                   const QuestionResult& result);

/// Aligned columns, 116 wide, with a header of two lines.
std::string FormatTable(const std::vector<BenchRow>& rows);

/// What the differences between the rows are worth: intervals of KL, the comparison, flipped answers. At most
/// 80 columns wide for rows with names of up to 26 characters. Empty where there is nothing to tell.
std::string FormatEvidence(const std::vector<BenchRow>& rows);

}  // namespace kvblend::server::cli
