// One task of attention of many rows: tiles of query rows against blocks of keys with an online softmax.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/queries.h"
#include "kernels/cpu/kv/panels.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Some query rows of one unit against its keys or, where these are split, against one part of them. The
/// tasks of the same rows, one per part, follow each other.
struct AttentionTask {
  const KvUnit* unit;
  int64_t row_begin, row_end;
  int64_t key_begin, key_end;
  float* partial = nullptr;  // where the part's result goes; null: there is only this one
  // Where every probability is kept, and the maximum that those of a row and block are relative to; null when
  // nobody sums them up. Needs `partial`.
  uint32_t* kept = nullptr;
  float* kept_max = nullptr;
  float* mass = nullptr;  // [RoundUp(key_end - key_begin, kKeyStep)] what SumMass finds

  bool SameRows(const AttentionTask& other) const {
    return unit == other.unit && row_begin == other.row_begin;
  }
  int64_t num_keys() const { return key_end - key_begin; }
  int64_t num_blocks() const { return (num_keys() + kKeyBlock - 1) / kKeyBlock; }
};

/// Runs, merges or sums one task; used by one thread, does not outlive its arguments.
class AttentionTaskRunner {
 public:
  AttentionTaskRunner(const Tiles& tiles, const AttentionArgs& args, const AttentionTask& task,
                      MatrixView out)
      : tiles_(tiles),
        args_(args),
        task_(task),
        out_(out),
        queries_(tiles, args, task.row_begin, task.row_end),
        columns_(RoundUp(args.pages.head_dim, kKeyStep)) {}

  /// Floats that `partial` needs: outputs, maxima, sums of the padded rows.
  int64_t PartialFloats() const { return queries_.padded_products() * (columns_ + 2); }
  /// Words that `kept` needs, and floats of `kept_max` and `mass`.
  int64_t KeptWords() const {
    return queries_.padded_products() * task_.num_blocks() * tiles_.ProbabilityWords(kKeyBlock);
  }
  int64_t KeptMaxFloats() const { return queries_.padded_products() * task_.num_blocks(); }
  int64_t MassFloats() const { return RoundUp(task_.num_keys(), kKeyStep); }

  void Run();

  /// Merges the results of all parts of the same rows, in memory one after the other, and writes them out.
  /// `task` is the first of them.
  void Merge(int64_t num_parts) const;

  /// task.mass[j] = the sum over the task's rows and heads of the probability of key key_begin + j, over the
  /// number of heads. From what was kept: REQUIRES that all `parts` have run, of which the task is one.
  void SumMass(absl::Span<const AttentionTask> parts) const;

 private:
  /// Calls body(tile, block's first key, number of its keys) for what some row of the tile sees.
  template <typename Body>
  void ForEachBlock(const Body& body) const;
  void AddBlock(int64_t tile, int64_t key, int64_t num_keys);
  /// sum: relative to max, of the keys' terms alone
  void Write(int64_t product, const float* values, float max, float sum) const;

  const float* PartMax(const AttentionTask& part) const {
    return part.partial + queries_.padded_products() * columns_;
  }
  const float* PartSum(const AttentionTask& part) const { return PartMax(part) + queries_.padded_products(); }
  int64_t Block(int64_t key) const { return (key - task_.key_begin) / kKeyBlock; }
  /// Where the first row of a tile is kept; the tile's others follow, kKeyBlock elements apart.
  uint32_t* Kept(int64_t tile, int64_t block) const {
    return task_.kept +
           (tile * task_.num_blocks() + block) * tiles_.rows * tiles_.ProbabilityWords(kKeyBlock);
  }
  float* KeptMax(int64_t tile, int64_t block) const {
    return task_.kept_max + (tile * task_.num_blocks() + block) * tiles_.rows;
  }

  const Tiles& tiles_;
  const AttentionArgs& args_;
  const AttentionTask& task_;
  const MatrixView out_;
  const TileQueries queries_;
  const int64_t columns_;              // of an output row: head_dim, padded
  uint32_t* words_ = nullptr;          // queries [padded rows, steps]
  float* scores_ = nullptr;            // [rows of a tile, kKeyBlock]
  uint32_t* probabilities_ = nullptr;  // [rows of a tile, words of kKeyBlock]
  float* output_ = nullptr;            // [padded rows, columns], not yet divided by sum
  float* max_ = nullptr;               // [padded rows]
  float* sum_ = nullptr;               // [padded rows]
};

}  // namespace kvblend::kernels
