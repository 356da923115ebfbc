#include "server/config/engine_flags.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plain_number.h"
#include "engine/api/option_table.h"
#include "server/config/value_checks.h"
#include "server/files/open_file.h"

namespace kvblend::server {
namespace {

void AddShare(const std::string& flag, const std::string& setting, std::map<std::string, double>& shares) {
  const size_t equals = setting.rfind('=');
  double share = 0;
  if (equals == std::string::npos || !absl::SimpleAtod(setting.substr(equals + 1), &share)) {
    throw CLI::ValidationError(
        absl::StrCat(flag, " has '", setting, "'; allowed: NAME=SHARE, with a number as SHARE"));
  }
  const std::string name = setting.substr(0, equals);
  if (const auto [earlier, is_new] = shares.emplace(name, share); !is_new) {
    throw CLI::ValidationError(absl::StrCat(flag, " has '", name, "' twice, with ", earlier->second, " and ",
                                            share, "; allowed: every namespace once"));
  }
}

constexpr char kRedisFlag[] = "--chunk-redis";
constexpr size_t kMaxPasswordBytes = 4096;

/// A password among the arguments would be there for every user of the machine to see.
CLI::Option* AddPasswordFile(CLI::App& app, std::string& password) {
  const std::string flag = absl::StrCat(kRedisFlag, "-password-file");
  const auto read = [flag, &password](const std::string& path) {
    absl::StatusOr<std::string> line = ReadFirstLine(path, kMaxPasswordBytes, "a password");
    if (line.ok() && line->empty()) {
      line = absl::InvalidArgumentError(absl::StrCat(path, " has an empty first line; allowed: a password"));
    }
    if (!line.ok()) {
      throw CLI::ParseError(absl::StrCat(flag, ": ", line.status().message()),
                            CLI::ExitCodes::ValidationError);
    }
    password = *std::move(line);
  };
  return app
      .add_option_function<std::string>(
          flag, read,
          "File whose first line is the password; or KVBLEND_CHUNK_REDIS_PASSWORD in the environment")
      ->type_name("FILE")
      ->needs(app.get_option(kRedisFlag));
}

// Adds the flag of one row.
struct Adder {
  CLI::App& app;
  EngineOptions& options;
  const EngineOption& option;
  const std::string flag = absl::StrCat("--", option.name);

  template <typename T>
  CLI::Option* operator()(const NumberOption<T>& number) const {
    const bool bounded = number.max < std::numeric_limits<T>::max();
    const std::string range = bounded ? absl::StrCat(number.above_min ? "above " : "",
                                                     PlainNumber(number.min), " to ", PlainNumber(number.max))
                                      : absl::StrCat("from ", PlainNumber(number.min));
    CLI::Option* added = AddValue(number.field(options));
    if (bounded) added->description(absl::StrCat(option.help, "; ", range));
    // CheckEngineOptions knows the range, and what depends on other options.
    added->check(AnyOf<T>(
        flag, number.word_for_zero == nullptr ? range : absl::StrCat(range, ", or ", number.word_for_zero)));
    if (number.word_for_zero == nullptr) return added;
    const std::string word = number.word_for_zero;
    if (number.field(options) == 0) added->default_str(word);
    return added->transform(CLI::Validator(
        [word](std::string& text) {
          if (text == word) text = "0";
          return std::string();
        },
        ""));
  }
  CLI::Option* operator()(const BytesOption& bytes) const { return AsBytes(AddValue(bytes.field(options))); }
  CLI::Option* operator()(const TextOption& text) const { return AddValue(text.field(options)); }
  CLI::Option* operator()(const FileOption& file) const {
    return AddValue(file.field(options))->check(AFile(flag));
  }
  CLI::Option* operator()(const SwitchOption& on) const {
    bool& value = on.field(options);
    const std::string off = value ? absl::StrCat(",!--no-", option.name) : "";
    return app.add_flag(flag + off, value, option.help)->check(ASwitch(flag));
  }
  CLI::Option* operator()(const SharesOption& shares) const {
    std::map<std::string, double>& by_name = shares.field(options);
    return app
        .add_option_function<std::vector<std::string>>(
            flag,
            [&by_name, name = flag](const std::vector<std::string>& settings) {
              by_name.clear();
              for (const std::string& setting : settings) AddShare(name, setting, by_name);
            },
            option.help)
        ->delimiter(',');
  }

  template <typename T>
  CLI::Option* AddValue(T& value) const {
    return app.add_option(flag, value, option.help)->capture_default_str();
  }
};

}  // namespace

CLI::Option* AsBytes(CLI::Option* option) {
  if (int64_t bytes = 0; absl::SimpleAtoi(option->get_default_str(), &bytes)) {
    option->default_str(PlainSize(bytes));
  }
  return option->transform(ASize(option->get_name()))->type_name("SIZE");
}

std::vector<CLI::Option*> AddEngineFlags(CLI::App& app, EngineOptions& options) {
  std::vector<CLI::Option*> added;
  for (const EngineOption& option : EngineOptionTable()) {
    added.push_back(std::visit(Adder{app, options, option}, option.value));
    added.back()->group(option.group);
    if (*option.type != '\0') added.back()->type_name(option.type);
    // Without --chunk-redis these would do nothing.
    if (absl::StartsWith(option.name, "chunk-redis-")) added.back()->needs(app.get_option(kRedisFlag));
    if (absl::string_view(option.name) != "chunk-redis-user") continue;
    added.push_back(AddPasswordFile(app, options.chunk_redis.password));
    added.back()->group(option.group);
  }
  return added;
}

absl::Status FinishEngineOptions(EngineOptions& options) {
  if (const char* password = std::getenv("KVBLEND_CHUNK_REDIS_PASSWORD"); password != nullptr) {
    if (!options.chunk_redis.password.empty()) {
      return absl::InvalidArgumentError(
          "chunk-redis: there are a password, in KVBLEND_CHUNK_REDIS_PASSWORD, and a password file; allowed: one");
    }
    options.chunk_redis.password = password;
  }
  return CheckEngineOptions(options);
}

}  // namespace kvblend::server
