// Time to first token with KV on disk against what loading and computing allow, and what the depth of the
// pipeline changes. One process, everything in turn within every round, so that a drifting machine hits all
// alike; medians. The prompt's chunks lie on disk and nowhere else before every measurement from disk.
//
// T_full     full prefill
// T_load     all layers read through the pipeline and placed, nothing computed
// in memory  select and prefill of the policy, its loading left out: T_compute
// share      of full prefill's arithmetic that the chosen tokens are. It is not the ratio: tokens that stand
//            late see more keys
// bound      hkvd: max(T_load, T_compute).  query: T_load + ratio x T_full
// by share   the same with the share in the ratio's place
// machine    what this machine gives in memory: max(T_load, query pass) + recomputation
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/blend/kv_loader.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/disk/disk_tier.h"
#include "spdlog/spdlog.h"
#include "tests/bench/arguments.h"
#include "tests/bench/bench_prompt.h"
#include "tests/bench/samples.h"

namespace kvblend {
namespace {

absl::Status KeepRunning() { return absl::OkStatus(); }

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

struct Variant {
  std::string name;
  BlendOptions blend;
};

/// What one way to answer the prompt took.
struct Times {
  Samples total, select, prefill, stall;
  std::vector<int32_t> recomputed;  // the same every time

  void Add(double seconds, const PrefilledPrompt& prompt) {
    total.Add(seconds);
    select.Add(prompt.report.select_seconds);
    prefill.Add(prompt.report.prefill_seconds);
    stall.Add(prompt.report.stall_seconds);
    recomputed = prompt.recomputed;
  }
};

class Bench {
 public:
  Bench(std::unique_ptr<ModelRuntime> runtime, prompt::PromptLayout layout, std::string folder)
      : runtime_(std::move(runtime)), layout_(std::move(layout)), folder_(std::move(folder)) {}

  absl::Status Prepare() {
    KVBLEND_ASSIGN_OR_RETURN(memory_, store::ChunkStore::Create({.byte_budget = int64_t{16} << 30}));
    KVBLEND_RETURN_IF_ERROR(StoreAll(*memory_));
    KVBLEND_ASSIGN_OR_RETURN(const auto disk, OpenDisk());
    KVBLEND_RETURN_IF_ERROR(StoreAll(*disk));
    return disk->FlushWrites(absl::InfiniteFuture());
  }

  absl::Status Prefill(bool from_disk, const BlendOptions& blend, int32_t depth, Times& times) {
    std::unique_ptr<store::ChunkStore> disk;
    if (from_disk) {
      KVBLEND_ASSIGN_OR_RETURN(disk, OpenDisk());
    }
    PromptRunner runner(*runtime_, from_disk ? *disk : *memory_, {.load_pipeline_depth = depth});
    const absl::Time start = absl::Now();
    KVBLEND_ASSIGN_OR_RETURN(const PrefilledPrompt prompt,
                             runner.Prefill(layout_, blend, /*tenant_namespace=*/"", KeepRunning));
    times.Add(SecondsSince(start), prompt);
    for (const ChunkReport& chunk : prompt.report.chunks) {
      if (from_disk && chunk.tier != Tier::kDisk) return absl::InternalError("a chunk was not on disk");
    }
    return absl::OkStatus();
  }

  /// Reads and places everything through the pipeline, and computes nothing.
  absl::Status Load(int32_t depth, Samples& seconds) {
    KVBLEND_ASSIGN_OR_RETURN(const auto disk, OpenDisk());
    kv::SequencePages pages(*runtime_->page_pool);
    KVBLEND_RETURN_IF_ERROR(pages.Grow(static_cast<int32_t>(layout_.token_ids.size())));
    const blend::PagedSequence sequence(*runtime_->backend, *runtime_->page_pool, pages);
    const blend::ReusePlan plan = blend::PlanReuse(layout_, {}, runtime_->key_space, "", *disk);
    const auto correction_in_force = runtime_->correction.Get();
    blend::PrefillScratch scratch;
    const blend::PassContext context{.transformer = *runtime_->transformer,
                                     .stream = *runtime_->stream,
                                     .scratch = scratch,
                                     .layout = layout_,
                                     .plan = plan,
                                     .sequence = sequence,
                                     .correction = correction_in_force.get(),
                                     .pipeline_depth = depth};
    const std::vector<int32_t> question = Question();
    const absl::Time start = absl::Now();
    KVBLEND_ASSIGN_OR_RETURN(blend::KvLoader loader, blend::KvLoader::Create(context, /*accounts=*/{}));
    for (int32_t layer = 0; layer < runtime_->config.num_layers; ++layer) {
      KVBLEND_RETURN_IF_ERROR(loader.Load(layer, blend::KvLoader::Which::kAll, {question, {}}, KeepRunning));
    }
    seconds.Add(SecondsSince(start));
    return absl::OkStatus();
  }

  /// The share of full prefill's arithmetic: products with weights, and attention over the keys that a token
  /// sees.
  double ShareOfFull(absl::Span<const int32_t> positions) const {
    const model::ModelConfig& config = runtime_->config;
    const double qkv_dim = 1.0 * config.head_dim * (config.num_heads + 2 * config.num_kv_heads);
    const double per_row = 2.0 * config.hidden_dim * (qkv_dim + config.num_heads * config.head_dim) +
                           6.0 * config.hidden_dim * config.used_ffn_dim();
    const double per_key = 4.0 * config.num_heads * config.head_dim;
    double chosen = 0;
    for (const int32_t position : positions) chosen += per_row + per_key * (position + 1);
    const double tokens = prompt_tokens();
    return chosen / (tokens * per_row + per_key * tokens * (tokens + 1) / 2);
  }

  /// The last span's positions: computed by every pass, whatever is reused.
  std::vector<int32_t> Question() const {
    const prompt::Span& span = layout_.spans.back();
    std::vector<int32_t> positions(span.end - span.begin);
    std::iota(positions.begin(), positions.end(), span.begin);
    return positions;
  }

  int32_t prompt_tokens() const { return static_cast<int32_t>(layout_.token_ids.size()); }

 private:
  absl::StatusOr<std::unique_ptr<store::ChunkStore>> OpenDisk() {
    store::DiskTier::Options folder;  // named, for GCC 12 takes a temporary for uninitialised memory
    folder.path = folder_;
    folder.quota_bytes = int64_t{32} << 30;
    KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<store::DiskTier> tier, store::DiskTier::Open(std::move(folder)));
    std::vector<std::unique_ptr<store::LowerTier>> tiers;
    tiers.push_back(std::move(tier));
    return store::ChunkStore::Create({.byte_budget = int64_t{16} << 30}, std::move(tiers));
  }

  absl::Status StoreAll(store::ChunkStore& chunk_store) {
    PromptRunner runner(*runtime_, chunk_store);
    for (const prompt::Span& span : layout_.spans) {
      if (span.kind != prompt::SpanKind::kChunk) continue;
      const auto tokens = absl::MakeConstSpan(layout_.token_ids).subspan(span.begin, span.end - span.begin);
      KVBLEND_RETURN_IF_ERROR(runner.EnsureStored("", layout_.anchor_ids, tokens, {}, KeepRunning).status());
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<ModelRuntime> runtime_;
  const prompt::PromptLayout layout_;
  const std::string folder_;
  std::unique_ptr<store::ChunkStore> memory_;
};

struct Flags {
  BenchPrompt prompt;
  std::string folder;
  int rounds = 5;
  std::vector<int32_t> depths = {2, 1, 4, 0};
  EngineOptions engine;
};

absl::Status Run(const Flags& flags) {
  KVBLEND_ASSIGN_OR_RETURN(const Prompt prompt, flags.prompt.Read());
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(flags.engine));
  KVBLEND_ASSIGN_OR_RETURN(
      prompt::PromptLayout layout,
      prompt::BuildPromptLayout(prompt, *runtime->tokenizer, *runtime->chat_template,
                                {.max_prompt_tokens = runtime->max_context_tokens - 1, .max_chunks = 1024}));
  std::printf("%s\n", runtime->backend->Describe().c_str());
  const int64_t bytes_per_token = runtime->key_space.format.BytesPerToken();
  Bench bench(std::move(runtime), std::move(layout), flags.folder);
  KVBLEND_RETURN_IF_ERROR(bench.Prepare());

  const Variant variants[] = {{"query 0.05", {.policy = Policy::kQuery, .ratio = 0.05}},
                              {"hkvd 0.15", {.policy = Policy::kHkvd, .ratio = 0.15}},
                              {"query 0.15", {.policy = Policy::kQuery, .ratio = 0.15}}};
  BlendOptions full;
  full.reuse = Reuse::kNothing;
  Times full_times;
  std::map<int32_t, Samples> load_seconds;
  std::map<std::string, Times> in_memory;
  std::map<std::pair<std::string, int32_t>, Times> from_disk;
  for (int round = 0; round <= flags.rounds; ++round) {
    if (round == 1) {  // the first one warmed caches
      full_times = {};
      load_seconds.clear();
      in_memory.clear();
      from_disk.clear();
    }
    KVBLEND_RETURN_IF_ERROR(bench.Prefill(/*from_disk=*/false, full, 0, full_times));
    for (const int32_t depth : flags.depths) KVBLEND_RETURN_IF_ERROR(bench.Load(depth, load_seconds[depth]));
    for (const Variant& variant : variants) {
      KVBLEND_RETURN_IF_ERROR(bench.Prefill(/*from_disk=*/false, variant.blend, 0, in_memory[variant.name]));
      for (const int32_t depth : flags.depths) {
        KVBLEND_RETURN_IF_ERROR(
            bench.Prefill(/*from_disk=*/true, variant.blend, depth, from_disk[{variant.name, depth}]));
      }
    }
  }

  const double t_full = full_times.total.Median();
  std::printf("prompt %d tokens, %lld bytes stored per token, %d rounds, medians\nT_full %.3f s\n",
              bench.prompt_tokens(), static_cast<long long>(bytes_per_token), flags.rounds, t_full);
  std::printf("question %zu tokens, share %.3f\n", bench.Question().size(),
              bench.ShareOfFull(bench.Question()));
  std::printf("%-11s %5s %7s %7s %10s %9s %8s %8s %8s %6s %8s %6s %8s %6s\n", "", "depth", "share", "T_load",
              "T_compute", "of it sel", "disk", "stall", "bound", "x", "by share", "x", "machine", "x");
  for (const Variant& variant : variants) {
    const Times& memory = in_memory[variant.name];
    const double select = memory.select.Median(), prefill = memory.prefill.Median();
    const double share = bench.ShareOfFull(memory.recomputed);
    for (const int32_t depth : flags.depths) {
      const Times& disk = from_disk[{variant.name, depth}];
      const double load = load_seconds[depth].Median(), total = disk.total.Median();
      const bool is_query = variant.blend.policy == Policy::kQuery;
      const double machine = is_query ? std::max(load, select) + prefill : std::max(load, select + prefill);
      const double bound = is_query ? load + *variant.blend.ratio * t_full : machine;
      const double by_share = is_query ? load + share * t_full : machine;
      std::printf("%-11s %5s %7.3f %7.3f %10.3f %9.3f %8.3f %8.3f %8.3f %6.2f %8.3f %6.2f %8.3f %6.2f\n",
                  variant.name.c_str(), depth == 0 ? "all" : std::to_string(depth).c_str(), share, load,
                  select + prefill, select, total, disk.stall.Median(), bound, total / bound, by_share,
                  total / by_share, machine, total / machine);
    }
  }
  return absl::OkStatus();
}

Flags ParseArguments(int argc, char** argv) {
  Flags flags;
  CLI::App app("Time to first token from disk against what loading and computing allow.");
  flags.prompt.AddArguments(app, flags.engine);
  app.add_option("--disk", flags.folder, "folder for the chunks")->required();
  app.add_option("--rounds", flags.rounds, "measured rounds (5)")->check(Count());
  app.add_option("--depths", flags.depths, "depths of the pipeline; 0: all layers (2,1,4,0)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(Count(0));
  ParseOrExit(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);
  return flags;
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  return kvblend::ExitCode(kvblend::Run(kvblend::ParseArguments(argc, argv)));
}
