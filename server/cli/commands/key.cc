// kvblend key: keys of the API, made without a server.
#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "engine/api/names.h"
#include "server/access/key_file.h"
#include "server/cli/command.h"
#include "server/config/value_checks.h"

namespace kvblend::server::cli {
namespace {

constexpr char kKeyNewExamples[] =
    R"(Prints the key, which is stored nowhere, and the line for the file of kvblend-server's --api-keys, which holds
its hash. The server reads that file again when it changes.

Examples:
  kvblend key new --tenant acme
  kvblend key new --tenant acme --requests-per-minute 600 --concurrent-requests 8
  kvblend key new --tenant acme --store-bytes 8589934592 --max-priority high --read corpus
)";

struct KeyNewFlags {
  Tenant tenant;
  std::string priority = "normal";
  std::optional<std::string> max_priority;
};

absl::Status MakeNewKey(const KeyNewFlags& flags, CommandContext& context) {
  Tenant tenant = flags.tenant;
  if (tenant.chunk_namespace.empty()) tenant.chunk_namespace = tenant.name;
  KVBLEND_ASSIGN_OR_RETURN(tenant.priority, ParseName<Priority>("--priority", flags.priority));
  tenant.max_priority = tenant.priority;
  if (flags.max_priority.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(tenant.max_priority, ParseName<Priority>("--max-priority", *flags.max_priority));
  }
  KVBLEND_ASSIGN_OR_RETURN(const NewKey made, MakeKey(tenant));
  context.terminal.PrintLine(made.key);
  context.terminal.PrintLine(made.line);
  return absl::OkStatus();
}

void AddLimit(CLI::App& command, const char* name, int64_t& limit, const char* help) {
  command.add_option(name, limit, help)->capture_default_str()->check(WholeNumber(name, 0))->type_name("N");
}

}  // namespace

void AddKeyCommand(CLI::App& root, CommandContext& context) {
  CLI::App* key = root.add_subcommand("key", "Make keys for servers with --api-keys");
  key->require_subcommand(1);
  key->footer(kKeyNewExamples);
  const auto [command, flags] = AddCommand<KeyNewFlags>(
      *key, context, "new", "Make a key: prints it, and its line for the file of --api-keys", kKeyNewExamples,
      MakeNewKey);
  command
      .add_option("--tenant", flags.tenant.name,
                  "The tenant that the key belongs to; keys of one tenant share its limits")
      ->required()
      ->type_name("NAME");
  command
      .add_option("--namespace", flags.tenant.chunk_namespace,
                  "Namespace of all its chunks; default: the tenant's name")
      ->type_name("NAME");
  command.add_flag(
      "--admin", flags.tenant.admin,
      "The key may change what the server learns (kvblend correction) and see figures of all tenants");
  AddLimit(command, "--requests-per-minute", flags.tenant.requests_per_minute,
           "Most calls of any kind per minute; 0: no limit");
  AddLimit(command, "--computed-tokens-per-minute", flags.tenant.computed_tokens_per_minute,
           "Most tokens per minute that are computed, not reused; 0: no limit");
  AddLimit(
      command, "--store-bytes", flags.tenant.store_bytes,
      "Most bytes that its chunks may take in memory, and on disk; 0: the server's limit for every namespace");
  command
      .add_option("--priority", flags.priority,
                  "Priority of requests that do not set one: normal, high or low")
      ->type_name("NAME");
  command
      .add_option("--max-priority", flags.max_priority,
                  "Highest priority that requests may set; default: --priority")
      ->type_name("NAME");
  command
      .add_option("--read", flags.tenant.read,
                  "Namespace of another tenant whose chunks it may use, but not change; repeat for more")
      ->expected(1)
      ->take_all()
      ->type_name("NAME");
  AddLimit(command, "--concurrent-requests", flags.tenant.concurrent_requests,
           "Most calls that compute at the same time; 0: no limit");
}

}  // namespace kvblend::server::cli
