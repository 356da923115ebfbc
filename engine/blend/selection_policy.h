// Selection policies: which reused tokens are recomputed. One interface for both kinds:
//
//   guided     choose before the blended pass: `query` (from the attention of the question), `link`, `random`,
//              `none`, `all`
//   deviation  choose during it: `hkvd` runs the layers up to a check layer on all tokens and then chooses
//              by how far their fresh KV is from the stored KV (CacheBlend, EuroSys 2025, section 4.3)
//
// A policy says what it needs measured and then chooses among the candidates. It keeps no request state.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "engine/prompt/prompt_layout.h"

namespace kvblend::blend {

/// A run of candidate tokens that belong to one placed chunk.
struct CandidateSpan {
  int32_t chunk_index = 0;
  int32_t begin = 0;  // prompt positions [begin, end)
  int32_t end = 0;
};

/// The reused tokens that are not exact, in prompt order.
struct Candidates {
  std::vector<CandidateSpan> spans;
  int32_t num_tokens = 0;

  /// All candidate positions, ascending [num_tokens].
  std::vector<int32_t> Positions() const;
};

/// What has to be measured before a policy can choose.
struct Requirement {
  enum class Kind : uint8_t { kNothing, kQuestionAttention, kKvDeviation };
  Kind kind = Kind::kNothing;
  int32_t layers = 0;  // kQuestionAttention: how many the pass has.  kKvDeviation: the check layer
  DeviationSource source = DeviationSource::kValue;  // kKvDeviation
};

/// Returns the candidates with the `count` highest scores, ascending, as indices into
/// Candidates::Positions(). Of equal scores the earlier candidate wins. The scores themselves stay in the
/// backend's memory.
using HighestScores = absl::FunctionRef<absl::StatusOr<std::vector<int32_t>>(int32_t count)>;
/// The HighestScores of policies that need nothing measured: returns an error.
absl::StatusOr<std::vector<int32_t>> NothingMeasured(int32_t count);

/// Immutable; any thread may use it.
class SelectionPolicy {
 public:
  virtual ~SelectionPolicy() = default;
  virtual Policy policy() const = 0;
  virtual Requirement requirement() const = 0;

  /// How many of the candidates Select will choose, known before anything is measured.
  virtual int32_t Budget(const Candidates& candidates) const = 0;

  /// The positions to recompute, ascending, no duplicates, exactly Budget() of them. Errors: `highest`'s.
  virtual absl::StatusOr<std::vector<int32_t>> Select(const Candidates& candidates,
                                                      HighestScores highest) const = 0;
};

/// kInvalidArgument naming the field when an option is out of range for a model with `num_layers` layers. The
/// ratio is options.ratio in every mode: the caller puts the loading controller's choice there.
absl::StatusOr<std::unique_ptr<SelectionPolicy>> CreateSelectionPolicy(const BlendOptions& options,
                                                                       int32_t num_layers);

/// Whether the policy uses the ratio.
bool HasRatio(Policy policy);

/// How the prompt's chunks are computed for the store: behind an anchor without tokens they stand by
/// themselves, whatever was asked for.
Anchoring AnchoringOf(const BlendOptions& options, const prompt::PromptLayout& layout);

/// Whether deviations of recomputed tokens are passed on to the others of their chunk (docs/algorithm.md,
/// "Deviations are passed on"). Not those of the tokens with which a chunk begins, which are all that `link`
/// recomputes, nor of chunks that are isolated (AnchoringOf): their first tokens were computed as the
/// beginning of a text, and say little about the rest.
bool SpreadsDeviation(const BlendOptions& options, const prompt::PromptLayout& layout);

/// Checks every field that CreateSelectionPolicy would, without creating anything.
absl::Status ValidateBlendOptions(const BlendOptions& options, int32_t num_layers);

}  // namespace kvblend::blend
