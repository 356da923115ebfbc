// kvblend generate: one prompt, its answer streamed to standard output.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "engine/api/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"
#include "server/cli/prompt_report.h"
#include "server/cli/request_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] = R"(Examples:
  kvblend generate --question "What is a key/value cache?"
  kvblend generate --system "Answer briefly." --chunk-file a.txt b.txt --question "What do they agree on?"
  kvblend generate --request request.json --policy hkvd --ratio 0.3 --json | jq -rj 'select(.text).text.text'
  kvblend generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf --question "Hello?"
)";

struct GenerateFlags {
  Connection connection;
  PromptFlags prompt;
  CallerFlags caller;
  BlendFlags blend;
  SamplingFlags sampling;
  bool json = false;
  bool quiet = false;
  bool put_first = false;
};

absl::Status PutFirst(EngineClient& client, const GenerateRequest& request, Terminal& terminal) {
  if (request.prompt.chunks.empty()) return absl::OkStatus();
  PutChunksRequest put;
  put.caller = request.caller;
  put.system_text = request.prompt.system_text;
  put.lead_in = request.prompt.lead_in;
  put.anchoring = request.blend.anchoring;
  put.chunks = request.prompt.chunks;
  ProgressBar bar(terminal, "Precomputing chunks");
  return client.PutChunks(
      put, [&](const PutChunkProgress& progress) { bar.Update(progress.done, progress.total, ""); });
}

absl::Status Run(const GenerateFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  KVBLEND_ASSIGN_OR_RETURN(const GenerateRequest request,
                           BuildRequest(flags.prompt, flags.caller, flags.blend, flags.sampling));
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> client,
                           context.make_client(flags.connection, context.cancellation, terminal));
  if (flags.put_first) KVBLEND_RETURN_IF_ERROR(PutFirst(*client, request, terminal));

  std::optional<PromptReport> report;
  bool ends_with_newline = true;
  GenerateCallbacks callbacks;
  callbacks.on_prompt = [&](const PromptReport& prompt) {
    report = prompt;
    if (flags.json) terminal.PrintJson({{"prompt", ToJson(prompt)}});
  };
  callbacks.on_text = [&](const TextDelta& delta) {
    if (flags.json) {
      terminal.PrintJson({{"text", ToJson(delta)}});
    } else if (!delta.text.empty()) {
      terminal.out << delta.text << std::flush;
      ends_with_newline = delta.text.back() == '\n';
    }
  };
  const absl::StatusOr<GenerateResult> result = client->Generate(request, callbacks);
  if (!flags.json && !ends_with_newline) terminal.out << std::endl;
  KVBLEND_RETURN_IF_ERROR(result.status());
  if (flags.json) {
    terminal.PrintJson({{"finished", ToJson(*result)}});
  } else if (!flags.quiet) {
    if (report) {
      for (const std::string& line : DescribePrompt(*report)) terminal.PrintNote(line);
    }
    terminal.PrintNote(DescribeResult(*result));
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& root, CommandContext& context) {
  CLI::App* command =
      root.add_subcommand("generate", "Answer a prompt; the text is streamed to standard output");
  command->footer(kExamples);
  const auto flags = std::make_shared<GenerateFlags>();
  AddConnectionFlags(*command, InProcess::kAllowed, flags->connection);
  AddCallerFlags(*command, flags->caller);
  AddPromptFlags(*command, flags->prompt);
  AddBlendFlags(*command, flags->blend);
  AddSamplingFlags(*command, flags->sampling);
  command->add_flag("--put", flags->put_first, "Store the chunks first, so that this prompt finds them")
      ->group("Blending");
  command->add_flag("--json", flags->json, "One JSON object per event: prompt, text ..., finished");
  command->add_flag("--quiet", flags->quiet, "No report on standard error");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
