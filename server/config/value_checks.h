// What values on the command line may be, for both programs: refused as "--n is '0'; allowed: a whole number
// from 1".
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvblend::server {

// `flag` is its name, as in "--n".

CLI::Validator WholeNumber(const std::string& flag, int64_t min,
                           int64_t max = std::numeric_limits<int64_t>::max());

/// A finite number from `min` to `max`.
CLI::Validator Number(const std::string& flag, double min, double max);

/// A finite number; zero is not one.
CLI::Validator NumberAboveZero(const std::string& flag);

/// Any number of type T, for flags whose range is checked with others; `range` tells it.
template <typename T>
CLI::Validator AnyOf(const std::string& flag, const std::string& range);
extern template CLI::Validator AnyOf<int32_t>(const std::string& flag, const std::string& range);
extern template CLI::Validator AnyOf<int64_t>(const std::string& flag, const std::string& range);
extern template CLI::Validator AnyOf<double>(const std::string& flag, const std::string& range);

CLI::Validator OneOf(const std::string& flag, const std::vector<std::string>& words);

/// What CLI11 takes for true or false, of a flag that needs no value.
CLI::Validator ASwitch(const std::string& flag);

/// A file that is there.
CLI::Validator AFile(const std::string& flag);

/// A server to connect to: "HOST:PORT", "[IPV6]:PORT", or one of gRPC's other names, such as "unix:PATH".
CLI::Validator AServer(const std::string& flag);

/// A name as it may stand in a Host header, perhaps with a port, or "*".
CLI::Validator AHostName(const std::string& flag);

/// Bytes, perhaps with a unit, which become a number of bytes.
CLI::Validator ASize(const std::string& flag);

}  // namespace kvblend::server
