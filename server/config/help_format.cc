#include "server/config/help_format.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace kvblend::server {

std::string HelpFormat::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text =
      absl::StrCat(make_description(app), make_usage(app, std::move(name)), make_positionals(app));
  bool left_out = false;
  for (const std::string& group : app->get_groups()) {
    const std::vector<const CLI::Option*> options = app->get_options(
        [&](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
    if (group.empty() || options.empty()) continue;
    if (mode != CLI::AppFormatMode::All && absl::StartsWith(group, kEngineGroups)) {
      left_out = true;
      continue;
    }
    absl::StrAppend(&text, make_group(group, false, options));
  }
  // Commands below have a --help of their own.
  absl::StrAppend(&text, make_subcommands(app, CLI::AppFormatMode::Normal));
  if (left_out) {
    absl::StrAppend(
        &text,
        "\nWith --model the engine's settings are flags too, such as --threads; --help-all lists them.\n");
  }
  return absl::StrCat(text, "\n", make_footer(app));
}

std::string HelpFormat::make_expanded(const CLI::App* app) const {
  std::string text = absl::StrCat("\n", app->get_group(), " (", app->get_description(), "):\n");
  for (const CLI::Option* option : app->get_options()) {
    if (option == app->get_help_ptr() || option == app->get_help_all_ptr()) continue;
    absl::StrAppend(&text, make_option(option, option->get_positional()));
  }
  return text;
}

std::string HelpFormat::make_option_name(const CLI::Option* option, bool is_positional) const {
  return absl::StrReplaceAll(CLI::Formatter::make_option_name(option, is_positional), {{"{false}", ""}});
}

std::string HelpFormat::make_option_opts(const CLI::Option* option) const {
  return absl::StrReplaceAll(CLI::Formatter::make_option_opts(option), {{"... ...", "..."}});
}

}  // namespace kvblend::server
