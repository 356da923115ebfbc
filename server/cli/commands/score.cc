// kvblend score: how likely the model finds a given continuation of a prompt.
#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/cli/prompt_report.h"
#include "server/config/value_checks.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kScoreExamples[] = R"(Examples:
  kvblend score --question "The capital of France?" --continuation "Paris"
  kvblend score --request request.json --continuation-file answer.txt --reuse nothing
  kvblend score --request request.json --continuation-ids 504,3575 --json
)";

struct ScoreFlags {
  Connection connection;
  RequestFlags request;
  std::string continuation;
  std::string continuation_file;
  std::vector<int32_t> continuation_ids;
  bool json = false;
  bool distributions = false;
};

void PrintForPeople(const Scores& scores, double nll, Terminal& terminal) {
  terminal.out << "token id  log-prob  likeliest  log-prob  text\n";
  for (const v1::ScoredToken& token : scores.tokens) {
    // Quoted, so that white space shows.
    const std::string text = OrderedJson(token.text()).dump();
    terminal.out << absl::StreamFormat("%8d  %8.4f  %9d  %8.4f  %s\n", token.token_id(), token.logprob(),
                                       token.top_token_id(), token.top_logprob(), text);
  }
  const double mean = nll / static_cast<double>(scores.tokens.size());
  terminal.out << absl::StreamFormat(
                      "%d tokens, negative log-likelihood %.4f nats, %.4f per token, perplexity %.3f\n",
                      scores.tokens.size(), nll, mean, std::exp(mean))
               << std::flush;
  for (const std::string& line : DescribePrompt(scores.prompt)) terminal.PrintNote(line);
}

absl::Status Run(const ScoreFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(v1::GenerateRequest prompt, BuildRequest(flags.request));
  v1::ScoreRequest request;
  request.set_namespace_(prompt.namespace_());
  request.mutable_prompt()->Swap(prompt.mutable_prompt());
  request.mutable_blend()->Swap(prompt.mutable_blend());
  if (!flags.continuation_ids.empty()) {
    request.mutable_continuation_token_ids()->mutable_ids()->Assign(flags.continuation_ids.begin(),
                                                                    flags.continuation_ids.end());
  } else if (!flags.continuation_file.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(*request.mutable_continuation_text(), ReadFlagText(flags.continuation_file));
  } else {
    KVBLEND_RETURN_IF_ERROR(CheckUtf8Of("--continuation", flags.continuation));
    request.set_continuation_text(flags.continuation);
  }
  request.set_return_distributions(flags.distributions);
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  const absl::StatusOr<Scores> answer = client.Score(request, flags.request.caller.deadline());
  KVBLEND_RETURN_IF_ERROR(flags.request.caller.Explain(answer.status()));
  const Scores& scores = *answer;
  if (scores.tokens.empty()) return absl::InternalError("the engine scored no tokens");
  double nll = 0;
  for (const v1::ScoredToken& token : scores.tokens) nll -= token.logprob();
  if (!flags.json) {
    PrintForPeople(scores, nll, context.terminal);
    return absl::OkStatus();
  }
  v1::ScoreEvent event;
  *event.mutable_prompt() = scores.prompt;
  context.terminal.PrintLine(MessageToJson(event));
  for (const v1::ScoredToken& token : scores.tokens) {
    *event.mutable_token() = token;
    context.terminal.PrintLine(MessageToJson(event));
  }
  context.terminal.PrintJson({{"total",
                               {{"tokens", scores.tokens.size()},
                                {"nll", nll},
                                {"nll_per_token", nll / static_cast<double>(scores.tokens.size())}}}});
  return absl::OkStatus();
}

}  // namespace

void AddScoreCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<ScoreFlags>(
      root, context, "score", "Log-probabilities of a given continuation of a prompt", kScoreExamples, Run);
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  AddRequestFlags(command, Sampling::kNo, flags.request);
  auto* group = command.add_option_group("Continuation", "what is scored: exactly one of these");
  group->add_option("--continuation", flags.continuation, "As text")->type_name("TEXT");
  group
      ->add_option("--continuation-file", flags.continuation_file,
                   absl::StrCat("As a text file; ", kFlagTextHelp))
      ->type_name("FILE");
  group->add_option("--continuation-ids", flags.continuation_ids, "As token ids")
      ->delimiter(',')
      ->check(WholeNumber("--continuation-ids", 0, std::numeric_limits<int32_t>::max()))
      ->type_name("ID,...");
  group->require_option(1);
  auto* json = command.add_flag("--json", flags.json, "One JSON object per line: prompt, token ..., total");
  command
      .add_flag("--distributions", flags.distributions,
                "With each token the log-probabilities of the whole vocabulary in its place")
      ->needs(json);
}

}  // namespace kvblend::server::cli
