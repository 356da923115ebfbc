// The files of the page at /ui, as strings of the program: it loads nothing from elsewhere.
#pragma once

#include <string_view>

namespace kvblend::server::ui {

std::string_view PageHtml();
std::string_view PageStyle();
/// The page's own script.
std::string_view AppScript();
/// Shows how busy the server is.
std::string_view LoadScript();
/// Draws a PromptReport.
std::string_view ReportScript();
/// Documents and a question to try the page with.
std::string_view SampleScript();

}  // namespace kvblend::server::ui
