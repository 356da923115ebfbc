// kvblend model inspect: what a model is, what it needs, and whether it will run.
#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/api/model_report.h"
#include "server/cli/command.h"
#include "server/cli/commands/model_fetch.h"

namespace kvblend::server::cli {
namespace {

constexpr char kModelExamples[] =
    R"(MODEL is a GGUF file, the first of its parts (NAME-00001-of-00003.gguf), or a folder with config.json, safetensors and
tokenizer.json.

Examples:
  kvblend model inspect model.gguf
  kvblend model fetch --list
)";

constexpr char kInspectExamples[] =
    R"(Nothing is loaded, and no server is asked. Exit code 0: the model will run, unless a weight is an infinity or NaN, which
only loading it finds; 1: something that it asks for is not implemented, or the context is too short for the server's
self-check; 2: it holds a value that is not allowed, --context is longer than the model's, or MODEL.kvcorrection is of
another model; 3: no such file; 5: it is damaged. The reason stands on standard error.

Examples:
  kvblend model inspect model.gguf --context 8192
  kvblend model inspect without-a-template.gguf --chat-format plain
  kvblend model inspect ./Qwen2.5-0.5B-Instruct --json | jq '.runs'
)";

struct ModelFlags {
  std::string path;
  int64_t context_tokens = 0;
  std::string chat_format = "auto";
  bool json = false;
};

// "96", "30.8 K", "134.5 M", "7.62 B"
std::string HumanCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 999.95e6) return absl::StrFormat("%.2f B", value / 1e9);
  if (value >= 999.95e3) return absl::StrFormat("%.1f M", value / 1e6);
  return value >= 1e3 ? absl::StrFormat("%.1f K", value / 1e3) : absl::StrCat(count);
}

void PrintModel(const ModelReport& report, std::ostream& out) {
  out << absl::StreamFormat("model         %s\n", report.name.empty() ? report.path : report.name)
      << absl::StreamFormat("architecture  %s, %s parameters\n",
                            report.architecture.empty() ? "unknown" : report.architecture,
                            HumanCount(report.parameters))
      << absl::StreamFormat("shape         %d layers, width %d, %d heads and %d KV heads of %d\n",
                            report.layers, report.width, report.heads, report.kv_heads, report.head_size)
      << absl::StreamFormat("context       %d tokens\n", report.context_tokens);
  if (report.short_context_tokens > 0 && report.short_context_tokens < report.context_tokens) {
    out << absl::StreamFormat(
        "              rotated as long contexts are, unless limited to %d tokens or fewer (LongRoPE)\n",
        report.short_context_tokens);
  }
  out << absl::StreamFormat("tokenizer     %s, %d tokens; chat template: %s, format: %s\n",
                            report.tokenizer.empty() ? "none" : report.tokenizer, report.vocabulary,
                            report.has_chat_template ? "yes" : "none",
                            report.chat_format.empty() ? "none" : report.chat_format)
      << absl::StreamFormat("fingerprint   %s\n", report.fingerprint);
  for (const TensorTypeReport& type : report.types) {
    out << absl::StreamFormat("  %-10s  %5d tensors  %9s parameters  %10s\n", type.type, type.tensors,
                              HumanCount(type.elements), HumanBytes(type.bytes));
  }
  out << absl::StreamFormat("memory        weights %s; KV %s for %d tokens, %s each\n",
                            HumanBytes(report.weight_bytes), HumanBytes(report.kv_bytes), report.kv_tokens,
                            HumanBytes(report.kv_bytes_per_token));
  if (report.answer_kv_bytes > 0 && report.answer_kv_bytes < report.kv_bytes) {
    out << absl::StreamFormat(
        "              %s of it once the prompt is done: windows have passed the rest\n",
        HumanBytes(report.answer_kv_bytes));
  }
  out << (report.runs.ok() ? "runs          yes\n" : "runs          no\n") << std::flush;
}

OrderedJson ModelJson(const ModelReport& report) {
  OrderedJson types = OrderedJson::array();
  for (const TensorTypeReport& type : report.types) {
    types.push_back(
        {{"type", type.type}, {"tensors", type.tensors}, {"elements", type.elements}, {"bytes", type.bytes}});
  }
  return {{"path", report.path},
          {"name", report.name},
          {"architecture", report.architecture},
          {"fingerprint", report.fingerprint},
          {"parameters", report.parameters},
          {"layers", report.layers},
          {"width", report.width},
          {"heads", report.heads},
          {"kv_heads", report.kv_heads},
          {"head_size", report.head_size},
          {"vocabulary", report.vocabulary},
          {"context_tokens", report.context_tokens},
          {"short_context_tokens", report.short_context_tokens},
          {"tensor_types", types},
          {"tokenizer", report.tokenizer},
          {"has_chat_template", report.has_chat_template},
          {"chat_format", report.chat_format},
          {"weight_bytes", report.weight_bytes},
          {"kv_bytes_per_token", report.kv_bytes_per_token},
          {"kv_tokens", report.kv_tokens},
          {"kv_bytes", report.kv_bytes},
          {"answer_kv_bytes", report.answer_kv_bytes},
          {"runs", report.runs.ok()},
          {"reason", std::string(report.runs.message())}};
}

absl::Status RunInspect(const ModelFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const ModelReport report,
                           InspectModel(flags.path, flags.context_tokens, flags.chat_format));
  if (flags.json) {
    context.terminal.PrintJson(ModelJson(report));
  } else {
    PrintModel(report, context.terminal.out);
  }
  return report.runs;
}

}  // namespace

void AddModelCommand(CLI::App& root, CommandContext& context) {
  CLI::App* model =
      root.add_subcommand("model", "Inspect a model file or folder, or fetch one, without a server");
  model->footer(kModelExamples);
  model->require_subcommand(1);
  const auto [inspect, flags] = AddCommand<ModelFlags>(
      *model, context, "inspect", "What a model is, what memory it needs, and whether it will run",
      kInspectExamples, RunInspect);
  inspect.add_option("model", flags.path, "A GGUF file, the first of its parts, or a folder")
      ->required()
      ->type_name("MODEL");
  inspect
      .add_option("--context", flags.context_tokens,
                  "Context length in tokens to compute the memory for; 0: the model's own")
      ->capture_default_str()
      ->type_name("N");
  inspect.add_option("--chat-format", flags.chat_format, "Chat format, as kvblend-server would be given it")
      ->capture_default_str()
      ->type_name("NAME");
  inspect.add_flag("--json", flags.json, "One JSON object");
  AddModelFetchCommand(*model, context);
}

}  // namespace kvblend::server::cli
