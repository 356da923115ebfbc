// Time to first token by reuse mode and policy, with where the time went. One process, modes in turn within
// every round, so that a drifting machine hits all alike; medians.
//
// With --mode only that one is measured, as a profiler wants it. With --disk the chunks lie there and nowhere
// else: before every measured prompt the engine starts anew. With a --correction, modes that use it are
// measured without it as well. How much of a time goes to passing deviations on, the modes called "unspread"
// tell.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "tests/bench/arguments.h"
#include "tests/bench/bench_prompt.h"
#include "tests/bench/samples.h"
#include "tests/support/engine_recorder.h"

namespace kvblend {
namespace {

constexpr auto kTtft = &PromptReport::time_to_first_token_seconds;

struct Mode {
  std::string name;
  BlendOptions blend;
  std::vector<PromptReport> reports;
};

Mode MakeMode(std::string name, Reuse reuse, Policy policy, double ratio,
              Anchoring anchoring = Anchoring::kAnchored) {
  Mode mode{std::move(name), {}, {}};
  mode.blend.reuse = reuse;
  mode.blend.policy = policy;
  mode.blend.ratio = ratio;
  mode.blend.anchoring = anchoring;
  mode.blend.store_misses = false;
  mode.blend.share_prefix = false;
  return mode;
}

/// The same as it is without the engine's correction.
Mode Uncorrected(Mode mode) {
  mode.name += " uncorrected";
  mode.blend.correction = false;
  return mode;
}

/// The same where the deviations of recomputed tokens are not passed on.
Mode Unspread(Mode mode) {
  mode.name += " unspread";
  mode.blend.spread_deviation = false;
  return mode;
}

/// The values of one of the reports' fields.
Samples SamplesOf(const Mode& mode, double PromptReport::*field) {
  Samples samples;
  for (const PromptReport& report : mode.reports) samples.Add(report.*field);
  return samples;
}
double Median(const Mode& mode, double PromptReport::*field) { return SamplesOf(mode, field).Median(); }

std::string ToJson(const std::vector<Mode>& modes, const EngineInfo& info) {
  nlohmann::ordered_json json;
  json["backend"] = info.backend;
  json["chunk_format"] = info.chunk_format;
  json["prompt_tokens"] = modes[0].reports[0].prompt_tokens;
  for (const Mode& mode : modes) {
    json["modes"].push_back({{"mode", mode.name},
                             {"ttft_seconds", SamplesOf(mode, kTtft).ToJson()},
                             {"load_seconds", Median(mode, &PromptReport::load_seconds)},
                             {"select_seconds", Median(mode, &PromptReport::select_seconds)},
                             {"prefill_seconds", Median(mode, &PromptReport::prefill_seconds)},
                             {"recomputed_tokens", mode.reports[0].recomputed_tokens}});
  }
  return json.dump(1) + "\n";
}

/// The prompt's report with this mode.
absl::StatusOr<PromptReport> Measure(Engine& engine, const Prompt& prompt, const BlendOptions& blend) {
  GenerateRequest request;
  request.prompt = prompt;
  request.blend = blend;
  request.sampling.max_tokens = 1;
  auto recorder = std::make_shared<test_support::GenerateRecorder>();
  if (auto handle = engine.Generate(request, recorder); !handle.ok()) return handle.status();
  if (!recorder->Wait().status.ok()) return recorder->status;
  return recorder->prompts[0];
}

/// An engine whose chunks are on disk only, warmed with a prompt that touches none of them.
absl::StatusOr<std::unique_ptr<Engine>> StartAnew(EngineOptions options, Prompt prompt) {
  options.self_check = false;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  if (!engine.ok()) return engine;
  prompt.system_text = "Another system text.";
  for (std::string& chunk : prompt.chunks) chunk.resize(chunk.size() / 8);
  const absl::Status warmed =
      Measure(**engine, prompt, MakeMode("", Reuse::kNothing, Policy::kAll, 1).blend).status();
  if (!warmed.ok()) return warmed;
  return engine;
}

int Main(int argc, char** argv) {
  int rounds = 5;
  BenchPrompt bench_prompt;
  std::string json_path;
  std::vector<std::string> only;
  EngineOptions options;
  CLI::App app("Time to first token by reuse mode and policy.");
  bench_prompt.AddArguments(app, options);
  app.add_option("--rounds", rounds, "measured rounds (5)")->check(Count());
  app.add_option("--disk", options.chunk_disk_path, "folder for the chunks");
  app.add_option("--mode", only, "what to measure, as in \"query 0.05\" (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--json", json_path, "file for the figures, times with their smallest and largest");
  ParseOrExit(app, argc, argv);
  const absl::StatusOr<Prompt> read = bench_prompt.Read();
  if (!read.ok()) return ExitCode(read.status());
  const Prompt& prompt = *read;
  auto engine = Engine::Create(options);
  if (!engine.ok()) return ExitCode(engine.status());
  std::printf("%s\nself-check: %.2g\n", (*engine)->info().backend.c_str(),
              (*engine)->info().self_check_max_error);

  PutChunksRequest put;
  put.system_text = prompt.system_text;
  put.lead_in = prompt.lead_in;
  put.chunks = prompt.chunks;
  auto stored = std::make_shared<test_support::PutRecorder>();
  if (auto handle = (*engine)->PutChunks(put, stored); !handle.ok()) return ExitCode(handle.status());
  if (!stored->Wait().status.ok()) return ExitCode(stored->status);

  std::vector<Mode> modes = {
      MakeMode("full", Reuse::kNothing, Policy::kAll, 1),
      MakeMode("prefix", Reuse::kPrefix, Policy::kNone, 0),
      MakeMode("reuse", Reuse::kChunks, Policy::kNone, 0),
      MakeMode("query 0.05", Reuse::kChunks, Policy::kQuery, 0.05),
      MakeMode("query 0.15", Reuse::kChunks, Policy::kQuery, 0.15),
      MakeMode("hkvd 0.15", Reuse::kChunks, Policy::kHkvd, 0.15),
  };
  for (const char* name : {"query 0.05", "query 0.15"}) {
    const auto mode = std::ranges::find(modes, name, &Mode::name);
    modes.insert(mode + 1, Unspread(*mode));
  }
  if (!(*engine)->Stats().correction.version.empty()) {
    for (const char* name : {"reuse", "query 0.05"}) {
      const auto mode = std::ranges::find(modes, name, &Mode::name);
      modes.insert(mode + 1, Uncorrected(*mode));
    }
  }
  if (!only.empty()) {
    std::set<std::string> wanted(only.begin(), only.end());
    std::erase_if(modes, [&](const Mode& mode) { return !wanted.contains(mode.name); });
    for (const Mode& mode : modes) wanted.erase(mode.name);
    if (!wanted.empty()) {
      return ExitCode(absl::InvalidArgumentError("--mode: no mode is called '" + *wanted.begin() + "'"));
    }
  }
  for (int round = 0; round <= rounds; ++round) {
    for (Mode& mode : modes) {
      if (!options.chunk_disk_path.empty() && mode.blend.reuse == Reuse::kChunks) {
        engine->reset();  // its folder is taken until it is gone
        engine = StartAnew(options, prompt);
        if (!engine.ok()) return ExitCode(engine.status());
      }
      const absl::StatusOr<PromptReport> report = Measure(**engine, prompt, mode.blend);
      if (!report.ok()) return ExitCode(report.status());
      if (round > 0) mode.reports.push_back(*report);  // round 0 warms caches
    }
  }
  const double first = Median(modes[0], kTtft);
  std::printf("prompt %d tokens, %d rounds, medians\n%-22s %9s %8s %9s %9s %9s %9s %9s %9s %11s\n",
              modes[0].reports[0].prompt_tokens, rounds, "mode", "TTFT s", "speed-up", "lookup s", "load s",
              "stall s", "select s", "prefill s", "tok/s", "recomputed");
  for (const Mode& mode : modes) {
    const double seconds = Median(mode, kTtft);
    std::printf("%-22s %9.3f %7.1fx %9.3f %9.3f %9.3f %9.3f %9.3f %9.0f %11d\n", mode.name.c_str(), seconds,
                first / seconds, Median(mode, &PromptReport::lookup_seconds),
                Median(mode, &PromptReport::load_seconds), Median(mode, &PromptReport::stall_seconds),
                Median(mode, &PromptReport::select_seconds), Median(mode, &PromptReport::prefill_seconds),
                mode.reports[0].prompt_tokens / seconds, mode.reports[0].recomputed_tokens);
  }
  return json_path.empty() ? 0 : ExitCode(WriteText(json_path, ToJson(modes, (*engine)->info())));
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) { return kvblend::Main(argc, argv); }
