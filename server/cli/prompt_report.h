// What was done with a prompt, in words for people.
#pragma once

#include <string>
#include <vector>

#include "kvblend/v1/inference.pb.h"

namespace kvblend::server::cli {

/// Lines without newline: tokens by fate, one line per chunk (the first 20), and where the time to the first
/// token went.
std::vector<std::string> DescribePrompt(const v1::PromptReport& report);

/// "answer: 24 tokens in 410 ms, 58.5 tokens/s after the first, end of text, seed 7".
std::string DescribeResult(const v1::GenerateFinished& finished);

}  // namespace kvblend::server::cli
