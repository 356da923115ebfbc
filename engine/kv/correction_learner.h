// Learns a correction (engine/kv/learned_correction.h) from pairs that come one chunk after the other, as a
// server has them: a chunk that was missing is computed in its prompt, and for the store. Of every few chunks
// one is kept back from the fits, and judges them: layer by layer the correction in force, the newly fitted
// one or none stays, whichever leaves the least on the chunks kept back, and all of it counts only if that is
// less than before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/kv/correction_fit.h"
#include "engine/kv/learned_correction.h"
#include "engine/kv/pair_moments.h"

namespace kvblend::kv {

/// Stored and computed KV of some tokens of one chunk, in pairs. What a pair counts is a product of three:
/// the attention that its token gets (WeightsOfMass); how many of the chunk's tokens it stands for, over the
/// mean of that; and the share of what stood before the chunk that had the KV of full prefill.
struct ChunkPairs {
  absl::Span<const int32_t> tokens = {};  // [rows]: which of the chunk
  absl::Span<const float> weights = {};   // [layers, rows]; >= 0
  bool kept_back = false;  // judges fits, instead of being fitted; the same for a chunk that comes again
  // [layers, rows, channels], K and V side by side:
  absl::Span<const float> stored = {};  // what the store has
  absl::Span<const float> fresh = {};   // what was computed in the prompt
};

struct LearnerOptions {
  Digest model_fingerprint{};
  Anchoring anchoring = Anchoring::kAnchored;  // of the chunks that it sees
  uint32_t encoding = 0;  // kernels::KvEncoding of what is stored: its rounding is learned too
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  FitOptions fit = {};
  /// The memory that the moments may take. A model whose moments take more learns a scale and an offset per
  /// channel, without a map.
  int64_t max_bytes = int64_t{256} << 20;
  /// Older pairs fade once so many are there; of those kept back a third as many.
  double max_tokens = 1 << 17;

  int64_t channels() const { return int64_t{2} * num_kv_heads * head_dim; }
};

/// What there is to keep of a learner.
struct LearnerState {
  uint64_t replica = 0;  // what names it among those that share what they have seen; 0: none does
  int64_t fitted_chunks = 0;
  int64_t kept_back_chunks = 0;
  int64_t tokens = 0;  // of all these chunks that were looked at
  // As of the last fit: chunks of this server that were fitted, and chunks of all servers.
  int64_t own_at_fit = 0;
  int64_t all_at_fit = 0;
  std::string base = {};                 // version of the correction that learning began with; empty: none
  std::vector<PairMoments> fitted = {};  // per layer; both empty as long as nothing was added
  std::vector<PairMoments> kept_back = {};
};

/// What other learners with the same options have seen.
class OtherPairs {
 public:
  struct Seen {
    int64_t fitted_chunks = 0;
    int64_t kept_back_chunks = 0;
    int64_t tokens = 0;
    double weight = 0;       // of what is to be fitted, in the first layer
    bool has_fit = true;     // whether this learner has made a fit since it was started
    int64_t new_chunks = 0;  // of fitted_chunks: those that this fit did not have; without one, all
    int32_t learners = 0;    // of those that go on learning
  };
  virtual ~OtherPairs() = default;

  virtual Seen seen() const = 0;
  /// Adds what they have of a layer. False: not all of it could be had, or keep_going, which is asked between
  /// two of them, said no, so that a fit of these pairs makes no sense.
  virtual bool AddTo(int32_t layer, PairMoments& fitted, PairMoments& kept_back,
                     absl::FunctionRef<bool()> keep_going) = 0;
};

/// Not thread-safe.
class CorrectionLearner {
 public:
  explicit CorrectionLearner(const LearnerOptions& options);

  /// What a fit has to beat. REQUIRES: of the options' sizes.
  void SetInForce(std::optional<LearnedCorrection> correction);
  const std::optional<LearnedCorrection>& in_force() const { return in_force_; }

  void Add(const ChunkPairs& pairs);
  /// Enough came since the last fit, here and elsewhere. Where several learn, each waits for as many times
  /// more, so that fits come no more often than where one learns alone.
  bool due(const OtherPairs::Seen& others = {}) const;
  bool CanJudge() const { return state_.kept_back_chunks >= kMinKeptBackChunks; }
  /// Whether it sees enough for a map, not only for scales and offsets.
  bool full() const { return kind_ == PairMoments::Kind::kFull; }
  /// Whether what a correction leaves can be told from these moments.
  bool CanJudge(const LearnedCorrection& correction) const { return full() || correction.rank == 0; }

  /// Shares of the squared deviation that are left on the chunks kept back; 1: all of it.
  struct Verdict {
    LearnedCorrection correction;     // the best of all, layer by layer
    std::vector<double> before = {};  // of the one in force, per layer
    std::vector<double> after = {};   // of `correction`
    bool better = false;
    std::vector<double> deviations = {};  // as Deviations(), of all that was kept back
    int64_t fitted_chunks = 0;            // with those of others
    int64_t kept_back_chunks = 0;
  };
  /// Fits what this learner and `others` (null: none) have seen, as one learner would that had seen it all.
  /// It goes layer by layer, so that only two more layers' moments are in memory. Takes seconds or more.
  /// keep_going is asked between the steps of every layer; nullopt if it returns false, or if moments of the
  /// others cannot be read.
  std::optional<Verdict> Fit(absl::FunctionRef<bool()> keep_going, OtherPairs* others = nullptr) const;
  /// The fit counts: the next one is due when enough came since. Before anything is added.
  void NoteFit(const Verdict& verdict);
  /// What the correction in force leaves of each layer: of all that keep_going, asked between them, lets it
  /// judge, and the others' whole.
  std::vector<double> Judge(absl::FunctionRef<bool()> keep_going = [] { return true; }) const;
  /// How far stored KV is from fresh, per layer: PairMoments::Deviation of the chunks kept back.
  std::vector<double> Deviations() const;

  const LearnerState& state() const { return state_; }
  /// Goes on from there. REQUIRES: of this learner's sizes (engine/kv/learner_file.h sees to that).
  void Restore(LearnerState state);
  /// Forgets all pairs. `base`: see LearnerState.
  void Reset(std::string base);
  void SetBase(std::string base) { state_.base = std::move(base); }
  void SetReplica(uint64_t replica) { state_.replica = replica; }

  const LearnerOptions& options() const { return options_; }
  PairMoments::Kind kind() const { return kind_; }

  static constexpr int64_t kFirstFit =
      8;  // chunks fitted; then at twice as many, and from kFitEvery on so often
  static constexpr int64_t kFitEvery = 64;
  static constexpr int64_t kMinKeptBackChunks = 2;
  /// A map is fitted from so many pairs for each channel: from fewer it brings more noise into KV than it
  /// takes deviation away, which answers suffer from even where the mean square falls.
  static constexpr int64_t kMinPairsPerChannel = 8;

 private:
  struct LayerPairSums {
    PairMoments fitted, kept_back;
  };
  LayerPairSums SumsOf(int32_t layer) const;

  const LearnerOptions options_;
  const PairMoments::Kind kind_;
  LearnerState state_;
  std::optional<LearnedCorrection> in_force_;
};

/// The kind of moments that the options have room for.
PairMoments::Kind KindOfMoments(const LearnerOptions& options);

}  // namespace kvblend::kv
