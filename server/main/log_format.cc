#include "server/main/log_format.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/calls/call_log.h"
#include "server/json/json.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

class JsonFormatter : public spdlog::formatter {
 public:
  explicit JsonFormatter(bool members) : members_(members) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string text = absl::StrCat(
        R"({"time":")",
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time), absl::UTCTimeZone()),
        R"(","level":")", absl::string_view(level.data(), level.size()), R"(",)",
        members_ ? std::string(payload) : absl::StrCat(R"("message":)", ToText(Json(std::string(payload)))),
        "}\n");
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return JsonLines(members_); }

 private:
  const bool members_;
};

/// `text` with its control characters spelled out.
std::string WithoutControls(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      absl::StrAppend(&clean, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else {
      clean.push_back(c);
    }
  }
  return clean;
}

class TextFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string payload = WithoutControls({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg clean = message;
    clean.payload = payload;
    pattern_.format(clean, line);
    // Where the pattern has put the level, which sinks for terminals color.
    message.color_range_start = clean.color_range_start;
    message.color_range_end = clean.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return TextLines(); }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v"};
};

}  // namespace

std::unique_ptr<spdlog::formatter> TextLines() { return std::make_unique<TextFormatter>(); }

std::unique_ptr<spdlog::formatter> JsonLines(bool members) {
  return std::make_unique<JsonFormatter>(members);
}

void SetUpLog(const std::string& level, bool json) {
  if (json) {
    spdlog::set_default_logger(spdlog::stderr_logger_mt("kvblend"));
    spdlog::set_formatter(JsonLines(/*members=*/false));
    spdlog::stderr_logger_mt(kStructuredLog)->set_formatter(JsonLines(/*members=*/true));
  } else {
    spdlog::set_default_logger(spdlog::stderr_color_mt("kvblend"));
    spdlog::set_formatter(TextLines());
  }
  spdlog::set_level(spdlog::level::from_str(level));
  spdlog::flush_on(spdlog::level::info);
}

}  // namespace kvblend::server
