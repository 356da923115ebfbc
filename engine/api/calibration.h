// Fitting the learned correction of a model's stored KV (docs/algorithm.md, "Learned corrections"): the
// options and the report, which are plain data, and the function Calibrate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/options.h"
#include "engine/api/request.h"

namespace kvblend {

/// Documents that prompts are made of, for who has no questions.
struct CalibrationCorpus {
  std::vector<std::string> documents;  // UTF-8
  int32_t chunk_tokens = 512;          // as prompt::SplitOptions
  int32_t chunks_per_prompt = 5;       // [2, 1000]
  int32_t max_prompts = 0;             // 0: as many as there are
};

inline constexpr int32_t kAttentionPasses = 3, kPromptsForAttention = 64;

struct CalibrationOptions {
  /// Prompts of at least two chunks each. A pair of stored and fresh KV counts by the attention that the
  /// question pays to it, and the prompts held out are answered, to measure the divergence of the answers.
  std::vector<Prompt> prompts;
  std::vector<std::string> names;  // of the prompts, for errors; missing ones are known by their numbers
  CalibrationCorpus corpus;        // used where `prompts` is empty
  Anchoring anchoring = Anchoring::kAnchored;
  int32_t rank = 16;   // of the fitted linear map, [0, 1024]
  double ridge = 0.1;  // regularisation, as a share of the variances, (0, 100]
  /// How often each fitted prompt then improves the fit by what the attention of its question and answer
  /// reads, [0, 1000].
  /// -1: kAttentionPasses if at least kPromptsForAttention prompts are fitted, else 0, because few prompts
  /// would be overfitted.
  int32_t attention_passes = -1;
  double held_out = 0.25;  // share of the prompts, the last ones, that the fit is judged on; (0, 1)
  std::string origin;      // says for people where the prompts come from; at most 256 bytes
  std::string path;        // file to write; empty: where an engine with correction "auto" looks for it
  bool force = false;      // replaces a correction of this model that leaves less divergence as well
  /// File that keeps what was learned from the prompts so far. It is written every few prompts and when the
  /// run ends early; a later run with the same prompts goes on from there, whatever its rank and ridge. A
  /// second file, with ".attention" appended to the name, keeps the state of the attention passes, for the
  /// same rank, ridge and number of passes. Neither is removed. Saves that fail in between are named in the
  /// log. Empty: no files.
  std::string resume;
};

struct CalibrationReport {
  int32_t fitted_prompts = 0;
  int32_t held_out_prompts = 0;
  int32_t left_out_prompts = 0;  // longer than the context allows
  int64_t fitted_tokens = 0;
  // KL divergence from full prefill in nats per token, with nothing recomputed, over the 16 tokens that full
  // prefill generates greedily for each prompt held out.
  double kl_before = 0;
  double kl_after = 0;
  std::optional<double> kl_there;  // with the correction of this model that was in the place of the file
  /// How much of the fitted correction is applied to K: of a few strengths, the one that leaves the least
  /// divergence.
  double key_strength = 1;
  /// Whether what is written comes from the attention passes, or from the fit before them.
  bool by_attention = false;
  std::vector<int64_t> ranks;  // per layer from the second on: the rank of its map
  std::vector<double>
      residual;  // per layer from the second on: share of the squared deviation of K and V that is left
  std::string path;
  std::string version;  // of the file; empty: no file was written
  /// Not OK: what a later run would go on from could not be saved in the end.
  absl::Status saved;
};

/// Called with `done` of `total` steps and what is being done; an error that it returns ends the run.
using CalibrationProgress =
    absl::FunctionRef<absl::Status(int64_t done, int64_t total, std::string_view what)>;

/// Fits on the first prompts, judges on the others, and writes the file only if it lowers the divergence
/// there, and no correction of the same model that stands in its place leaves less. kInvalidArgument: bad
/// options, prompts without a second chunk or with an empty one, fewer than two prompts (that are not too
/// long), too few tokens behind other chunks for this model, bad documents, a file to resume from that is
/// damaged or of another model or other prompts, a path to write to that is taken by something else.
/// kResourceExhausted: the disk has no room for what is saved. Other errors are those of loading the model,
/// running it or writing a file; files that cannot be written are found before the model is loaded.
absl::StatusOr<CalibrationReport> Calibrate(const EngineOptions& engine, const CalibrationOptions& options,
                                            CalibrationProgress progress);

}  // namespace kvblend
