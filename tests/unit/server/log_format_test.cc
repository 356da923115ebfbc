#include "server/main/log_format.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "spdlog/logger.h"
#include "spdlog/sinks/ostream_sink.h"

namespace kvblend::server {
namespace {

/// The line of a message, without the time before it.
std::string LineOf(std::unique_ptr<spdlog::formatter> formatter, const std::string& message) {
  std::ostringstream out;
  spdlog::logger logger("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  logger.set_formatter(std::move(formatter));
  logger.warn("{}", message);
  const std::string line = out.str();
  return line.substr(line.find("warn"));
}

TEST(LogFormatTest, WhatAClientSentBeginsNoLineAndSpeaksToNoTerminal) {
  using namespace std::string_literals;
  EXPECT_EQ(LineOf(TextLines(), "model is '\xC3\xBC\"\\'"), "warning model is '\xC3\xBC\"\\'\n");
  EXPECT_EQ(LineOf(TextLines(), "a\n2026-01-01 info b\r\x1B[2J\0\x7F"s),
            "warning a\\x0a2026-01-01 info b\\x0d\\x1b[2J\\x00\\x7f\n");
  EXPECT_EQ(LineOf(JsonLines(false), "a\n\x1B"), "warning\",\"message\":\"a\\n\\u001b\"}\n");
}

}  // namespace
}  // namespace kvblend::server
