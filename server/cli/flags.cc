#include "server/cli/flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/plain_number.h"
#include "base/status_macros.h"
#include "engine/api/engine.h"
#include "server/cli/files.h"
#include "server/config/engine_flags.h"
#include "server/config/help_format.h"
#include "server/config/value_checks.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr FieldFlag kNamespaceFlags[] = {
    {"--namespace", "namespace", "Namespace of the chunks; chunks of one namespace are invisible in another",
     "NAME"}};

constexpr FieldFlag kPriorityFlags[] = {
    {"--priority", "priority", "Whose turn comes first when the server is busy", "NAME"}};

constexpr FieldFlag kAnchorFlags[] = {
    {"--system", "system_text", "System text of the prompts to come", "TEXT"},
    {"--lead-in", "lead_in", "Text before the chunks in the prompts to come", "TEXT"},
    {"--isolated", "anchoring", "Compute chunks by themselves, not behind system text and lead-in", "",
     "isolated"}};

constexpr FieldFlag kPromptFlags[] = {
    {"--system", "prompt.system_text", "System text", "TEXT"},
    {"--lead-in", "prompt.lead_in", "Text before the chunks", "TEXT"},
    {"--question", "prompt.question", "What is asked; comes after the chunks", "TEXT"},
    {"--split", "prompt.split", "Look for passages in the question, and make them chunks", "HOW"}};

constexpr FieldFlag kBlendFlags[] = {
    {"--reuse", "blend.reuse", "What may be reused", "WHAT"},
    {"--anchored", "blend.anchoring", "Chunks computed behind system text and lead-in (default)", "",
     "anchored"},
    {"--isolated", "blend.anchoring", "Chunks computed by themselves", "", "isolated"},
    {"--policy", "blend.policy", "How tokens to recompute are chosen", "NAME"},
    {"--ratio-min", "blend.ratio_min", "With auto: recompute at least this share; default 0.15", "R"},
    {"--ratio-max", "blend.ratio_max", "With auto: recompute at most this share; default 0.5", "R"},
    {"--query-layers", "blend.query_layers", "Policy query: layers of its pass, from the first; 0: all", "N"},
    {"--hkvd-layer", "blend.hkvd_layer", "Policy hkvd: layer whose deviation decides; default 1", "N"},
    {"--hkvd-source", "blend.hkvd_source", "Policy hkvd: whose deviation is measured", "WHAT"},
    {"--link-tokens", "blend.link_tokens", "Policy link: tokens per chunk; default 32", "N"},
    {"--random-seed", "blend.random_seed", "Policy random: seed of the choice", "N"},
    {"--no-store-misses", "blend.store_misses", "Do not store chunks that were missing", "", "false"},
    {"--no-correction", "blend.correction", "Place stored KV as it is, without the learned correction", "",
     "false"},
    {"--no-spread", "blend.spread_deviation",
     "Do not move stored KV as that of the recomputed tokens deviates (never done with link or --isolated)",
     "", "false"},
    {"--read-namespace", "blend.read_namespaces",
     "Reuse chunks of this namespace where one's own has none; repeat for more", "NAME"},
    {"--no-share-prefix", "blend.share_prefix",
     "Share no KV pages with requests that begin with the same tokens", "", "false"},
    {"--explain", "blend.explain", "Report what was done with every token (with --json, or see --html)", ""}};

constexpr FieldFlag kSamplingFlags[] = {
    {"--max-tokens", "sampling.max_tokens", "Most tokens to generate; default 256", "N"},
    {"--temperature", "sampling.temperature", "0 to 10; 0 (default) always takes the most likely token", "T"},
    {"--top-k", "sampling.top_k", "Sample among the k most likely tokens; 0: off", "K"},
    {"--top-p", "sampling.top_p", "Sample among the tokens that together reach this probability; 1: off",
     "P"},
    {"--min-p", "sampling.min_p", "Leave out tokens below this share of the likeliest; 0: off", "P"},
    {"--repetition-penalty", "sampling.repetition_penalty", "Above 0, to 10; 1: off", "X"},
    {"--presence-penalty", "sampling.presence_penalty", "-2 to 2, for tokens of the answer; 0: off", "X"},
    {"--frequency-penalty", "sampling.frequency_penalty",
     "-2 to 2, for each time that a token is in the answer; 0: off", "X"},
    {"--seed", "sampling.seed", "Seed of the sampling; 0: the server chooses one and reports it", "N"},
    {"--stop", "sampling.stop", "A string that ends the answer; repeat for more", "TEXT"},
    {"--logprobs", "sampling.top_logprobs",
     "Log-probabilities (with --json) of each token and the N likeliest", "N"},
    {"--ignore-eos", "sampling.ignore_eos", "Go on generating where the model ends the text", ""},
    {"--attribution", "sampling.attribution",
     "Report which chunks each token of the answer attends to (with --json)", ""}};

absl::Status SetRatio(const std::string& text, v1::BlendOptions& options) {
  if (text == "auto") {
    options.set_ratio_mode(v1::RATIO_MODE_AUTO);
    return absl::OkStatus();
  }
  double ratio = 0;
  if (!absl::SimpleAtod(text, &ratio)) {
    return absl::InvalidArgumentError(absl::StrCat("--ratio is '", text, "'; allowed: 0 to 1, or auto"));
  }
  options.set_ratio_mode(v1::RATIO_MODE_FIXED);
  options.set_ratio(ratio);
  return absl::OkStatus();
}

}  // namespace

void AddConnectionFlags(CLI::App& command, InProcess in_process, Connection& connection) {
  auto* server = command.add_option("--server", connection.server, "Address of a running kvblend-server")
                     ->envname("KVBLEND_SERVER")
                     ->check(AServer("--server"))
                     ->capture_default_str()
                     ->type_name("HOST:PORT")
                     ->group("Connection");
  const auto add_file = [&command](const char* flag, const char* variable, std::string& path,
                                   const char* help) {
    return command.add_option(flag, path, help)->envname(variable)->type_name("FILE")->group("Connection");
  };
  auto* ca = add_file("--tls-ca", "KVBLEND_TLS_CA", connection.tls_ca_path,
                      "Speak TLS to a server whose certificate one of these (PEM) has signed");
  auto* certificate =
      add_file("--tls-client-certificate", "KVBLEND_TLS_CLIENT_CERTIFICATE",
               connection.tls_client_certificate_path, "Show this certificate (PEM) to the server");
  auto* key = add_file("--tls-client-key", "KVBLEND_TLS_CLIENT_KEY", connection.tls_client_key_path,
                       "The key (PEM) of --tls-client-certificate");
  certificate->needs(ca)->needs(key);
  key->needs(certificate);
  if (in_process == InProcess::kServerOnly) {
    command.set_help_all_flag();  // that of a command above
    return;
  }
  EngineOptions& engine = connection.engine_options;
  auto* model = command
                    .add_option("--model", engine.model_path,
                                "Run this model (a GGUF file or a folder) in this process, without a server")
                    ->type_name("FILE")
                    ->group("Connection");
  command.set_help_all_flag("--help-all", "The same with the engine's settings, which --model has");
  for (CLI::Option* option : AddEngineFlags(command, engine)) {
    option->needs(model)->group(kEngineGroups + option->get_group());
  }
  // The server's address may come from the environment; naming a model on the command line is the stronger
  // wish.
  command.parse_complete_callback([server, model, &command, &engine] {
    const auto given = [&](const CLI::Option* option) {
      const auto& parsed = command.parse_order();
      return std::find(parsed.begin(), parsed.end(), option) != parsed.end();
    };
    if (given(server) && given(model)) throw CLI::ValidationError("--server and --model exclude each other");
    if (!given(model)) return;
    if (const absl::Status checked = FinishEngineOptions(engine); !checked.ok()) {
      throw CLI::ValidationError(std::string(checked.message()));
    }
  });
}

void AddUnaryTimeoutFlag(CLI::App& command, Connection& connection) {
  command
      .add_option("--timeout", connection.unary_timeout_seconds,
                  "Give up after so many seconds without an answer to a call; default: 30")
      ->check(NumberAboveZero("--timeout"))
      ->type_name("SECONDS")
      ->group("Connection");
}

void AddCallerFields(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields) {
  fields.Add(command, message, "Connection", kNamespaceFlags);
  if (message.FindFieldByName("priority") != nullptr) {
    fields.Add(command, message, "Connection", kPriorityFlags);
  }
}

void AddCallerFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields,
                    CallerFlags& flags) {
  AddCallerFields(command, message, fields);
  command.add_option("--timeout", flags.timeout_seconds, "Give up after so many seconds; default: never")
      ->check(NumberAboveZero("--timeout"))
      ->type_name("SECONDS")
      ->group("Connection");
}

void AddAnchorFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields) {
  fields.Add(command, message, "Options", kAnchorFlags);
  command.get_option("--isolated")
      ->excludes(command.get_option("--system"))
      ->excludes(command.get_option("--lead-in"));
}

absl::Time CallerFlags::deadline() const {
  return timeout_seconds ? absl::Now() + absl::Seconds(*timeout_seconds) : absl::InfiniteFuture();
}

absl::Status CallerFlags::Explain(const absl::Status& status) const {
  if (!timeout_seconds || !absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("not done within --timeout, ", PlainNumber(*timeout_seconds), " s: ", status.message()));
}

void AddRequestFlags(CLI::App& command, Sampling sampling, RequestFlags& flags) {
  const google::protobuf::Descriptor& message = *v1::GenerateRequest::descriptor();
  AddCallerFlags(command, message, flags.fields, flags.caller);
  command
      .add_option(
          "--request", flags.request_file,
          "JSON with the fields of kvblend.v1.GenerateRequest (- reads standard input); flags override it")
      ->type_name("FILE")
      ->group("Prompt");
  command.add_option("--chunk", flags.chunk_texts, "A chunk's text; repeat for more")
      ->expected(1)
      ->take_all()
      ->type_name("TEXT")
      ->group("Prompt");
  command.add_option("--chunk-file", flags.chunk_files, "Files that hold one chunk each")
      ->type_name("FILE")
      ->group("Prompt");
  flags.fields.Add(command, message, "Prompt", kPromptFlags);
  command
      .add_option(
          "--ratio", flags.ratio,
          "Share of the reused tokens to recompute, 0 to 1; auto: as many as can be recomputed while stored KV is "
          "still being read; default: the server's setting, with --model 0.15")
      ->type_name("R")
      ->group("Blending");
  flags.fields.Add(command, message, "Blending", kBlendFlags);
  if (sampling == Sampling::kYes) flags.fields.Add(command, message, "Sampling", kSamplingFlags);
}

absl::StatusOr<v1::GenerateRequest> BuildRequest(const RequestFlags& flags) {
  v1::GenerateRequest request;
  if (!flags.request_file.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string json, ReadFileOrStdin(flags.request_file));
    KVBLEND_RETURN_IF_ERROR(ParseJson(json, request));
  }
  KVBLEND_RETURN_IF_ERROR(flags.fields.Apply(request));
  if (flags.ratio) KVBLEND_RETURN_IF_ERROR(SetRatio(*flags.ratio, *request.mutable_blend()));
  for (const std::string& text : flags.chunk_texts) {
    KVBLEND_RETURN_IF_ERROR(CheckUtf8Of("--chunk", text));
    request.mutable_prompt()->add_chunks(text);
  }
  for (const std::string& path : flags.chunk_files) {
    KVBLEND_ASSIGN_OR_RETURN(*request.mutable_prompt()->add_chunks(), ReadTextOrStdin(path));
  }
  if (request.prompt().question().empty()) {
    return absl::InvalidArgumentError(
        "no question: give --question TEXT, or a question in the --request file");
  }
  return request;
}

}  // namespace kvblend::server::cli
