#include "server/cli/commands/bench_serve_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/cli/terminal.h"
#include "server/config/value_checks.h"

namespace kvblend::server::cli {
namespace {

constexpr double kDefaultSeconds = 30;
constexpr int64_t kDefaultSearchRequests = 60;
constexpr int kDefaultUnloaded = 10;

constexpr char kWhat[] = "What is asked";
constexpr char kLoad[] = "Load";
constexpr char kReport[] = "Report";

void AddAskedFlags(CLI::App& command, BenchServeFlags& flags) {
  command.add_option("--data", flags.data, "JSON lists of {question, answers[], ctxs: [{title, text}]}")
      ->required()
      ->type_name("FILE...")
      ->group(kWhat);
  command.add_option("--first", flags.first, "Begin with this question of each file, from 0")
      ->check(WholeNumber("--first", 0))
      ->capture_default_str()
      ->type_name("I")
      ->group(kWhat);
  command.add_option("--n", flags.n, "Questions of each file; default: all")
      ->check(WholeNumber("--n", 1))
      ->type_name("N")
      ->group(kWhat);
  command.add_option("--passages", flags.passages, "Passages per question; default: all, with --zipf 10")
      ->check(WholeNumber("--passages", 1))
      ->type_name("K")
      ->group(kWhat);
  command
      .add_option(
          "--zipf", flags.zipf,
          "Draw passages at random from those of all questions: the r-th most popular with weight 1/r^S")
      ->check(Number("--zipf", 0.0, 5.0))
      ->type_name("S")
      ->group(kWhat);
  command
      .add_option(
          "--distinct", flags.distinct,
          "Number of different conversations, after which they repeat; default: the number of questions")
      ->check(WholeNumber("--distinct", 1, 100000))
      ->type_name("N")
      ->group(kWhat);
  command
      .add_option("--turns", flags.turns,
                  "Questions per conversation, each asked after the answer to the one before")
      ->check(WholeNumber("--turns", 1, 100))
      ->capture_default_str()
      ->type_name("N")
      ->group(kWhat);
  command.add_option("--output-tokens", flags.output_tokens, "Length of every answer; N-M: a random length")
      ->capture_default_str()
      ->type_name("N[-M]")
      ->group(kWhat);
  command
      .add_option("--rows", flags.rows,
                  "Modes: full, prefix, cacheblend, or reuse or a policy with :RATIO, :N-layers, :isolated, "
                  ":uncorrected, :unspread; the others are compared with the first")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("ROW,...")
      ->group(kWhat);
}

void AddLoadFlags(CLI::App& command, BenchServeFlags& flags) {
  command
      .add_option("--rate", flags.rates,
                  "Open loop: conversations that begin per second; a run for each rate")
      ->delimiter(',')
      ->check(Number("--rate", 1e-4, 1e5))
      ->type_name("R,...")
      ->group(kLoad);
  command
      .add_option("--arrivals", flags.arrivals,
                  "How conversations arrive with --rate and --search: poisson or fixed intervals")
      ->check(OneOf("--arrivals", {"poisson", "fixed"}))
      ->capture_default_str()
      ->type_name("HOW")
      ->group(kLoad);
  command
      .add_option("--trace", flags.trace, "Open loop: file with the arrival times in seconds, one per line")
      ->type_name("FILE")
      ->group(kLoad);
  command
      .add_option(
          "--clients", flags.clients,
          "Closed loop: number of clients, each of which holds one conversation after the other; a run for each number")
      ->delimiter(',')
      ->check(WholeNumber("--clients", 1, 10000))
      ->type_name("N,...")
      ->group(kLoad);
  command
      .add_option(
          "--search", flags.search,
          "Open loop: find the highest rate at which the p95 of TTFT is at most FACTOR times that without load")
      ->check(Number("--search", 1.0, 1000.0))
      ->type_name("FACTOR")
      ->group(kLoad);
  command
      .add_option(
          "--duration", flags.duration,
          "Length of each run, until the last request is planned; --search: of a try at least; default: 30")
      ->check(Number("--duration", 0.001, 1e6))
      ->type_name("SECONDS")
      ->group(kLoad);
  command
      .add_option(
          "--requests", flags.requests,
          "Conversations (--rate) or requests (--clients) per run; --search: conversations of a try at least; "
          "default: 60")
      ->check(WholeNumber("--requests", 1, kMaxLoadRequests))
      ->type_name("N")
      ->group(kLoad);
  command
      .add_option("--think", flags.think,
                  "Seconds between an answer and the next question of the conversation")
      ->check(Number("--think", 0.0, 1e5))
      ->capture_default_str()
      ->type_name("SECONDS")
      ->group(kLoad);
  command
      .add_option("--timeout", flags.timeout, "Deadline of a request, from its planned time; default: none")
      ->check(NumberAboveZero("--timeout"))
      ->type_name("SECONDS")
      ->group(kLoad);
  command
      .add_flag("--side-by-side", flags.side_by_side,
                "Mix all modes in one stream of requests, in turn; default: a run for each mode")
      ->group(kLoad);
  command
      .add_option(
          "--unloaded", flags.unloaded,
          "Requests of each mode to measure one at a time before any load; default: 10 with --search, else none")
      ->check(WholeNumber("--unloaded", 1, 100000))
      ->type_name("N")
      ->group(kLoad);
  command.add_option("--seed", flags.seed, "Seed of arrivals, passages and lengths")
      ->capture_default_str()
      ->type_name("N")
      ->group(kLoad);
  command
      .add_option(
          "--namespace", flags.tenant_namespace,
          "Namespace in which chunks are stored while it runs; with a key that has a namespace of its own, that one")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(kLoad);
  CLI::Option* cold = command
                          .add_flag("--cold", flags.cold,
                                    "Do not store the chunks before the load; default: store all of them")
                          ->group(kLoad);
  command
      .add_flag("--keep-chunks", flags.keep_chunks,
                "Leave the chunks in the store at the end; default: remove them")
      ->excludes(cold)
      ->group(kLoad);
}

}  // namespace

void AddBenchServeFlags(CLI::App& command, BenchServeFlags& flags) {
  AddConnectionFlags(command, InProcess::kServerOnly, flags.connection);
  AddAskedFlags(command, flags);
  AddLoadFlags(command, flags);
  command.add_option("--slo-ttft", flags.slo_ttft, "Service level: longest time to the first token")
      ->check(NumberAboveZero("--slo-ttft"))
      ->type_name("SECONDS")
      ->group(kReport);
  command
      .add_option("--slo-itl", flags.slo_itl,
                  "Service level: longest time per token after the first, as the mean of an answer")
      ->check(NumberAboveZero("--slo-itl"))
      ->type_name("SECONDS")
      ->group(kReport);
  command
      .add_flag("--check-answers", flags.check_answers,
                "Compare every answer under load with the one without load; exit code 5 when one differs")
      ->group(kReport);
  command
      .add_option("--json", flags.json, "Write a JSON object per line of the table (- for standard output)")
      ->type_name("FILE")
      ->group(kReport);
  command.add_option("--html", flags.html, "Write a page with the curves")->type_name("FILE")->group(kReport);
  command.add_option("--per-request", flags.per_request, "Write a JSON object per request")
      ->type_name("FILE")
      ->group(kReport);
}

absl::StatusOr<LoadOptions> MakeLoadOptions(const BenchServeFlags& flags) {
  LoadOptions options;
  for (const std::string& name : flags.rows) {
    KVBLEND_ASSIGN_OR_RETURN(options.modes.emplace_back(), ParseRow(name));
    if (std::count(options.modes.begin(), options.modes.end(), options.modes.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("row ", name, " is there twice"));
    }
  }
  const int loads = (flags.rates.empty() ? 0 : 1) + (flags.trace.empty() ? 0 : 1) +
                    (flags.clients.empty() ? 0 : 1) + (flags.search ? 1 : 0);
  if (loads != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(loads, " loads are given; allowed: one of --rate, --trace, --clients, --search"));
  }
  if (flags.search && flags.side_by_side) {
    return absl::InvalidArgumentError(
        "--search finds a rate for each mode: --side-by-side says nothing beside it");
  }
  if (!flags.trace.empty() && (flags.duration || flags.requests)) {
    return absl::InvalidArgumentError(
        "--duration and --requests say nothing beside --trace, which tells all times");
  }
  if (flags.check_answers && flags.turns > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("turns is ", flags.turns,
                     "; allowed with --check-answers: 1, since a later turn may find its history's KV "
                     "in memory or not, and both are right"));
  }
  if (flags.check_answers && flags.unloaded) {
    return absl::InvalidArgumentError(
        "--unloaded says nothing beside --check-answers, which asks everything once");
  }
  options.rates = flags.rates;
  options.clients = flags.clients;
  options.search_factor = flags.search;
  options.poisson = flags.arrivals == "poisson";
  if (!flags.trace.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string text, ReadFileOrStdin(flags.trace));
    KVBLEND_ASSIGN_OR_RETURN(options.trace, ParseArrivalTrace(text));
  }
  const bool count_alone = flags.requests || (flags.search && !flags.duration);
  options.limits = {.seconds = flags.duration.value_or(count_alone ? LoadRecord::kNever : kDefaultSeconds),
                    .requests = flags.requests.value_or(!flags.search    ? kMaxLoadRequests
                                                        : flags.duration ? 1
                                                                         : kDefaultSearchRequests)};
  for (const double rate : flags.rates) {
    if (!flags.requests && rate * options.limits.seconds > static_cast<double>(kMaxLoadRequests)) {
      return absl::InvalidArgumentError(
          absl::StrCat(HumanNumber(rate), " per second for ", HumanNumber(options.limits.seconds),
                       " s are too many requests; allowed: ", kMaxLoadRequests));
    }
  }
  options.think_seconds = flags.think;
  if (flags.timeout) options.timeout = absl::Seconds(*flags.timeout);
  options.side_by_side = flags.side_by_side;
  options.unloaded_requests = flags.unloaded.value_or(flags.search ? kDefaultUnloaded : 0);
  options.check_answers = flags.check_answers;
  options.level = {.ttft = flags.slo_ttft.value_or(LoadRecord::kNever),
                   .seconds_per_token = flags.slo_itl.value_or(LoadRecord::kNever)};
  options.seed = flags.seed;
  options.tenant_namespace = flags.tenant_namespace;
  options.warm = !flags.cold;
  options.keep_chunks = flags.keep_chunks;
  return options;
}

absl::StatusOr<ConversationOptions> MakeConversationOptions(const BenchServeFlags& flags) {
  KVBLEND_ASSIGN_OR_RETURN(const OutputLength output, ParseOutputLength(flags.output_tokens));
  return ConversationOptions{.count = flags.distinct,
                             .turns = flags.turns,
                             .passages = flags.passages,
                             .zipf = flags.zipf,
                             .output = output,
                             .seed = flags.seed};
}

std::string DescribeLoad(const BenchServeFlags& flags, const LoadOptions& options) {
  std::string text = absl::StrCat(absl::StrJoin(flags.data, ", "), "; passages: ");
  absl::StrAppend(&text, flags.passages > 0 ? absl::StrCat(flags.passages) : flags.zipf ? "10" : "all");
  if (flags.zipf) absl::StrAppendFormat(&text, ", Zipf %g", *flags.zipf);
  absl::StrAppend(&text, "; turns: ", flags.turns, "; answers of ", flags.output_tokens, " tokens; ");
  if (!flags.trace.empty()) {
    absl::StrAppend(&text, "arrivals of a trace");
  } else if (!flags.clients.empty()) {
    absl::StrAppend(&text, "closed loop");
  } else {
    absl::StrAppend(&text, flags.arrivals, " arrivals");
  }
  const std::string each = options.search_factor ? "at least, each" : "each";
  if (std::isfinite(options.limits.seconds))
    absl::StrAppendFormat(&text, "; %g s %s", options.limits.seconds, each);
  if (options.limits.requests > 1 && options.limits.requests < kMaxLoadRequests) {
    absl::StrAppend(&text, "; ", options.limits.requests,
                    flags.clients.empty() && flags.turns > 1 ? " conversations " : " requests ", each);
  }
  absl::StrAppend(&text, "; chunks ", options.warm ? "stored before" : "not stored before");
  if (std::isfinite(options.level.ttft))
    absl::StrAppendFormat(&text, "; TTFT within %g s", options.level.ttft);
  if (std::isfinite(options.level.seconds_per_token))
    absl::StrAppendFormat(&text, "; %g s per token", options.level.seconds_per_token);
  return text;
}

}  // namespace kvblend::server::cli
