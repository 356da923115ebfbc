// Time to first token by reuse mode and policy, with where the time went. One process, modes in turn within
// every round, so that a drifting machine hits all alike; medians.
//
//   ttft_bench MODEL.gguf DATA.json [--passages 10] [--rounds 5] [--question 0] [--gemm auto]
//              [--kv-dtype auto] [--chunk-format auto] [--disk DIR] [--mode "query 0.05"] [--threads 0]
//              [--json FILE]
//
// With --mode only that one is measured, as a profiler wants it; several are separated by commas. --json also
// writes the figures there, times with their smallest and largest.
// With --disk the chunks lie there and nowhere else: before every measured prompt the engine starts anew.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/engine.h"
#include "tests/bench/bench_prompt.h"
#include "tests/bench/samples.h"
#include "tests/support/engine_recorder.h"

namespace kvblend {
namespace {

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
  return mode;
}

template <typename Field>
double Median(const std::vector<PromptReport>& reports, Field field) {
  Samples samples;
  for (const PromptReport& report : reports) samples.Add(field(report));
  return samples.Median();
}

absl::Status WriteJson(const std::string& path, const std::vector<Mode>& modes, const EngineInfo& info) {
  nlohmann::ordered_json json;
  json["backend"] = info.backend;
  json["chunk_format"] = info.chunk_format;
  json["prompt_tokens"] = modes[0].reports[0].prompt_tokens;
  for (const Mode& mode : modes) {
    Samples ttft, select, load, prefill;
    for (const PromptReport& report : mode.reports) {
      ttft.Add(report.time_to_first_token_seconds);
      select.Add(report.select_seconds);
      load.Add(report.load_seconds);
      prefill.Add(report.prefill_seconds);
    }
    json["modes"].push_back({{"mode", mode.name},
                             {"ttft_seconds", ttft.ToJson()},
                             {"load_seconds", load.Median()},
                             {"select_seconds", select.Median()},
                             {"prefill_seconds", prefill.Median()},
                             {"recomputed_tokens", mode.reports[0].recomputed_tokens}});
  }
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  if (!file.flush()) return absl::UnavailableError("cannot write " + path);
  return absl::OkStatus();
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
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
  if (argc < 3) {
    std::fprintf(
        stderr,
        "usage: %s MODEL.gguf DATA.json [--passages N] [--rounds N] [--question N] [--gemm G] [--kv-dtype T] "
        "[--chunk-format F] [--disk DIR] [--mode M,...] [--threads N] [--json FILE]\n",
        argv[0]);
    return 2;
  }
  int passages = 10, rounds = 5, question = 0;
  std::string only, json_path;
  EngineOptions options;
  options.model_path = argv[1];
  for (int i = 3; i < argc; i += 2) {
    static const std::set<std::string> kFlags = {"--passages", "--rounds",       "--question", "--gemm",
                                                 "--kv-dtype", "--chunk-format", "--disk",     "--mode",
                                                 "--threads",  "--json"};
    const std::string flag = argv[i];
    if (!kFlags.contains(flag) || i + 1 == argc) {
      return Fail(absl::InvalidArgumentError(
          flag + ": unknown, or without its value; allowed: " + absl::StrJoin(kFlags, ", ")));
    }
    if (flag == "--passages") passages = std::atoi(argv[i + 1]);
    if (flag == "--rounds") rounds = std::atoi(argv[i + 1]);
    if (flag == "--question") question = std::atoi(argv[i + 1]);
    if (flag == "--gemm") options.gemm = argv[i + 1];
    if (flag == "--kv-dtype") options.kv_dtype = argv[i + 1];
    if (flag == "--chunk-format") options.chunk_format = argv[i + 1];
    if (flag == "--disk") options.chunk_disk_path = argv[i + 1];
    if (flag == "--mode") only = argv[i + 1];
    if (flag == "--threads") options.num_threads = std::atoi(argv[i + 1]);
    if (flag == "--json") json_path = argv[i + 1];
  }
  if (rounds < 1) return Fail(absl::InvalidArgumentError("--rounds: allowed: 1 or more"));
  const absl::StatusOr<Prompt> read = ReadBenchPrompt(argv[2], question, passages);
  if (!read.ok()) return Fail(read.status());
  const Prompt& prompt = *read;
  auto engine = Engine::Create(options);
  if (!engine.ok()) return Fail(engine.status());
  std::printf("%s\nself-check: %.2g\n", (*engine)->info().backend.c_str(),
              (*engine)->info().self_check_max_error);

  PutChunksRequest put;
  put.system_text = prompt.system_text;
  put.lead_in = prompt.lead_in;
  put.chunks = prompt.chunks;
  auto stored = std::make_shared<test_support::PutRecorder>();
  if (auto handle = (*engine)->PutChunks(put, stored); !handle.ok()) return Fail(handle.status());
  if (!stored->Wait().status.ok()) return Fail(stored->status);

  std::vector<Mode> modes = {
      MakeMode("full", Reuse::kNothing, Policy::kAll, 1),
      MakeMode("prefix", Reuse::kPrefix, Policy::kNone, 0),
      MakeMode("reuse", Reuse::kChunks, Policy::kNone, 0),
      MakeMode("query 0.05", Reuse::kChunks, Policy::kQuery, 0.05),
      MakeMode("query 0.15", Reuse::kChunks, Policy::kQuery, 0.15),
      MakeMode("hkvd 0.15", Reuse::kChunks, Policy::kHkvd, 0.15),
  };
  if (!only.empty()) {
    std::set<std::string> wanted = absl::StrSplit(only, ',');
    std::erase_if(modes, [&](const Mode& mode) { return !wanted.contains(mode.name); });
    for (const Mode& mode : modes) wanted.erase(mode.name);
    if (!wanted.empty()) {
      return Fail(absl::InvalidArgumentError("--mode: no mode is called '" + *wanted.begin() + "'"));
    }
  }
  for (int round = 0; round <= rounds; ++round) {
    for (Mode& mode : modes) {
      if (!options.chunk_disk_path.empty() && mode.blend.reuse == Reuse::kChunks) {
        engine->reset();  // its folder is taken until it is gone
        engine = StartAnew(options, prompt);
        if (!engine.ok()) return Fail(engine.status());
      }
      const absl::StatusOr<PromptReport> report = Measure(**engine, prompt, mode.blend);
      if (!report.ok()) return Fail(report.status());
      if (round > 0) mode.reports.push_back(*report);  // round 0 warms caches
    }
  }
  const auto ttft = [](const PromptReport& r) { return r.time_to_first_token_seconds; };
  const double first = Median(modes[0].reports, ttft);
  std::printf("prompt %d tokens, %d rounds, medians\n%-11s %9s %8s %9s %9s %9s %9s %9s %9s %11s\n",
              modes[0].reports[0].prompt_tokens, rounds, "mode", "TTFT s", "speed-up", "lookup s", "load s",
              "stall s", "select s", "prefill s", "tok/s", "recomputed");
  for (const Mode& mode : modes) {
    const double seconds = Median(mode.reports, ttft);
    std::printf("%-11s %9.3f %7.1fx %9.3f %9.3f %9.3f %9.3f %9.3f %9.0f %11d\n", mode.name.c_str(), seconds,
                first / seconds, Median(mode.reports, [](const PromptReport& r) { return r.lookup_seconds; }),
                Median(mode.reports, [](const PromptReport& r) { return r.load_seconds; }),
                Median(mode.reports, [](const PromptReport& r) { return r.stall_seconds; }),
                Median(mode.reports, [](const PromptReport& r) { return r.select_seconds; }),
                Median(mode.reports, [](const PromptReport& r) { return r.prefill_seconds; }),
                mode.reports[0].prompt_tokens / seconds, mode.reports[0].recomputed_tokens);
  }
  if (json_path.empty()) return 0;
  if (const absl::Status written = WriteJson(json_path, modes, (*engine)->info()); !written.ok()) {
    return Fail(written);
  }
  return 0;
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) { return kvblend::Main(argc, argv); }
