#include "server/config/settings_file.h"

#include <sys/mman.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/files/open_file.h"

namespace kvblend::server {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

// A comment begins behind a blank: values may have the character.
absl::string_view WithoutComment(absl::string_view value) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '#' && (i == 0 || absl::ascii_isspace(value[i - 1]))) value = value.substr(0, i);
  }
  return absl::StripAsciiWhitespace(value);
}

}  // namespace

void PipedSettings::Replace(std::string& path) {
  if (path != pipe_) {
    std::error_code ignored;
    if (!std::filesystem::is_fifo(path, ignored)) return;
    file_ = Descriptor(memfd_create("settings", MFD_CLOEXEC));
    const auto text = ReadNamed(path, Allowed::kFileOrStream, kMaxConfigBytes);
    const absl::Status copied = text.ok() ? WriteAll(file_, "a copy in memory", *text) : text.status();
    if (!copied.ok()) {
      throw CLI::ParseError(absl::StrCat("--config: ", copied.message()), CLI::ExitCodes::FileError);
    }
    pipe_ = path;
  }
  path = absl::StrCat("/proc/self/fd/", file_.get());
}

std::string PipedSettings::NameOf(const std::string& path) const {
  return file_.get() >= 0 && path == absl::StrCat("/proc/self/fd/", file_.get()) ? pipe_ : path;
}

template <typename... Parts>
[[noreturn]] void SettingsFile::Refuse(const Parts&... parts) const {
  throw CLI::ConfigError(
      absl::StrCat(piped_.NameOf(app_.get_config_ptr()->as<std::string>()), ": ", parts...),
      CLI::ExitCodes::ConfigError);
}

const CLI::Option* SettingsFile::Find(const std::string& name) const {
  const CLI::Option* option = app_.get_option_no_throw("--" + name);
  return option != nullptr ? option : app_.get_option_no_throw(name);
}

// Reads the settings of one value without quotes as they stand: to CLI11 "[::1]:80" and "a:1,b:2" are lists.
// The other lines are left to it, in `others`, but for what it would say nothing about: it takes "[default]"
// for no section, and skips lines of one or two characters, such as "[]" and "=1".
std::vector<CLI::ConfigItem> SettingsFile::ReadLines(const std::string& text, std::string& others) const {
  std::vector<CLI::ConfigItem> items;
  std::set<const CLI::Option*> seen;
  bool in_list = false;  // that an earlier line has begun
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (in_list) {
      in_list = !absl::EndsWith(line, "]");
      absl::StrAppend(&others, line, "\n");
      continue;
    }
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[' && line.back() == ']') {
      Refuse("'", line, "' is no setting; allowed: lines without sections");
    }
    if (line.size() < 3) Refuse("'", line, "' is no setting");
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parts.first));
    const absl::string_view value = WithoutComment(parts.second);
    const CLI::Option* option = Find(name);
    if (option != nullptr && !seen.insert(option).second) Refuse("'", name, "' is there twice");
    const bool takes_one = option != nullptr && option->get_items_expected_max() == 1;
    if (takes_one && !value.empty() && !absl::StrContains("\"'", value.substr(0, 1))) {
      if (absl::StrContains(value, ' ') || absl::StrContains(value, '\t')) {
        Refuse("line ", number, ": ", name, " is '", value,
               "'; allowed: one value, in quotes where it has blanks");
      }
      CLI::ConfigItem& item = items.emplace_back();
      item.name = name;
      item.inputs = {std::string(value)};
      continue;
    }
    in_list = value.size() > 1 && value.front() == '[' && value.back() != ']';
    absl::StrAppend(&others, line, "\n");
  }
  return items;
}

std::vector<CLI::ConfigItem> SettingsFile::from_config(std::istream& input) const {
  // Bounded: a device has no end, and a model that was given by mistake may not fit into memory.
  std::string text(size_t{kMaxConfigBytes} + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input.gcount()));
  if (text.size() > size_t{kMaxConfigBytes}) Refuse("has more than ", kMaxConfigBytes, " bytes");
  std::string others;
  std::vector<CLI::ConfigItem> items = ReadLines(text, others);
  std::istringstream lines(others);
  for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(lines)) items.push_back(std::move(item));
  for (const CLI::ConfigItem& item : items) {
    const CLI::Option* option = item.parents.empty() ? Find(item.name) : nullptr;
    if (option == nullptr || !option->get_configurable()) Refuse("'", item.fullname(), "' is no setting");
  }
  return items;
}

}  // namespace kvblend::server
