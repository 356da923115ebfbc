// What the engine does per second, through its public API: full prefill, decoding alone and in company,
// start-up, memory. Every round measures each figure once, in turn, so that a drifting machine hits all
// alike. `throughput_bench --help` lists the options.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "engine/api/engine.h"
#include "tests/bench/arguments.h"
#include "tests/bench/exact_prompt.h"
#include "tests/bench/line_transfer.h"
#include "tests/bench/samples.h"

namespace kvblend {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kNotes[] =
    R"(A prompt reuses nothing and its KV is not stored. Prefill: tokens per second until the first token, tokenization
and queueing included. Decode: steps from the first to the last token, greedy, past any end of text; KV: the memory of
all pages in use at the first token, when the prompt has all of its pages, and at the last.
memory: peak resident memory (VmHWM) of the process after one request, before anything else is measured.
load: Engine::Create, with and without the self-check, the file being in the page cache.
line: how long memory takes from one processor's cache to another's, in every round. A virtual machine's processors may be
moved to where they share no cache, and back; threads are further apart then, and everything is slower.)";

struct Config {
  EngineOptions engine;
  std::string data_path, json_path, tokens_path;
  std::vector<std::string> parts = {"memory", "load", "prefill", "decode", "batch"};
  std::vector<int32_t> prefill_tokens = {512, 2048, 6000};
  std::vector<int32_t> decode_contexts = {512, 6000}, decode_steps = {48, 32};
  int32_t batch_requests = 8, batch_context = 512, memory_tokens = 8000;
  int32_t rounds = 5, warm_up = 1;
  bool cpu_time = false;

  bool Has(std::string_view part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

/// When each token came.
struct TokenTimes final : GenerateObserver {
  TokenTimes(const Engine& of_engine, int32_t of_tokens, bool processor_time)
      : engine(of_engine),
        max_tokens(of_tokens),
        clock(processor_time ? ProcessorSeconds : Now),
        submitted(clock()) {}

  const Engine& engine;
  const int32_t max_tokens;
  double (*clock)();
  double submitted;
  int64_t first_kv_bytes = 0, last_kv_bytes = 0;  // in use at the first token, and at the last
  PromptReport report;
  std::vector<double> seconds;  // one per token
  std::vector<int32_t> token_ids;
  absl::Status status;
  absl::Notification done;

  void OnPrompt(const PromptReport& prompt_report) override { report = prompt_report; }
  void OnText(const TextDelta& delta) override {
    const double now = clock();
    for (const int32_t token_id : delta.token_ids) {
      seconds.push_back(now);
      token_ids.push_back(token_id);
    }
    const auto count = static_cast<int32_t>(seconds.size());
    if (count != 1 && count != max_tokens) return;
    const EngineStats stats = engine.Stats();
    (count == 1 ? first_kv_bytes : last_kv_bytes) = stats.pages_used * stats.page_bytes;
  }
  void OnDone(const absl::Status& final_status, const GenerateResult&) override {
    status = final_status;
    done.Notify();
  }

  double first() const { return seconds.front(); }
  double last() const { return seconds.back(); }
};

absl::StatusOr<std::shared_ptr<TokenTimes>> Submit(Engine& engine, const Prompt& prompt, int32_t max_tokens,
                                                   bool processor_time = false) {
  GenerateRequest request;
  request.prompt = prompt;
  request.blend.reuse = Reuse::kNothing;
  request.blend.store_misses = false;
  request.blend.share_prefix = false;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  auto times = std::make_shared<TokenTimes>(engine, max_tokens, processor_time);
  KVBLEND_RETURN_IF_ERROR(engine.Generate(std::move(request), times).status());
  return times;
}

absl::Status Wait(TokenTimes& times, int32_t max_tokens) {
  times.done.WaitForNotification();
  KVBLEND_RETURN_IF_ERROR(times.status);
  if (static_cast<int32_t>(times.seconds.size()) != max_tokens) {
    return absl::InternalError(
        absl::StrCat(times.seconds.size(), " tokens came; asked for were ", max_tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TokenTimes>> Run(Engine& engine, const Prompt& prompt, int32_t max_tokens,
                                                bool processor_time = false) {
  KVBLEND_ASSIGN_OR_RETURN(std::shared_ptr<TokenTimes> times,
                           Submit(engine, prompt, max_tokens, processor_time));
  KVBLEND_RETURN_IF_ERROR(Wait(*times, max_tokens));
  return times;
}

/// Peak resident memory of this process, in bytes; 0 where /proc does not tell.
int64_t PeakResidentBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) * 1024;
  }
  return 0;
}

int Processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

class Bench {
 public:
  Bench(Config config, ExactPrompts prompts) : config_(std::move(config)), prompts_(std::move(prompts)) {}

  absl::Status Run() {
    KVBLEND_RETURN_IF_ERROR(CreateEngine());
    if (config_.Has("memory")) KVBLEND_RETURN_IF_ERROR(MeasureMemory());
    if (config_.Has("load")) KVBLEND_RETURN_IF_ERROR(MeasureLoad());
    KVBLEND_RETURN_IF_ERROR(AddFigures());
    for (int round = -config_.warm_up; round < config_.rounds; ++round) {
      if (const double seconds = LineTransferSeconds(); round >= 0 && seconds > 0) line_.Add(seconds);
      for (const auto& figure : figures_) KVBLEND_RETURN_IF_ERROR(figure(round >= 0));
    }
    return absl::OkStatus();
  }

  Json Result() const {
    Json result;
    result["backend"] = engine_->info().backend;
    result["model"] = engine_->info().model_name;
    result["kv_dtype"] = engine_->info().kv_dtype;
    result["threads"] = config_.engine.num_threads > 0 ? config_.engine.num_threads : Processors();
    result["rounds"] = config_.rounds;
    if (!line_.empty()) result["line_transfer_seconds"] = line_.ToJson();
    if (!memory_.is_null()) result["memory"] = memory_;
    if (!load_.empty()) {
      result["load"] = {{"seconds", load_.ToJson()}, {"seconds_without_self_check", bare_load_.ToJson()}};
    }
    for (const Prefill& prefill : prefills_) {
      result["prefill"].push_back({{"tokens", prefill.tokens},
                                   {"seconds", prefill.seconds.ToJson()},
                                   {"tokens_per_second", prefill.rate.ToJson()}});
    }
    for (const Decode& decode : decodes_) {
      result["decode"].push_back({{"context", decode.context},
                                  {"steps", decode.steps},
                                  {"tokens_per_second", decode.rate.ToJson()},
                                  {"first_kv_bytes", decode.first_kv_bytes},
                                  {"last_kv_bytes", decode.last_kv_bytes},
                                  {"token_ids", decode.token_ids}});
    }
    if (!batch_.rate.empty()) {
      result["batch"] = {{"requests", config_.batch_requests},
                         {"context", config_.batch_context},
                         {"steps", batch_.steps},
                         {"tokens_per_second", batch_.rate.ToJson()},
                         {"one", batch_.one.ToJson()},
                         {"ratio", batch_.ratio.ToJson()}};
    }
    return result;
  }

  void Print(std::FILE* out) const {
    std::fprintf(out, "%s\nmedians of %d rounds (smallest to largest)\n", engine_->info().backend.c_str(),
                 config_.rounds);
    if (!line_.empty()) {
      std::fprintf(out, "line between processors %8.0f ns     (%.0f to %.0f)\n", 1e9 * line_.Median(),
                   1e9 * line_.Min(), 1e9 * line_.Max());
    }
    for (const Prefill& p : prefills_) {
      std::fprintf(out, "prefill %5d tokens    %9.1f tok/s  (%.1f to %.1f)  %.3f s\n", p.tokens,
                   p.rate.Median(), p.rate.Min(), p.rate.Max(), p.seconds.Median());
    }
    for (const Decode& d : decodes_) {
      std::fprintf(
          out, "decode behind %5d     %9.1f tok/s  (%.1f to %.1f)  %d steps, KV %.1f MiB, then %.1f MiB\n",
          d.context, d.rate.Median(), d.rate.Min(), d.rate.Max(), d.steps,
          static_cast<double>(d.first_kv_bytes) / (1 << 20),
          static_cast<double>(d.last_kv_bytes) / (1 << 20));
    }
    if (!batch_.rate.empty()) {
      std::fprintf(out, "%2d requests behind %4d %9.1f tok/s  (%.1f to %.1f)  %.2f times one\n",
                   config_.batch_requests, config_.batch_context, batch_.rate.Median(), batch_.rate.Min(),
                   batch_.rate.Max(), batch_.ratio.Median());
    }
    if (!load_.empty()) {
      std::fprintf(out, "load                   %9.3f s      (%.3f to %.3f)  %.3f s without self-check\n",
                   load_.Median(), load_.Min(), load_.Max(), bare_load_.Median());
    }
    if (!memory_.is_null()) {
      std::fprintf(out, "memory %5d tokens     %9.0f MB peak, %.0f MB after loading\n",
                   memory_["tokens"].get<int>(), memory_["peak_bytes"].get<double>() / 1e6,
                   memory_["peak_bytes_loaded"].get<double>() / 1e6);
    }
  }

 private:
  struct Prefill {
    int32_t tokens;
    Samples seconds, rate;
  };
  struct Decode {
    int32_t context, steps;
    int64_t first_kv_bytes, last_kv_bytes;
    Samples rate;
    std::vector<int32_t> token_ids;
  };
  struct Batch {
    int32_t steps = 0;
    int32_t answer_tokens = 0;  // what it takes for all to be decoding at once
    Samples rate, one, ratio;
  };
  static constexpr int32_t kMostAnswerTokens = 4096;

  absl::Status CreateEngine() {
    EngineOptions options = config_.engine;
    options.self_check =
        config_.Has("memory");  // it is part of what a process takes, and of nothing else here
    KVBLEND_ASSIGN_OR_RETURN(engine_, Engine::Create(options));
    return absl::OkStatus();
  }

  absl::StatusOr<Prompt> MakePrompt(int32_t tokens) {
    if (frame_tokens_ == 0) {
      KVBLEND_ASSIGN_OR_RETURN(const auto times, kvblend::Run(*engine_, prompts_.Frame(), 1));
      frame_tokens_ = times->report.prompt_tokens;
    }
    if (tokens < frame_tokens_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a prompt of ", tokens, " tokens; allowed: ", frame_tokens_, " or more"));
    }
    return prompts_.Make(tokens - frame_tokens_,
                         [this](std::string_view text) { return engine_->CountTokens(text); });
  }

  absl::Status MeasureMemory() {
    const int64_t loaded = PeakResidentBytes();
    KVBLEND_ASSIGN_OR_RETURN(const Prompt prompt, MakePrompt(config_.memory_tokens));
    KVBLEND_ASSIGN_OR_RETURN(const auto times, kvblend::Run(*engine_, prompt, 16));
    memory_ = {{"tokens", times->report.prompt_tokens},
               {"peak_bytes", PeakResidentBytes()},
               {"peak_bytes_loaded", loaded}};
    return absl::OkStatus();
  }

  absl::Status MeasureLoad() {
    for (int round = 0; round < config_.rounds; ++round) {
      for (const bool self_check : {false, true}) {
        engine_.reset();
        EngineOptions options = config_.engine;
        options.self_check = self_check;
        const double start = Now();
        KVBLEND_ASSIGN_OR_RETURN(engine_, Engine::Create(options));
        (self_check ? load_ : bare_load_).Add(Now() - start);
      }
    }
    return absl::OkStatus();
  }

  // What a round measures. Prompts are made once, outside of any time.
  absl::Status AddFigures() {
    if (config_.Has("prefill")) {
      prefills_.reserve(config_.prefill_tokens.size());
      for (const int32_t tokens : config_.prefill_tokens) {
        KVBLEND_ASSIGN_OR_RETURN(Prompt prompt, MakePrompt(tokens));
        prefills_.push_back({tokens, {}, {}});
        figures_.push_back([this, prompt = std::move(prompt), &figure = prefills_.back()](bool keep) {
          return MeasurePrefill(prompt, figure, keep);
        });
      }
    }
    if (config_.Has("decode")) {
      decodes_.reserve(config_.decode_contexts.size());
      for (size_t i = 0; i < config_.decode_contexts.size(); ++i) {
        KVBLEND_ASSIGN_OR_RETURN(Prompt prompt, MakePrompt(config_.decode_contexts[i]));
        decodes_.push_back({config_.decode_contexts[i], config_.decode_steps[i], 0, 0, {}, {}});
        figures_.push_back([this, prompt = std::move(prompt), &figure = decodes_.back()](bool keep) {
          return MeasureDecode(prompt, figure, keep);
        });
      }
    }
    if (config_.Has("batch")) {
      KVBLEND_ASSIGN_OR_RETURN(Prompt prompt, MakePrompt(config_.batch_context));
      batch_.steps = config_.decode_steps[0];
      batch_.answer_tokens = batch_.steps + 1;
      figures_.push_back(
          [this, prompt = std::move(prompt)](bool keep) { return MeasureBatch(prompt, keep); });
    }
    return absl::OkStatus();
  }

  absl::Status MeasurePrefill(const Prompt& prompt, Prefill& figure, bool keep) {
    KVBLEND_ASSIGN_OR_RETURN(const auto times, kvblend::Run(*engine_, prompt, 1, config_.cpu_time));
    if (times->report.prompt_tokens != figure.tokens) {
      return absl::InternalError(
          absl::StrCat("the prompt has ", times->report.prompt_tokens, " tokens; expected: ", figure.tokens));
    }
    const double seconds =
        config_.cpu_time ? times->first() - times->submitted : times->report.time_to_first_token_seconds;
    if (!keep) return absl::OkStatus();
    figure.seconds.Add(seconds);
    figure.rate.Add(figure.tokens / seconds);
    return absl::OkStatus();
  }

  absl::Status MeasureDecode(const Prompt& prompt, Decode& figure, bool keep) {
    KVBLEND_ASSIGN_OR_RETURN(const auto times,
                             kvblend::Run(*engine_, prompt, figure.steps + 1, config_.cpu_time));
    if (!keep) return absl::OkStatus();
    figure.rate.Add(figure.steps / (times->last() - times->first()));
    figure.first_kv_bytes = times->first_kv_bytes;
    figure.last_kv_bytes = times->last_kv_bytes;
    figure.token_ids = times->token_ids;
    return absl::OkStatus();
  }

  // The time counts from when all are decoding to when the first is done. Prompts take turns, and answers
  // begin while others are still prefilled: when one is done before the last begins, all are asked again for
  // longer answers.
  absl::Status MeasureBatch(const Prompt& prompt, bool keep) {
    KVBLEND_ASSIGN_OR_RETURN(const auto alone, kvblend::Run(*engine_, prompt, batch_.steps + 1));
    double tokens = 0, seconds = 0;
    for (; seconds <= 0; batch_.answer_tokens *= 2) {
      if (batch_.answer_tokens > kMostAnswerTokens) {
        return absl::InternalError(absl::StrCat("of ", config_.batch_requests, " answers of ",
                                                kMostAnswerTokens,
                                                " tokens the first was done before the last began"));
      }
      std::vector<std::shared_ptr<TokenTimes>> all;
      for (int32_t i = 0; i < config_.batch_requests; ++i) {
        KVBLEND_ASSIGN_OR_RETURN(all.emplace_back(), Submit(*engine_, prompt, batch_.answer_tokens));
      }
      double begin = 0, end = std::numeric_limits<double>::infinity();
      for (const auto& times : all) {
        KVBLEND_RETURN_IF_ERROR(Wait(*times, batch_.answer_tokens));
        begin = std::max(begin, times->first());
        end = std::min(end, times->last());
      }
      tokens = 0;
      for (const auto& times : all) {
        tokens += static_cast<double>(std::count_if(times->seconds.begin(), times->seconds.end(),
                                                    [&](double t) { return t > begin && t <= end; }));
      }
      // Few steps of all together would be a matter of chance.
      if (tokens < static_cast<double>(batch_.steps) * config_.batch_requests / 2) continue;
      seconds = end - begin;
      break;
    }
    if (!keep) return absl::OkStatus();
    const double one = batch_.steps / (alone->last() - alone->first());
    batch_.one.Add(one);
    batch_.rate.Add(tokens / seconds);
    batch_.ratio.Add(tokens / seconds / one);
    return absl::OkStatus();
  }

  const Config config_;
  const ExactPrompts prompts_;
  std::unique_ptr<Engine> engine_;
  int32_t frame_tokens_ = 0;
  Json memory_;
  Samples load_, bare_load_, line_;
  std::vector<Prefill> prefills_;
  std::vector<Decode> decodes_;
  Batch batch_;
  std::vector<std::function<absl::Status(bool keep)>> figures_;
};

Config ParseArguments(int argc, char** argv) {
  Config config;
  CLI::App app(
      "Speed of the engine. Prompts are made of DATA's passages and have exactly the tokens asked for.");
  app.footer(kNotes);
  AddEngineArguments(app, config.engine, config.data_path);
  const auto add_list = [&app](const char* name, auto& list, const char* help) {
    return app.add_option(name, list, help)->delimiter(',')->allow_extra_args(false);
  };
  add_list("--parts", config.parts, "what to measure (default: all)")->check(CLI::IsMember(config.parts));
  add_list("--prefill-tokens", config.prefill_tokens, "sizes of full prefill (512,2048,6000)")
      ->check(Count());
  add_list("--decode-contexts", config.decode_contexts, "prompt sizes to decode behind (512,6000)")
      ->check(Count());
  add_list("--decode-steps", config.decode_steps, "tokens to decode, one number per context (48,32)")
      ->check(Count());
  app.add_option("--batch-requests", config.batch_requests, "requests decoded together (8)")->check(Count());
  app.add_option("--batch-context", config.batch_context, "prompt size of each (512)")->check(Count());
  app.add_option("--memory-tokens", config.memory_tokens, "prompt size of part memory (8000)")
      ->check(Count());
  app.add_option("--rounds", config.rounds, "measured rounds (5)")->check(Count());
  app.add_option("--warm-up", config.warm_up, "rounds before them (1)")->check(Count(0));
  app.add_flag("--cpu-time", config.cpu_time,
               "of parts prefill and decode, processor time instead: for busy machines; one thread");
  app.add_option("--json", config.json_path,
                 "file for the figures; -: standard output, the table to standard error");
  app.add_option("--write-tokens", config.tokens_path,
                 "measures nothing: writes the token ids of the prompts of --prefill-tokens as JSON");
  app.final_callback([&config] {
    const bool has_others = config.Has("memory") || config.Has("load") || config.Has("batch");
    if (config.cpu_time && (config.engine.num_threads != 1 || has_others)) {
      throw CLI::ValidationError("--cpu-time", "allowed: with --threads 1 --parts prefill,decode");
    }
    if (config.decode_contexts.size() == config.decode_steps.size()) return;
    throw CLI::ValidationError("--decode-steps", "allowed: as many numbers as --decode-contexts");
  });
  ParseOrExit(app, argc, argv);
  return config;
}

absl::Status Main(const Config& config) {
  if (!config.tokens_path.empty()) {
    return WriteTokens(config.engine, config.data_path, config.prefill_tokens, config.tokens_path);
  }
  KVBLEND_ASSIGN_OR_RETURN(ExactPrompts prompts, ExactPrompts::Read(config.data_path));
  Bench bench(config, std::move(prompts));
  KVBLEND_RETURN_IF_ERROR(bench.Run());
  const bool json_on_stdout = config.json_path == "-";
  bench.Print(json_on_stdout ? stderr : stdout);
  return config.json_path.empty() ? absl::OkStatus()
                                  : WriteText(config.json_path, bench.Result().dump(1) + "\n");
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  return kvblend::ExitCode(kvblend::Main(kvblend::ParseArguments(argc, argv)));
}
