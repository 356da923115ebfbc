// The file of --config, for CLI11: one NAME=VALUE in each line. Internal to server/config. Errors are thrown,
// as CLI11's are.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

#include "server/files/descriptor.h"

namespace kvblend::server {

/// What came through the pipe that --config names, such as <(command), as a file: CLI11 opens the path
/// itself, and would wait for a writer.
class PipedSettings {
 public:
  /// Puts the path of that file in the place of a pipe's. May be asked again.
  void Replace(std::string& path);
  /// What the path was before that.
  std::string NameOf(const std::string& path) const;

 private:
  std::string pipe_;
  Descriptor file_;
};

/// A file in which every line is a setting: a misspelt one would be left at its default in silence, which for
/// api-keys means a server without keys. Comments begin with '#', or a line with ';'. A value with blanks
/// stands in quotes, several values of one setting in brackets.
class SettingsFile : public CLI::ConfigTOML {
 public:
  /// Both must stay.
  SettingsFile(const CLI::App& app, const PipedSettings& piped) : app_(app), piped_(piped) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  std::vector<CLI::ConfigItem> ReadLines(const std::string& text, std::string& others) const;
  const CLI::Option* Find(const std::string& name) const;
  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... parts) const;

  const CLI::App& app_;
  const PipedSettings& piped_;
};

}  // namespace kvblend::server
