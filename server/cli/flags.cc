#include "server/cli/flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/api/engine.h"
#include "engine/api/status_macros.h"
#include "server/cli/files.h"
#include "server/cli/request_json.h"
#include "server/config/engine_flags.h"

namespace kvblend::server::cli {
namespace {

absl::Status ApplyRatio(const std::string& text, BlendOptions& options) {
  if (text == "auto") {
    options.ratio_mode = RatioMode::kAuto;
    return absl::OkStatus();
  }
  double ratio = 0;
  if (!absl::SimpleAtod(text, &ratio)) {
    return absl::InvalidArgumentError(absl::StrCat("--ratio is '", text, "'; allowed: 0 to 1, or auto"));
  }
  options.ratio_mode = RatioMode::kFixed;
  options.ratio = ratio;
  return absl::OkStatus();
}

}  // namespace

void AddConnectionFlags(CLI::App& command, InProcess in_process, Connection& connection) {
  auto* server = command.add_option("--server", connection.server, "Address of a running kvblend-server")
                     ->envname("KVBLEND_SERVER")
                     ->capture_default_str()
                     ->type_name("HOST:PORT")
                     ->group("Connection");
  if (in_process == InProcess::kServerOnly) return;
  EngineOptions& engine = connection.engine_options;
  auto* model =
      command
          .add_option("--model", engine.model_path, "Run this GGUF model in this process, without a server")
          ->type_name("FILE")
          ->group("Connection");
  for (CLI::Option* option : AddEngineFlags(command, engine)) {
    option->needs(model)->group("With --model: " + option->get_group());
  }
  // The server's address may come from the environment; naming a model on the command line is the stronger
  // wish.
  command.parse_complete_callback([server, model, &command, &engine] {
    const auto given = [&](const CLI::Option* option) {
      const auto parsed = command.parse_order();
      return std::find(parsed.begin(), parsed.end(), option) != parsed.end();
    };
    if (given(server) && given(model)) throw CLI::ValidationError("--server and --model exclude each other");
    if (!given(model)) return;
    if (const absl::Status checked = FinishEngineOptions(engine); !checked.ok()) {
      throw CLI::ValidationError(std::string(checked.message()));
    }
  });
}

void AddPromptFlags(CLI::App& command, PromptFlags& flags) {
  const char* group = "Prompt";
  command
      .add_option(
          "--request", flags.request_file,
          "JSON with the fields of kvblend.v1.GenerateRequest (- reads standard input); flags override it")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--system", flags.system_text, "System text")->type_name("TEXT")->group(group);
  command.add_option("--lead-in", flags.lead_in, "Text before the chunks")->type_name("TEXT")->group(group);
  command.add_option("--chunk", flags.chunk_texts, "A chunk's text; repeat for more")
      ->expected(1)
      ->take_all()
      ->type_name("TEXT")
      ->group(group);
  command.add_option("--chunk-file", flags.chunk_files, "Files that hold one chunk each")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--question", flags.question, "What is asked; comes after the chunks")
      ->type_name("TEXT")
      ->group(group);
}

void AddCallerFlags(CLI::App& command, CallerFlags& flags) {
  command
      .add_option("--namespace", flags.tenant_namespace, "Chunks of one namespace are invisible in another")
      ->type_name("NAME")
      ->group("Connection");
  command.add_option("--timeout", flags.timeout_seconds, "Give up after so many seconds; default: never")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS")
      ->group("Connection");
}

void AddBlendFlags(CLI::App& command, BlendFlags& flags) {
  const char* group = "Blending";
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    command.add_option(name, value, help)->type_name(type)->group(group);
  };
  const auto add_flag = [&](const char* name, bool& value, const char* help) {
    return command.add_flag(name, value, help)->group(group);
  };
  add("--reuse", flags.reuse, "What may be reused: chunks (default), prefix or nothing", "WHAT");
  add_flag("--anchored", flags.anchored, "Chunks computed behind system text and lead-in (default)");
  add_flag("--isolated", flags.isolated, "Chunks computed by themselves")->excludes("--anchored");
  add("--policy", flags.policy,
      "How tokens to recompute are chosen: query (default), hkvd, link, none, all or random", "NAME");
  add("--ratio", flags.ratio,
      "Share of the reused tokens to recompute, 0 to 1, or auto: as many as loading hides; default 0.15, "
      "with "
      "--server its setting",
      "R");
  add("--ratio-min", flags.ratio_min, "auto: recompute at least this share; default 0.15", "R");
  add("--ratio-max", flags.ratio_max, "auto: recompute at most this share; default 0.5", "R");
  add("--query-layers", flags.query_layers, "query: layers that vote; 0: all", "N");
  add("--hkvd-layer", flags.hkvd_layer, "hkvd: layer whose deviation selects; default 1", "N");
  add("--hkvd-source", flags.hkvd_source, "hkvd: what deviates, value (default) or key", "WHAT");
  add("--link-tokens", flags.link_tokens, "link: tokens per chunk; default 32", "N");
  add("--random-seed", flags.random_seed, "random: seed of the choice", "N");
  add_flag("--no-store-misses", flags.no_store_misses, "Do not store chunks that were missing");
}

void AddSamplingFlags(CLI::App& command, SamplingFlags& flags) {
  const char* group = "Sampling";
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  add("--max-tokens", flags.max_tokens, "Most tokens to generate; default 256", "N");
  add("--temperature", flags.temperature, "0 to 10; 0 (default) always takes the most likely token", "T");
  add("--top-k", flags.top_k, "Sample among the k most likely tokens; 0: off", "K");
  add("--top-p", flags.top_p, "Sample among the tokens that together reach this probability; 1: off", "P");
  add("--min-p", flags.min_p, "Leave out tokens below this share of the likeliest; 0: off", "P");
  add("--repetition-penalty", flags.repetition_penalty, "Above 0, to 10; 1: off", "X");
  add("--seed", flags.seed, "Seed of the sampling; 0: chosen and reported", "N");
  add("--stop", flags.stop, "A string that ends the answer; repeat for more", "TEXT")
      ->expected(1)
      ->take_all();
  add("--logprobs", flags.top_logprobs, "Log-probabilities (with --json) of each token and the N likeliest",
      "N");
  command.add_flag("--ignore-eos", flags.ignore_eos, "Generate on past the end of the text")->group(group);
}

absl::Status ApplyFlags(const BlendFlags& flags, BlendOptions& options) {
  if (flags.reuse) {
    KVBLEND_ASSIGN_OR_RETURN(options.reuse, ParseReuse(*flags.reuse));
  }
  if (flags.anchored) options.anchoring = Anchoring::kAnchored;
  if (flags.isolated) options.anchoring = Anchoring::kIsolated;
  if (flags.policy) {
    KVBLEND_ASSIGN_OR_RETURN(options.policy, ParsePolicy(*flags.policy));
  }
  if (flags.ratio) {
    KVBLEND_RETURN_IF_ERROR(ApplyRatio(*flags.ratio, options));
  }
  if (flags.ratio_min) options.ratio_min = *flags.ratio_min;
  if (flags.ratio_max) options.ratio_max = *flags.ratio_max;
  if (flags.query_layers) options.query_layers = *flags.query_layers;
  if (flags.hkvd_layer) options.hkvd_layer = *flags.hkvd_layer;
  if (flags.hkvd_source) {
    KVBLEND_ASSIGN_OR_RETURN(options.hkvd_source, ParseDeviationSource(*flags.hkvd_source));
  }
  if (flags.link_tokens) options.link_tokens = *flags.link_tokens;
  if (flags.random_seed) options.random_seed = *flags.random_seed;
  if (flags.no_store_misses) options.store_misses = false;
  return absl::OkStatus();
}

void ApplyFlags(const SamplingFlags& flags, SamplingOptions& options) {
  if (flags.max_tokens) options.max_tokens = *flags.max_tokens;
  if (flags.temperature) options.temperature = *flags.temperature;
  if (flags.top_k) options.top_k = *flags.top_k;
  if (flags.top_p) options.top_p = *flags.top_p;
  if (flags.min_p) options.min_p = *flags.min_p;
  if (flags.repetition_penalty) options.repetition_penalty = *flags.repetition_penalty;
  if (flags.seed) options.seed = *flags.seed;
  if (!flags.stop.empty()) options.stop = flags.stop;
  if (flags.top_logprobs) options.top_logprobs = *flags.top_logprobs;
  if (flags.ignore_eos) options.ignore_eos = true;
}

void ApplyFlags(const CallerFlags& flags, Caller& caller) {
  if (flags.tenant_namespace) caller.tenant_namespace = *flags.tenant_namespace;
  if (flags.timeout_seconds) caller.deadline = absl::Now() + absl::Seconds(*flags.timeout_seconds);
}

absl::StatusOr<GenerateRequest> BuildRequest(const PromptFlags& prompt, const CallerFlags& caller,
                                             const BlendFlags& blend, const SamplingFlags& sampling) {
  GenerateRequest request;
  if (!prompt.request_file.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string json, ReadFileOrStdin(prompt.request_file));
    KVBLEND_ASSIGN_OR_RETURN(request, ParseGenerateRequest(json));
  }
  if (prompt.system_text) request.prompt.system_text = *prompt.system_text;
  if (prompt.lead_in) request.prompt.lead_in = *prompt.lead_in;
  if (prompt.question) request.prompt.question = *prompt.question;
  for (const std::string& text : prompt.chunk_texts) request.prompt.chunks.push_back(text);
  for (const std::string& path : prompt.chunk_files) {
    KVBLEND_ASSIGN_OR_RETURN(std::string text, ReadFileOrStdin(path));
    request.prompt.chunks.push_back(std::move(text));
  }
  if (request.prompt.question.empty()) {
    return absl::InvalidArgumentError(
        "no question: give --question TEXT, or a question in the --request file");
  }
  KVBLEND_RETURN_IF_ERROR(ApplyFlags(blend, request.blend));
  ApplyFlags(sampling, request.sampling);
  ApplyFlags(caller, request.caller);
  return request;
}

}  // namespace kvblend::server::cli
