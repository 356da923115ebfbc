// Decoding with one layer and random weights: what a step of a model asks of a backend, and little else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {

/// Two of the same seed and backend compute the same, whoever else does what. Its device memory is allocated
/// at the start, and stays.
class TinyDecoder {
 public:
  static constexpr int32_t kVocab = 300;
  static constexpr int32_t kPageSize = 16;
  static constexpr int32_t kPagesPerSequence = 48;
  static constexpr int32_t kMaxContext = kPageSize * kPagesPerSequence;
  static constexpr int32_t kMaxPosition = kMaxContext - kPageSize;  // of the rope table

  struct Next {
    int32_t sequence;
    int32_t token;
    SamplingSpec spec = {};
  };

  TinyDecoder(Backend& backend, int32_t num_sequences, DataType pages = kBF16);

  /// The context of a sequence: what its pages hold in the places before, random at first.
  void SetLength(int32_t sequence, int32_t num_tokens) { lengths_[sequence] = num_tokens; }
  int32_t length(int32_t sequence) const { return lengths_[sequence]; }

  /// A step of `step`, which CreateRepeatedStep made of stream(), or operation by operation.
  absl::StatusOr<std::vector<SampledToken>> Run(RepeatedStep* step, const std::vector<Next>& next);
  /// The same without waiting for it.
  absl::Status Enqueue(RepeatedStep* step, const std::vector<Next>& next, absl::Span<SampledToken> out);

  Stream& stream() { return *stream_; }
  std::unique_ptr<RepeatedStep> MakeStep() { return backend_.CreateRepeatedStep(*stream_); }
  /// All KV, bit by bit.
  std::vector<std::byte> Kv();
  /// `operation` runs among the operations of every step from now on.
  void set_extra_operation(std::function<absl::Status()> operation) { extra_ = std::move(operation); }

 private:
  static constexpr int32_t kDim = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16;
  static constexpr int64_t kMostRows = 16;

  absl::Status Operations(const StepValues& values);

  Backend& backend_;
  const std::unique_ptr<Stream> stream_;
  Rng rng_{7};
  std::vector<int32_t> lengths_;
  Tensor k_, v_, norm_, hidden_, normed_, qkv_, attention_, logits_;
  std::unique_ptr<PackedWeights> embedding_, projection_, output_;
  std::unique_ptr<RopeTable> rope_;
  std::vector<std::vector<int32_t>> pages_of_;
  std::function<absl::Status()> extra_;
};

/// Bit by bit, field by field.
void ExpectSameTokens(const std::vector<SampledToken>& actual, const std::vector<SampledToken>& expected);

/// Specs of all kinds for row after row. `changes` must outlive the spec.
SamplingSpec RandomSpec(Rng& rng, const std::vector<LogitChange>& changes);

}  // namespace kvblend::kernels
