// kvblend calibrate: fits the learned correction of a model's stored KV.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/api/calibration.h"
#include "server/cli/bench/dataset.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"
#include "server/cli/precompute/corpus_reader.h"
#include "server/config/value_checks.h"
#include "server/convert/requests.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] =
    R"(Coming after other chunks changes the keys and values of a chunk, in much the same way for every text. This command
learns the change from a few prompts, and writes a correction beside the model, where the server and --model find it.
Nothing is written unless reuse then comes nearer to full prefill on the prompts that are held out, and nearer than
with the correction that is already there.

Examples:
  kvblend calibrate --model model.gguf --data questions.json
  kvblend calibrate --model model.gguf --data questions.json --first 40 --n 10 --passages 5 --output model.kvcorrection
  kvblend calibrate --model model.gguf --data long_passages.json short_passages.json --n 26 --passages 5,10
  kvblend calibrate --model model.gguf --corpus docs/ handbook.txt --n 12
  kvblend calibrate --model model.gguf --data questions.json --resume calibration.moments  # may be interrupted
)";

struct CalibrateFlags {
  Connection connection;
  std::vector<std::string> data;
  std::vector<std::string> corpus;
  int first = 0;
  int n = 0;
  std::vector<int> passages = {0};  // one for all files, or one for each
  bool isolated = false;
  CalibrationOptions options;
  bool json = false;
};

absl::StatusOr<CalibrationCorpus> ReadCorpus(const CalibrateFlags& flags, Terminal& terminal) {
  if (flags.first > 0) {
    return absl::InvalidArgumentError("--first is for the questions of --data; a corpus has none");
  }
  CalibrationCorpus corpus = flags.options.corpus;
  corpus.max_prompts = flags.n;
  if (flags.passages.size() != 1) {
    return absl::InvalidArgumentError(
        "--passages: several numbers are for the files of --data; a corpus has one");
  }
  if (flags.passages[0] > 0) corpus.chunks_per_prompt = flags.passages[0];
  int64_t num_bad = 0;
  const auto warn = [&](const absl::Status& what, int64_t /*input_bytes*/) {
    ++num_bad;
    terminal.PrintWarning(std::string(what.message()));
    return absl::OkStatus();
  };
  KVBLEND_ASSIGN_OR_RETURN(CorpusReader reader, CorpusReader::Open({.paths = flags.corpus}, warn));
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(std::optional<Document> document, reader.Next());
    if (!document.has_value()) break;
    corpus.documents.push_back(std::move(document->text));
  }
  if (corpus.documents.empty()) {
    return absl::InvalidArgumentError(
        num_bad == 0 ? "--corpus: there is no .txt, .md or .jsonl file in the folders given"
                     : "--corpus: there is no document that can be used in what is given");
  }
  return corpus;
}

absl::StatusOr<CalibrationOptions> MakeOptions(const CalibrateFlags& flags, Terminal& terminal) {
  CalibrationOptions options = flags.options;
  options.anchoring = flags.isolated ? Anchoring::kIsolated : Anchoring::kAnchored;
  if (flags.data.empty() == flags.corpus.empty()) {
    return absl::InvalidArgumentError("calibrate needs either --data or --corpus");
  }
  if (!flags.corpus.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(options.corpus, ReadCorpus(flags, terminal));
    std::filesystem::path named = flags.corpus.front();
    if (!named.has_filename()) named = named.parent_path();  // it ends with a slash
    options.origin = absl::StrCat(options.corpus.documents.size(), " documents, ",
                                  absl::ClippedSubstr(named.filename().string(), 0, 200));
    return options;
  }
  if (flags.passages.size() != 1 && flags.passages.size() != flags.data.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--passages has ", flags.passages.size(),
                                                   " numbers; allowed: one, or one for each of the ",
                                                   flags.data.size(), " files of --data"));
  }
  std::vector<std::vector<BenchQuestion>> files;
  size_t longest = 0;
  for (const std::string& path : flags.data) {
    KVBLEND_ASSIGN_OR_RETURN(files.emplace_back(), LoadQuestions(path));
    longest = std::max(longest, files.back().size());
    absl::StrAppend(&options.origin, options.origin.empty() ? "" : " and ",
                    std::filesystem::path(path).filename().string());
  }
  const size_t begin = std::min<size_t>(flags.first, longest);
  const size_t end = flags.n == 0 ? longest : std::min(longest, begin + flags.n);
  // Each file's questions are spread over the whole list: the last prompts, which are held out, are of all.
  struct Place {
    double at;
    const BenchQuestion* question;
    int passages;
    std::string name;
  };
  std::vector<Place> places;
  for (size_t file = 0; file < files.size(); ++file) {
    const std::vector<BenchQuestion>& questions = files[file];
    const int passages = flags.passages[flags.passages.size() == 1 ? 0 : file];
    const size_t last = std::min(end, questions.size());
    for (size_t i = begin; i < last; ++i) {
      places.push_back({(static_cast<double>(i - begin) + 0.5) / static_cast<double>(last - begin),
                        &questions[i], passages, absl::StrCat(flags.data[file], ", question ", i)});
    }
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.at < b.at; });
  for (Place& place : places) {
    v1::GenerateRequest wire;
    *wire.mutable_prompt() = MakePrompt(*place.question, place.passages);
    absl::StatusOr<GenerateRequest> request = FromProto(std::move(wire));
    if (!request.ok()) {
      return absl::Status(request.status().code(),
                          absl::StrCat(place.name, ": ", request.status().message()));
    }
    options.prompts.push_back(std::move(request->prompt));
    options.names.push_back(std::move(place.name));
  }
  options.origin =
      absl::StrCat(absl::ClippedSubstr(options.origin, 0, 200), ", questions ", begin, " to ", end);
  return options;
}

OrderedJson ReportToJson(const CalibrationReport& report) {
  return {{"fitted_prompts", report.fitted_prompts},
          {"held_out_prompts", report.held_out_prompts},
          {"left_out_prompts", report.left_out_prompts},
          {"fitted_tokens", report.fitted_tokens},
          {"kl_before", report.kl_before},
          {"kl_after", report.kl_after},
          {"kl_there", report.kl_there.has_value() ? OrderedJson(*report.kl_there) : OrderedJson(nullptr)},
          {"key_strength", report.key_strength},
          {"by_attention", report.by_attention},
          {"residual", report.residual},
          {"ranks", report.ranks},
          {"path", report.path},
          {"version", report.version}};
}

absl::Status Run(const CalibrateFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  if (flags.connection.engine_options.model_path.empty()) {
    return absl::InvalidArgumentError("calibrate needs --model: the correction belongs to a model file");
  }
  KVBLEND_RETURN_IF_ERROR(CheckReplaceable("--output", flags.options.path));
  KVBLEND_RETURN_IF_ERROR(CheckReplaceable("--resume", flags.options.resume));
  KVBLEND_ASSIGN_OR_RETURN(const CalibrationOptions options, MakeOptions(flags, terminal));
  CalibrationReport report;
  {
    ProgressBar bar(terminal, "Calibrate", /*line_every=*/absl::Seconds(10));
    KVBLEND_ASSIGN_OR_RETURN(report, Calibrate(flags.connection.engine_options, options,
                                               [&](int64_t done, int64_t total, std::string_view what) {
                                                 bar.Update(done, total, what);
                                                 return context.cancellation.requested()
                                                            ? absl::CancelledError("interrupted")
                                                            : absl::OkStatus();
                                               }));
  }
  if (flags.json) {
    terminal.PrintJson(ReportToJson(report));
  } else {
    const auto mean = [](const auto& layers) {
      return std::accumulate(layers.begin(), layers.end(), 0.0) / static_cast<double>(layers.size());
    };
    terminal.out << absl::StreamFormat(
        "fitted on     %d prompts, %d tokens behind other chunks\n"
        "judged on     %d prompts held out, with nothing recomputed\n"
        "map           rank %.1f, mean over the layers\n"
        "deviation     %.0f%% of the squared deviation of K and V is left, mean over the layers\n"
        "KL from full  %.4f before, %.4f after: %.2fx\n"
        "best          %s, with its correction of K times %.2f\n",
        report.fitted_prompts, report.fitted_tokens, report.held_out_prompts, mean(report.ranks),
        100 * mean(report.residual), report.kl_before, report.kl_after, report.kl_after / report.kl_before,
        report.by_attention ? "the fit improved by attention passes" : "the least-squares fit",
        report.key_strength);
    if (report.kl_there.has_value()) {
      terminal.out << absl::StreamFormat("there         %s leaves %.4f\n", report.path, *report.kl_there);
    }
    terminal.PrintLine(
        !report.version.empty() ? absl::StrCat("written       ", report.path, ", version ", report.version)
        : report.kl_after < report.kl_before ? "not written   the correction that is there is better"
                                             : "not written   it does not lower the divergence");
  }
  if (!report.version.empty()) return report.saved;
  if (report.kl_after < report.kl_before) {
    return absl::FailedPreconditionError(absl::StrCat(
        report.path, " leaves less divergence on the prompts held out, and stays; --force replaces it"));
  }
  return absl::FailedPreconditionError(
      "the correction does not lower the divergence on the prompts held out");
}

}  // namespace

void AddCalibrateCommand(CLI::App& root, CommandContext& context) {
  auto [app, flags] = AddCommand<CalibrateFlags>(
      root, context, "calibrate", "Learn how to correct stored KV that is reused behind other chunks",
      kExamples, Run);
  AddConnectionFlags(app, InProcess::kAllowed, flags.connection);
  app.add_option("--data", flags.data, "JSON lists of {question, answers[], ctxs: [{title, text}]}")
      ->type_name("FILE...");
  app.add_option("--corpus", flags.corpus,
                 "Instead of --data: documents, as .txt, .md and .jsonl files or folders of them")
      ->type_name("PATH...");
  app.add_option("--chunk-tokens", flags.options.corpus.chunk_tokens, "With --corpus: most tokens of a chunk")
      ->capture_default_str();
  app.add_option("--first", flags.first, "Begin with this question of each file")
      ->check(WholeNumber("--first", 0))
      ->capture_default_str();
  app.add_option("--n", flags.n, "Number of questions of each file, or of prompts of a corpus; 0: all")
      ->check(WholeNumber("--n", 0))
      ->capture_default_str();
  app.add_option("--passages", flags.passages,
                 "Passages per prompt: one number, or one for each file of --data; 0: all, with --corpus 5")
      ->type_name("K,...")
      ->delimiter(',')
      ->check(WholeNumber("--passages", 0))
      ->capture_default_str();
  app.add_flag("--isolated", flags.isolated,
               "Learn for chunks that are computed by themselves, without an anchor");
  app.add_option(
         "--rank", flags.options.rank,
         "Highest rank of a layer's map, which gets as many directions as are worth their cost; 0: only scale and offset")
      ->capture_default_str();
  app.add_option("--ridge", flags.options.ridge, "Regularisation of the fit, as a share of the variances")
      ->capture_default_str();
  app.add_option(
         "--attention-passes", flags.options.attention_passes,
         absl::StrCat("How many passes over the prompts improve the fit by what attention reads; -1: ",
                      kAttentionPasses, " where at least ", kPromptsForAttention, " are fitted, else 0"))
      ->capture_default_str();
  app.add_option("--held-out", flags.options.held_out,
                 "Share of the prompts to judge the fit on, instead of fitting them")
      ->capture_default_str();
  app.add_option("--output", flags.options.path, "File to write; default: MODEL.kvcorrection")
      ->type_name("FILE");
  app.add_flag("--force", flags.options.force,
               "Replace the correction of this model that is in its place even if that one is better");
  app.add_option(
         "--resume", flags.options.resume,
         "File that keeps what was learned so far, beside FILE.attention, which keeps what the attention "
         "passes did; the same command then goes on from there")
      ->type_name("FILE");
  app.add_flag("--json", flags.json, "The report as one JSON object");
}

}  // namespace kvblend::server::cli
