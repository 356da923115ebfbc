// The CUDA backend with parts of its work left out, to time the others by themselves.
#pragma once

#include <memory>
#include <utility>

#include "tests/support/backend_decorator.h"

namespace kvblend::gpu_bench {

class StagedBackend final : public test_support::BackendDecorator {
 public:
  enum class Part : uint8_t { kAll, kLoading, kComputing };

  explicit StagedBackend(std::unique_ptr<kernels::Backend> inner) : BackendDecorator(std::move(inner)) {}

  /// What is done from now on; the rest returns at once, leaving its outputs as they are.
  void Do(Part part) { part_ = part; }
  std::unique_ptr<kernels::RepeatedStep> CreateRepeatedStep(Stream& stream) override {
    return inner().CreateRepeatedStep(stream);
  }

 protected:
  absl::Status DoEmbed(Stream& stream, const kernels::PackedWeights& table, absl::Span<const int32_t> ids,
                       float scale, Out out) override {
    return Computes() ? BackendDecorator::DoEmbed(stream, table, ids, scale, out) : absl::OkStatus();
  }
  absl::Status DoRmsNorm(Stream& stream, View x, View weight, float epsilon, Out out) override {
    return Computes() ? BackendDecorator::DoRmsNorm(stream, x, weight, epsilon, out) : absl::OkStatus();
  }
  absl::Status DoLinear(Stream& stream, View x, const kernels::PackedWeights& weights, bool accumulate,
                        Out out) override {
    return Computes() ? BackendDecorator::DoLinear(stream, x, weights, accumulate, out) : absl::OkStatus();
  }
  absl::Status DoChooseExperts(Stream& stream, View logits, const kernels::RoutingSpec& spec,
                               kernels::IndicesView experts, Out weights) override {
    return Computes() ? BackendDecorator::DoChooseExperts(stream, logits, spec, experts, weights)
                      : absl::OkStatus();
  }
  absl::Status DoExpertLinear(Stream& stream, View x, const kernels::PackedExperts& weights,
                              kernels::IndicesView experts, Out out) override {
    return Computes() ? BackendDecorator::DoExpertLinear(stream, x, weights, experts, out) : absl::OkStatus();
  }
  absl::Status DoSumExperts(Stream& stream, View x, View weights, bool accumulate, Out out) override {
    return Computes() ? BackendDecorator::DoSumExperts(stream, x, weights, accumulate, out)
                      : absl::OkStatus();
  }
  absl::Status DoAddExpertBias(Stream& stream, View bias, kernels::IndicesView experts, Out out) override {
    return Computes() ? BackendDecorator::DoAddExpertBias(stream, bias, experts, out) : absl::OkStatus();
  }
  absl::Status DoGatedActivation(Stream& stream, kernels::Activation activation, View gate, View up,
                                 Out out) override {
    return Computes() ? BackendDecorator::DoGatedActivation(stream, activation, gate, up, out)
                      : absl::OkStatus();
  }
  absl::Status DoAddScaled(Stream& stream, View x, float scale, Out out) override {
    return Computes() ? BackendDecorator::DoAddScaled(stream, x, scale, out) : absl::OkStatus();
  }
  absl::Status DoSoftCap(Stream& stream, float cap, Out x) override {
    return Computes() ? BackendDecorator::DoSoftCap(stream, cap, x) : absl::OkStatus();
  }
  absl::Status DoRope(Stream& stream, const Plan& plan, const kernels::RopeTable& rope, int32_t num_heads,
                      Out x) override {
    return Computes() ? BackendDecorator::DoRope(stream, plan, rope, num_heads, x) : absl::OkStatus();
  }
  absl::Status DoKvScatter(Stream& stream, const Plan& plan, const kernels::RopeTable& rope, View k, View v,
                           kernels::KvPagesView pages) override {
    return Computes() ? BackendDecorator::DoKvScatter(stream, plan, rope, k, v, pages) : absl::OkStatus();
  }
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    return part_ != Part::kComputing ? BackendDecorator::DoKvLoad(stream, plan, rope, k, v, pages)
                                     : absl::OkStatus();
  }
  absl::Status DoKvLoadAll(Stream& stream, absl::Span<const kernels::KvLoadItem> items,
                           const kernels::RopeTable& rope, kernels::KvPagesView pages) override {
    return part_ != Part::kComputing ? inner().KvLoadAll(stream, items, rope, pages) : absl::OkStatus();
  }
  absl::Status DoCorrectKv(Stream& stream, kernels::KvSectionView k, kernels::KvSectionView v,
                           const kernels::KvCorrection& correction, kernels::MutableKvSectionView k_out,
                           kernels::MutableKvSectionView v_out) override {
    return part_ != Part::kComputing ? BackendDecorator::DoCorrectKv(stream, k, v, correction, k_out, v_out)
                                     : absl::OkStatus();
  }
  absl::Status DoSpreadDeviation(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                                 absl::Span<const kernels::ColumnRange> ranges,
                                 const kernels::DeviationSpread& keys, const kernels::DeviationSpread& values,
                                 View k, View v, kernels::KvPagesView pages) override {
    return Computes()
               ? BackendDecorator::DoSpreadDeviation(stream, plan, rope, ranges, keys, values, k, v, pages)
               : absl::OkStatus();
  }
  absl::Status DoSelectiveAttention(Stream& stream, const Plan& plan, View q,
                                    const kernels::AttentionSpec& spec, kernels::KvPagesView pages,
                                    Out out) override {
    return Computes() ? BackendDecorator::DoSelectiveAttention(stream, plan, q, spec, pages, out)
                      : absl::OkStatus();
  }
  absl::Status DoGatherRows(Stream& stream, View in, absl::Span<const int32_t> rows, Out out) override {
    return Computes() ? BackendDecorator::DoGatherRows(stream, in, rows, out) : absl::OkStatus();
  }

 private:
  bool Computes() const { return part_ != Part::kLoading; }

  Part part_ = Part::kAll;
};

}  // namespace kvblend::gpu_bench
