// A backend that passes everything on to another one. Tests override single operations to inject faults.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/backend.h"

namespace kvblend::test_support {

class BackendDecorator : public kernels::Backend {
 public:
  explicit BackendDecorator(std::unique_ptr<kernels::Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  std::string Describe() const override { return inner_->Describe(); }
  std::string device_name() const override { return inner_->device_name(); }
  std::optional<kernels::DeviceMemory> device_memory() const override { return inner_->device_memory(); }
  kernels::DataType compute_dtype() const override { return inner_->compute_dtype(); }
  kernels::RowUnits row_units() const override { return inner_->row_units(); }
  bool has_int8_pages() const override { return inner_->has_int8_pages(); }
  kernels::PageLayout best_page_layout(kernels::DataType dtype, int32_t page_size,
                                       int32_t head_dim) const override {
    return inner_->best_page_layout(dtype, page_size, head_dim);
  }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(int64_t bytes) override {
    return inner_->Allocate(bytes);
  }
  void* AllocateHost(int64_t bytes) override { return inner_->AllocateHost(bytes); }
  void FreeHost(void* data, int64_t bytes) override { inner_->FreeHost(data, bytes); }
  absl::StatusOr<std::unique_ptr<kernels::Stream>> CreateStream() override { return inner_->CreateStream(); }
  absl::Status CopyFromHost(kernels::Stream& stream, void* dst, const void* src, int64_t bytes) override {
    return inner_->CopyFromHost(stream, dst, src, bytes);
  }
  absl::Status CopyToHost(kernels::Stream& stream, void* dst, const void* src, int64_t bytes) override {
    return inner_->CopyToHost(stream, dst, src, bytes);
  }
  absl::Status Synchronize(kernels::Stream& stream) override { return inner_->Synchronize(stream); }
  std::unique_ptr<kernels::StreamClock> CreateStreamClock(kernels::Stream& stream) override {
    return inner_->CreateStreamClock(stream);
  }

 protected:
  using View = kernels::ConstMatrixView;
  using Out = kernels::MatrixView;
  using Stream = kernels::Stream;
  using Plan = kernels::BatchPlan;

  absl::StatusOr<std::unique_ptr<kernels::PackedWeights>> DoPackWeights(
      int64_t rows, int64_t cols, kernels::WeightUsage usage, const kernels::WeightSource& source) override {
    return inner_->PackWeights(rows, cols, usage, source);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> DoPackExperts(
      int32_t num_experts, int64_t rows, int64_t cols, const kernels::WeightSource& source) override {
    return inner_->PackExperts(num_experts, rows, cols, source);
  }
  absl::StatusOr<std::unique_ptr<kernels::RopeTable>> DoCreateRopeTable(
      const kernels::RopeSpec& spec) override {
    return inner_->CreateRopeTable(spec);
  }
  absl::StatusOr<std::unique_ptr<Plan>> DoPlanBatch(const kernels::BatchSpec& spec) override {
    return inner_->PlanBatch(spec);
  }
  absl::Status DoEmbed(Stream& stream, const kernels::PackedWeights& table,
                       absl::Span<const int32_t> token_ids, float scale, Out out) override {
    return inner_->Embed(stream, table, token_ids, scale, out);
  }
  absl::Status DoRmsNorm(Stream& stream, View x, View weight, float epsilon, Out out) override {
    return inner_->RmsNorm(stream, x, weight, epsilon, out);
  }
  absl::Status DoLinear(Stream& stream, View x, const kernels::PackedWeights& weights, bool accumulate,
                        Out out) override {
    return inner_->Linear(stream, x, weights, accumulate, out);
  }
  absl::Status DoGatedLinear(Stream& stream, View x, const kernels::PackedWeights& weights,
                             kernels::Activation activation, Out both, Out out) override {
    return inner_->GatedLinear(stream, x, weights, activation, both, out);
  }
  absl::Status DoChooseExperts(Stream& stream, View logits, const kernels::RoutingSpec& spec,
                               kernels::IndicesView experts, Out weights) override {
    return inner_->ChooseExperts(stream, logits, spec, experts, weights);
  }
  absl::Status DoExpertLinear(Stream& stream, View x, const kernels::PackedExperts& weights,
                              kernels::IndicesView experts, Out out) override {
    return inner_->ExpertLinear(stream, x, weights, experts, out);
  }
  absl::Status DoSumExperts(Stream& stream, View x, View weights, bool accumulate, Out out) override {
    return inner_->SumExperts(stream, x, weights, accumulate, out);
  }
  absl::Status DoAddExpertBias(Stream& stream, View bias, kernels::IndicesView experts, Out out) override {
    return inner_->AddExpertBias(stream, bias, experts, out);
  }
  absl::Status DoGatedActivation(Stream& stream, kernels::Activation activation, View gate, View up,
                                 Out out) override {
    return inner_->GatedActivation(stream, activation, gate, up, out);
  }
  absl::Status DoAddScaled(Stream& stream, View x, float scale, Out out) override {
    return inner_->AddScaled(stream, x, scale, out);
  }
  absl::Status DoSoftCap(Stream& stream, float cap, Out x) override {
    return inner_->SoftCap(stream, cap, x);
  }
  absl::Status DoRope(Stream& stream, const Plan& plan, const kernels::RopeTable& rope, int32_t num_heads,
                      Out x) override {
    return inner_->Rope(stream, plan, rope, num_heads, x);
  }
  absl::Status DoKvScatter(Stream& stream, const Plan& plan, const kernels::RopeTable& rope, View k, View v,
                           kernels::KvPagesView pages) override {
    return inner_->KvScatter(stream, plan, rope, k, v, pages);
  }
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    return inner_->KvLoad(stream, plan, rope, k, v, pages);
  }
  absl::StatusOr<std::unique_ptr<kernels::KvCorrection>> DoCreateKvCorrection(
      const kernels::KvCorrectionSpec& spec) override {
    return inner_->CreateKvCorrection(spec);
  }
  absl::Status DoCorrectKv(Stream& stream, kernels::KvSectionView k, kernels::KvSectionView v,
                           const kernels::KvCorrection& correction, kernels::MutableKvSectionView k_out,
                           kernels::MutableKvSectionView v_out) override {
    return inner_->CorrectKv(stream, k, v, correction, k_out, v_out);
  }
  absl::Status DoKvLoadCorrected(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                                 kernels::KvSectionView k, kernels::KvSectionView v,
                                 const kernels::KvCorrection& correction,
                                 kernels::MutableKvSectionView k_memory,
                                 kernels::MutableKvSectionView v_memory,
                                 kernels::KvPagesView pages) override {
    return inner_->KvLoadCorrected(stream, plan, rope, k, v, correction, k_memory, v_memory, pages);
  }
  absl::Status DoEncodeKv(Stream& stream, View in, kernels::MutableKvSectionView out) override {
    return inner_->EncodeKv(stream, in, out);
  }
  absl::Status DoSelectiveAttention(Stream& stream, const Plan& plan, View q,
                                    const kernels::AttentionSpec& spec, kernels::KvPagesView pages,
                                    Out out) override {
    return inner_->SelectiveAttention(stream, plan, q, spec, pages, out);
  }
  absl::Status DoAttentionMass(Stream& stream, const Plan& plan, View q, const kernels::AttentionSpec& spec,
                               kernels::KvPagesView pages, Out out) override {
    return inner_->AttentionMass(stream, plan, q, spec, pages, out);
  }
  absl::Status DoKvDeviation(Stream& stream, View fresh, kernels::KvSectionView stored, Out out) override {
    return inner_->KvDeviation(stream, fresh, stored, out);
  }
  absl::Status DoSpreadDeviation(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                                 absl::Span<const kernels::ColumnRange> ranges,
                                 const kernels::DeviationSpread& keys, const kernels::DeviationSpread& values,
                                 View k, View v, kernels::KvPagesView pages) override {
    return inner_->SpreadDeviation(stream, plan, rope, ranges, keys, values, k, v, pages);
  }
  absl::Status DoValueLengths(Stream& stream, const Plan& plan, kernels::KvPagesView pages,
                              Out out) override {
    return inner_->ValueLengths(stream, plan, pages, out);
  }
  absl::Status DoMassScores(Stream& stream, View mass, View lengths,
                            absl::Span<const kernels::ColumnRange> counted,
                            absl::Span<const kernels::ColumnRange> wanted, Out out) override {
    return inner_->MassScores(stream, mass, lengths, counted, wanted, out);
  }
  absl::Status DoSelectTopK(Stream& stream, View scores, kernels::IndicesView out) override {
    return inner_->SelectTopK(stream, scores, out);
  }
  absl::Status DoSampleTokens(Stream& stream, View logits, absl::Span<const kernels::SamplingSpec> specs,
                              absl::Span<kernels::SampledToken> out) override {
    return inner_->SampleTokens(stream, logits, specs, out);
  }
  absl::Status DoGatherRows(Stream& stream, View in, absl::Span<const int32_t> row_indices,
                            Out out) override {
    return inner_->GatherRows(stream, in, row_indices, out);
  }

  kernels::Backend& inner() { return *inner_; }

 private:
  const std::unique_ptr<kernels::Backend> inner_;
};

}  // namespace kvblend::test_support
