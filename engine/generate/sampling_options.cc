#include "engine/generate/sampling_options.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace kvblend::generate {
namespace {

absl::Status OutOfRange(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: ", allowed));
}

/// Short where that reads back as the same number (1.5), else all digits (1.0000000000000002).
std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  std::string text = absl::StrCat(value);
  double read_back = 0;
  return absl::SimpleAtod(text, &read_back) && read_back == value ? text : absl::StrFormat("%.17g", value);
}

enum class LowerBound { kIncluded, kExcluded };

absl::Status CheckRange(absl::string_view field, double value, double low, LowerBound bound, double high) {
  const bool above_low = bound == LowerBound::kIncluded ? value >= low : value > low;
  if (above_low && value <= high) return absl::OkStatus();  // NaN fails both
  return OutOfRange(field, NumberText(value),
                    bound == LowerBound::kIncluded ? absl::StrCat(low, " to ", high)
                                                   : absl::StrCat("above ", low, " to ", high));
}

absl::Status CheckLogitBias(const std::map<int32_t, double>& logit_bias, int32_t vocab_size) {
  if (logit_bias.size() > kMaxBiasedTokens) {
    return OutOfRange("logit_bias", absl::StrCat(logit_bias.size(), " tokens"),
                      absl::StrCat("up to ", kMaxBiasedTokens));
  }
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return OutOfRange("logit_bias", absl::StrCat("for the token ", token),
                        absl::StrCat("tokens 0 to ", vocab_size - 1));
    }
    KVBLEND_RETURN_IF_ERROR(
        CheckRange(absl::StrCat("logit_bias[", token, "]"), bias, -100, LowerBound::kIncluded, 100));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSampling(const SamplingOptions& options, int32_t vocab_size) {
  if (options.max_tokens < 1) {
    return OutOfRange("max_tokens", absl::StrCat(options.max_tokens), "a whole number from 1");
  }
  absl::Status status = CheckRange("temperature", options.temperature, 0, LowerBound::kIncluded, 10);
  status.Update(CheckRange("top_p", options.top_p, 0, LowerBound::kExcluded, 1));
  status.Update(CheckRange("min_p", options.min_p, 0, LowerBound::kIncluded, 1));
  status.Update(CheckRange("repetition_penalty", options.repetition_penalty, 0, LowerBound::kExcluded, 10));
  status.Update(CheckRange("presence_penalty", options.presence_penalty, -2, LowerBound::kIncluded, 2));
  status.Update(CheckRange("frequency_penalty", options.frequency_penalty, -2, LowerBound::kIncluded, 2));
  if (!status.ok()) return status;
  KVBLEND_RETURN_IF_ERROR(CheckLogitBias(options.logit_bias, vocab_size));
  if (options.top_k < 0) return OutOfRange("top_k", absl::StrCat(options.top_k), "0 (off) or more");
  if (options.top_logprobs < -1 || options.top_logprobs > kMaxTopLogprobs) {
    return OutOfRange("top_logprobs", absl::StrCat(options.top_logprobs),
                      absl::StrCat("-1 (off) to ", kMaxTopLogprobs));
  }
  if (options.stop.size() > kMaxStopStrings) {
    return OutOfRange("stop", absl::StrCat(options.stop.size(), " strings"),
                      absl::StrCat("up to ", kMaxStopStrings));
  }
  for (size_t i = 0; i < options.stop.size(); ++i) {
    if (options.stop[i].empty()) {
      return OutOfRange(absl::StrCat("stop[", i, "]"), "empty", "at least one character");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::generate
