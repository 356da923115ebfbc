// What numbers on the command line may be: refused as "--n is '0'; allowed: a whole number from 1".
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace kvblend::server::cli {

/// `flag` is its name, as in "--n".
CLI::Validator WholeNumber(const std::string& flag, int64_t min,
                           int64_t max = std::numeric_limits<int64_t>::max());

/// A finite number from `min` to `max`.
CLI::Validator Number(const std::string& flag, double min, double max);

/// A finite number; zero is not one.
CLI::Validator NumberAboveZero(const std::string& flag);

}  // namespace kvblend::server::cli
