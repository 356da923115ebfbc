// Fitting the learned correction of a model's stored KV (docs/algorithm.md, "Learned corrections"). Plain data but for
// Calibrate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/options.h"
#include "engine/api/request.h"

namespace kvblend {

/// Documents to make prompts of.
struct CalibrationCorpus {
  std::vector<std::string> documents;  // UTF-8
  int32_t chunk_tokens = 512;          // as prompt::SplitOptions
  int32_t chunks_per_prompt = 5;       // [2, 1000]
  int32_t max_prompts = 0;             // 0: as many as there are
};

inline constexpr int32_t kAttentionPasses = 3, kPromptsForAttention = 64;

struct CalibrationOptions {
  /// Prompts of at least two chunks each. Pairs count by the attention of the question, and prompts kept back are answered.
  std::vector<Prompt> prompts;
  CalibrationCorpus corpus;  // instead of prompts, where these are none
  Anchoring anchoring = Anchoring::kAnchored;
  int32_t rank = 16;   // of the map, [0, 1024]
  double ridge = 0.1;  // of the variances, (0, 100]
  /// How often each fitted prompt improves the fit by what the attention of its question and answer reads, [0, 1000]; -1:
  /// kAttentionPasses where at least kPromptsForAttention prompts are fitted, for few are learned too well, else 0.
  int32_t attention_passes = -1;
  double held_out = 0.25;  // share of the prompts, the last ones, that the fit is judged on; (0, 1)
  std::string origin;      // what the prompts are, for people; at most 256 bytes
  std::string path;        // file to write; empty: where the engine looks for the model's
  /// File that keeps what was learned of the prompts so far, every few prompts and when the run ends early: one with the
  /// same prompts goes on from there, whatever its rank and ridge. A second one, with ".attention" behind its name, keeps
  /// what attention_passes have made of it, for the same rank, ridge and number of passes. Both stay. Empty: none.
  std::string resume;
};

struct CalibrationReport {
  int32_t fitted_prompts = 0;
  int32_t held_out_prompts = 0;
  int64_t fitted_tokens = 0;
  // Nats per token from full prefill over its 16 greedy tokens, nothing recomputed, on the prompts kept back.
  double kl_before = 0;
  double kl_after = 0;
  // How much of what was fitted is applied to K, of some shares the one that leaves the least of that divergence.
  double key_strength = 1;
  /// Whether that is of what attention passes made of the fit, or of the fit itself.
  bool by_attention = false;
  std::vector<int64_t> ranks;    // per layer behind the first: the directions of its map
  std::vector<double> residual;  // per layer: share of the squared deviation of K and V that stays, likewise
  std::string path;
  std::string version;  // of the file; empty: none was written
};

/// `done` of `total` steps; an error that it returns ends the run.
using CalibrationProgress =
    absl::FunctionRef<absl::Status(int64_t done, int64_t total, std::string_view what)>;

/// Fits on the first prompts, judges on the others, and writes the file only if it lowers the divergence there.
/// kInvalidArgument: bad options, prompts without a second chunk, fewer than two prompts, bad documents, a file to resume
/// from that is damaged or of another model or other prompts, a file to write whose place something else has. Otherwise what
/// loading the model, running it or writing a file gives; files that cannot be written are found before the model is loaded.
absl::StatusOr<CalibrationReport> Calibrate(const EngineOptions& engine, const CalibrationOptions& options,
                                            CalibrationProgress progress);

}  // namespace kvblend
