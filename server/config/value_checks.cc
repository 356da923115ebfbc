#include "server/config/value_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/plain_number.h"

namespace kvblend::server {
namespace {

/// `allows` tells whether a text is allowed, and may change it. `description` is for --help.
CLI::Validator Checked(const std::string& flag, const std::string& allowed, const std::string& description,
                       std::function<bool(std::string&)> allows) {
  return CLI::Validator(
      [flag, allowed, allows = std::move(allows)](std::string& text) {
        const std::string given = text;
        // Thrown, since CLI11 would put the flag's name before a message that is returned.
        if (!allows(text)) {
          throw CLI::ParseError(absl::StrCat(flag, " is '", given, "'; allowed: ", allowed),
                                CLI::ExitCodes::ValidationError);
        }
        return std::string();
      },
      description);
}

}  // namespace

CLI::Validator WholeNumber(const std::string& flag, int64_t min, int64_t max) {
  const bool bounded = max < std::numeric_limits<int64_t>::max();
  const std::string range = bounded ? absl::StrCat(min, " to ", max) : absl::StrCat("from ", min);
  return Checked(flag, absl::StrCat("a whole number", bounded ? ", " : " ", range), range,
                 [min, max](const std::string& text) {
                   int64_t value = 0;
                   return absl::SimpleAtoi(text, &value) && value >= min && value <= max;
                 });
}

CLI::Validator Number(const std::string& flag, double min, double max) {
  const std::string range = absl::StrCat(PlainNumber(min), " to ", PlainNumber(max));
  return Checked(flag, absl::StrCat("a number, ", range), range, [min, max](const std::string& text) {
    double value = 0;
    return absl::SimpleAtod(text, &value) && value >= min && value <= max;
  });
}

CLI::Validator NumberAboveZero(const std::string& flag) {
  return Checked(flag, "a number above 0", "above 0", [](const std::string& text) {
    double value = 0;
    return absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0;
  });
}

template <typename T>
CLI::Validator AnyOf(const std::string& flag, const std::string& range) {
  const std::string kind = std::is_integral_v<T> ? "a whole number" : "a number";
  return Checked(flag, absl::StrCat(kind, ", ", range), "", [](const std::string& text) {
    T value = 0;
    if constexpr (std::is_integral_v<T>) {
      return absl::SimpleAtoi(text, &value);
    } else {
      return absl::SimpleAtod(text, &value);
    }
  });
}
template CLI::Validator AnyOf<int32_t>(const std::string& flag, const std::string& range);
template CLI::Validator AnyOf<int64_t>(const std::string& flag, const std::string& range);
template CLI::Validator AnyOf<double>(const std::string& flag, const std::string& range);

CLI::Validator OneOf(const std::string& flag, const std::vector<std::string>& words) {
  const std::string allowed = absl::StrJoin(words, ", ");
  return Checked(flag, allowed, allowed, [words](const std::string& text) {
    return std::find(words.begin(), words.end(), text) != words.end();
  });
}

CLI::Validator ASwitch(const std::string& flag) {
  return Checked(flag, "true or false", "", [](const std::string& text) {
    try {
      CLI::detail::to_flag_value(text);
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  });
}

CLI::Validator AFile(const std::string& flag) {
  return Checked(flag, "a file that is there", "",
                 [](std::string& text) { return CLI::ExistingFile(text).empty(); });
}

CLI::Validator AServer(const std::string& flag) {
  static constexpr absl::string_view kOtherNames[] = {"unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:"};
  constexpr int kMaxPort = 65535;
  return Checked(flag, "HOST:PORT or [IPV6]:PORT with a port from 1 to 65535, or unix:PATH", "",
                 [](const std::string& text) {
                   const auto begins = [&](absl::string_view name) { return absl::StartsWith(text, name); };
                   if (std::any_of(std::begin(kOtherNames), std::end(kOtherNames), begins)) return true;
                   const size_t colon = text.rfind(':');
                   if (colon == std::string::npos || colon == 0) return false;
                   const absl::string_view host = absl::string_view(text).substr(0, colon);
                   const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
                   if (!bracketed && host.find_first_of(":/[]") != absl::string_view::npos) return false;
                   int port = 0;  // gRPC takes the lower 16 bits of a larger one
                   return absl::SimpleAtoi(absl::string_view(text).substr(colon + 1), &port) && port >= 1 &&
                          port <= kMaxPort;
                 });
}

CLI::Validator AHostName(const std::string& flag) {
  return Checked(
      flag, "names of hosts, such as rag.example.com, or * for any", "", [](const std::string& text) {
        const absl::string_view host = absl::string_view(text).substr(0, text.rfind(':'));
        const absl::string_view port = absl::string_view(text).substr(host.size());  // with its colon
        const auto in_name = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_.", c); };
        const auto is_digit = [](char c) { return absl::ascii_isdigit(c); };
        return text == "*" ||
               (!host.empty() && std::all_of(host.begin(), host.end(), in_name) &&
                (port.empty() || (port.size() > 1 && std::all_of(port.begin() + 1, port.end(), is_digit))));
      });
}

CLI::Validator ASize(const std::string& flag) {
  return Checked(flag, "bytes, as 65536, 500MB or 4GiB, below 2^63", "", [](std::string& text) {
    try {
      int64_t bytes = 0;
      return CLI::AsSizeValue(/*kb_is_1000=*/true)(text).empty() && absl::SimpleAtoi(text, &bytes);
    } catch (const CLI::Error&) {
      return false;
    }
  });
}

}  // namespace kvblend::server
