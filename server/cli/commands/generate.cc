// kvblend generate: one prompt, its answer streamed to standard output.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/cli/prompt_report.h"
#include "server/convert/message_json.h"
#include "server/trace/trace_context.h"
#include "server/trace/trace_json.h"
#include "server/ui/report_page.h"

namespace kvblend::server::cli {
namespace {

constexpr char kGenerateExamples[] = R"(Examples:
  kvblend generate --question "What is a key/value cache?"
  kvblend generate --system "Answer briefly." --chunk-file a.txt b.txt --question "What do they agree on?"
  kvblend generate --request request.json --policy hkvd --ratio 0.3 --json | jq -rj 'select(.text).text.text'
  kvblend generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf --question "Hello?"
)";

struct GenerateFlags {
  Connection connection;
  RequestFlags request;
  bool json = false;
  bool quiet = false;
  bool put_first = false;
  std::string html_path;   // empty: no page is written
  std::string trace_path;  // empty: no timeline is written
};

absl::Status PutFirst(Client& client, const v1::GenerateRequest& request, absl::Time deadline,
                      Terminal& terminal) {
  if (request.prompt().chunks().empty()) return absl::OkStatus();
  v1::PutChunksRequest put;
  put.set_namespace_(request.namespace_());
  put.set_system_text(request.prompt().system_text());
  put.set_lead_in(request.prompt().lead_in());
  put.set_anchoring(request.blend().anchoring());
  put.set_priority(request.priority());
  *put.mutable_chunks() = request.prompt().chunks();
  ProgressBar bar(terminal, "Precomputing chunks");
  return client.Put(put, deadline, [&](const v1::PutChunkProgress& progress) {
    bar.Update(progress.done(), progress.total(), "");
  });
}

absl::Status Run(const GenerateFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  if (!flags.trace_path.empty() && flags.connection.engine_options.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--trace needs --model; a server writes timelines itself (kvblend-server --trace-dir)");
  }
  KVBLEND_ASSIGN_OR_RETURN(v1::GenerateRequest request, BuildRequest(flags.request));
  if (!flags.trace_path.empty()) KVBLEND_RETURN_IF_ERROR(CheckWritable(flags.trace_path));
  if (!flags.html_path.empty()) {
    KVBLEND_RETURN_IF_ERROR(CheckWritable(flags.html_path));
    request.mutable_blend()->set_explain(true);
  }
  const CallerFlags& caller = flags.request.caller;
  const absl::Time deadline = caller.deadline();
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  if (flags.put_first) KVBLEND_RETURN_IF_ERROR(caller.Explain(PutFirst(client, request, deadline, terminal)));

  std::optional<v1::PromptReport> report;
  bool ends_with_newline = true;
  std::string answer;
  const auto trace = flags.trace_path.empty() ? nullptr : std::make_shared<RequestTrace>();
  const auto finished = client.Generate(
      request, deadline,
      [&](const v1::GenerateEvent& event) {
        if (event.has_prompt()) report = event.prompt();
        answer += event.text().text();
        if (flags.json) {
          terminal.PrintLine(MessageToJson(event));
        } else if (!event.text().text().empty()) {
          terminal.out << event.text().text() << std::flush;
          ends_with_newline = event.text().text().back() == '\n';
        }
      },
      trace);
  if (!flags.json && !ends_with_newline) terminal.out << std::endl;
  KVBLEND_RETURN_IF_ERROR(caller.Explain(finished.status()));
  if (trace != nullptr) {
    const TraceContext call = NewCall("");
    KVBLEND_RETURN_IF_ERROR(WriteFile(
        flags.trace_path,
        TraceJson(*trace,
                  {.trace_id = call.trace_id, .span_id = call.span_id, .method = "Generate", .code = "OK"})));
  }
  if (!flags.html_path.empty() && report) {
    KVBLEND_RETURN_IF_ERROR(
        WriteFile(flags.html_path, ui::ReportPage(request.prompt().question(), answer, *report)));
  }
  if (!flags.json && !flags.quiet) {
    if (report) {
      for (const std::string& line : DescribePrompt(*report)) terminal.PrintNote(line);
    }
    terminal.PrintNote(DescribeResult(*finished));
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<GenerateFlags>(
      root, context, "generate", "Answer a prompt; the text is streamed to standard output",
      kGenerateExamples, Run);
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  AddRequestFlags(command, Sampling::kYes, flags.request);
  command.add_flag("--put", flags.put_first, "Store the chunks first, so that this prompt finds them")
      ->group("Blending");
  command.add_flag("--json", flags.json, "One JSON object per event: prompt, text ..., finished");
  command
      .add_option("--html", flags.html_path,
                  "Also write a page that shows what was done with every token of the prompt")
      ->type_name("FILE");
  command
      .add_option("--trace", flags.trace_path,
                  "Also write what the time went to, which ui.perfetto.dev opens; with --model")
      ->type_name("FILE");
  command.add_flag("--quiet", flags.quiet, "No report on standard error");
}

}  // namespace kvblend::server::cli
