// One answer and what was done with its prompt, as a page that stands by itself.
#pragma once

#include <string>
#include <string_view>

#include "kvblend/v1/inference.pb.h"

namespace kvblend::server::ui {

/// A page of HTML with everything that it needs inside: the question, the answer, timings, and the prompt as
/// a heat map where the report has an explanation.
std::string ReportPage(std::string_view question, std::string_view answer, const v1::PromptReport& report);

}  // namespace kvblend::server::ui
