// kvblend score: how likely the model finds a given continuation of a prompt.
#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/api/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/cli/prompt_report.h"
#include "server/cli/request_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] = R"(Examples:
  kvblend score --question "The capital of France?" --continuation "Paris"
  kvblend score --request request.json --continuation-file answer.txt --reuse nothing
  kvblend score --request request.json --continuation-ids 504,3575 --json
)";

struct ScoreFlags {
  Connection connection;
  PromptFlags prompt;
  CallerFlags caller;
  BlendFlags blend;
  std::string continuation;
  std::string continuation_file;
  std::vector<int32_t> continuation_ids;
  bool json = false;
};

void PrintForPeople(const Scores& scores, double nll, Terminal& terminal) {
  terminal.out << "token id  log-prob  likeliest  log-prob  text\n";
  for (const ScoredToken& token : scores.tokens) {
    // Quoted, so that white space shows.
    const std::string text =
        OrderedJson(token.text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    terminal.out << absl::StreamFormat("%8d  %8.4f  %9d  %8.4f  %s\n", token.token_id, token.logprob,
                                       token.top_token_id, token.top_logprob, text);
  }
  const double mean = nll / static_cast<double>(scores.tokens.size());
  terminal.out << absl::StreamFormat(
                      "%d tokens, negative log-likelihood %.4f nats, %.4f per token, perplexity %.3f\n",
                      scores.tokens.size(), nll, mean, std::exp(mean))
               << std::flush;
  for (const std::string& line : DescribePrompt(scores.prompt)) terminal.PrintNote(line);
}

absl::Status Run(const ScoreFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(GenerateRequest prompt,
                           BuildRequest(flags.prompt, flags.caller, flags.blend, SamplingFlags()));
  ScoreRequest request;
  request.caller = std::move(prompt.caller);
  request.prompt = std::move(prompt.prompt);
  request.blend = prompt.blend;
  request.continuation = flags.continuation;
  request.continuation_token_ids = flags.continuation_ids;
  if (!flags.continuation_file.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(request.continuation, ReadFileOrStdin(flags.continuation_file));
  }
  if (request.continuation.empty() && request.continuation_token_ids.empty()) {
    return absl::InvalidArgumentError("the continuation to score is empty");
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> client,
                           context.make_client(flags.connection, context.cancellation, context.terminal));
  KVBLEND_ASSIGN_OR_RETURN(const Scores scores, client->Score(request));
  if (scores.tokens.empty()) return absl::InternalError("the engine scored no tokens");
  double nll = 0;
  for (const ScoredToken& token : scores.tokens) nll -= token.logprob;
  if (!flags.json) {
    PrintForPeople(scores, nll, context.terminal);
    return absl::OkStatus();
  }
  context.terminal.PrintJson({{"prompt", ToJson(scores.prompt)}});
  for (const ScoredToken& token : scores.tokens) context.terminal.PrintJson({{"token", ToJson(token)}});
  context.terminal.PrintJson({{"total",
                               {{"tokens", scores.tokens.size()},
                                {"nll", nll},
                                {"nll_per_token", nll / static_cast<double>(scores.tokens.size())}}}});
  return absl::OkStatus();
}

}  // namespace

void AddScoreCommand(CLI::App& root, CommandContext& context) {
  CLI::App* command = root.add_subcommand("score", "Log-probabilities of a given continuation of a prompt");
  command->footer(kExamples);
  const auto flags = std::make_shared<ScoreFlags>();
  AddConnectionFlags(*command, InProcess::kAllowed, flags->connection);
  AddCallerFlags(*command, flags->caller);
  AddPromptFlags(*command, flags->prompt);
  AddBlendFlags(*command, flags->blend);
  auto* group = command->add_option_group("Continuation", "What is scored; exactly one");
  group->add_option("--continuation", flags->continuation, "As text")->type_name("TEXT");
  group->add_option("--continuation-file", flags->continuation_file, "As a text file")->type_name("FILE");
  group->add_option("--continuation-ids", flags->continuation_ids, "As token ids")
      ->delimiter(',')
      ->type_name("ID,...");
  group->require_option(1);
  command->add_flag("--json", flags->json, "One JSON object per line: prompt, token ..., total");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
