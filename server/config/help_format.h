// How --help of kvblend-server and kvblend looks.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvblend::server {

/// Groups whose names begin so are the settings of an engine in the command's own process: there are dozens
/// of them, so only
/// --help-all prints them.
inline constexpr char kEngineGroups[] = "With --model: ";

class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() { column_width(30); }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  /// Of an option group: a heading and its options, as other groups have them.
  std::string make_expanded(const CLI::App* app) const override;
  /// "--x,--no-x", where CLI11 writes "--x,--no-x{false}".
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  /// "FILE...", where CLI11 writes "FILE... ...".
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace kvblend::server
