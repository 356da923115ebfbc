#include "server/cli/number_checks.h"

#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plain_number.h"

namespace kvblend::server::cli {
namespace {

CLI::Validator Checked(const std::string& flag, const std::string& kind, const std::string& range,
                       std::function<bool(const std::string&)> allows) {
  return CLI::Validator(
      [flag, allowed = absl::StrCat(kind, " ", range), allows = std::move(allows)](std::string& text) {
        // A kind of error that CLI11 lets through: it puts the flag's name before all that a validator says.
        if (!allows(text)) {
          throw CLI::ParseError(absl::StrCat(flag, " is '", text, "'; allowed: ", allowed),
                                CLI::ExitCodes::ValidationError);
        }
        return std::string();
      },
      range);
}

}  // namespace

CLI::Validator WholeNumber(const std::string& flag, int64_t min, int64_t max) {
  const bool bounded = max < std::numeric_limits<int64_t>::max();
  const std::string range = bounded ? absl::StrCat(min, " to ", max) : absl::StrCat("from ", min);
  return Checked(flag, bounded ? "a whole number," : "a whole number", range,
                 [min, max](const std::string& text) {
                   int64_t value = 0;
                   return absl::SimpleAtoi(text, &value) && value >= min && value <= max;
                 });
}

CLI::Validator Number(const std::string& flag, double min, double max) {
  return Checked(flag, "a number,", absl::StrCat(PlainNumber(min), " to ", PlainNumber(max)),
                 [min, max](const std::string& text) {
                   double value = 0;
                   return absl::SimpleAtod(text, &value) && value >= min && value <= max;
                 });
}

CLI::Validator NumberAboveZero(const std::string& flag) {
  return Checked(flag, "a number", "above 0", [](const std::string& text) {
    double value = 0;
    return absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0;
  });
}

}  // namespace kvblend::server::cli
