#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/linear/device_experts.h"
#include "kernels/cuda/linear/device_weights.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/runtime/bring_sections.h"
#include "kernels/cuda/runtime/device_clock.h"
#include "kernels/cuda/runtime/kv_operations.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/cuda/runtime/objects.h"
#include "kernels/cuda/runtime/pinned_pool.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/sample.h"
#include "kernels/cuda/runtime/step_graphs.h"
#include "kernels/cuda/runtime/step_recording.h"

namespace kvblend::kernels {
namespace cuda {
namespace {

using Scratch = DeviceStream::Scratch;

DeviceStream& Of(Stream& stream) { return static_cast<DeviceStream&>(stream); }

bool Empty(const ConstMatrixView& matrix) { return matrix.rows == 0 || matrix.cols == 0; }

class CudaBackend final : public Backend {
 public:
  CudaBackend(DeviceInfo device, std::unique_ptr<Gemm> gemm, bool graphs)
      : device_(std::move(device)), gemm_(std::move(gemm)), graphs_(graphs) {}

  std::string_view name() const override { return "cuda"; }
  std::string Describe() const override {
    return absl::StrCat("cuda: ", device_.name, ", ", device_.num_multiprocessors, " multiprocessors, ",
                        device_.memory_bytes >> 20, " MiB, ", gemm_->name(), " in bf16",
                        graphs_ ? "" : ", no CUDA graphs");
  }
  DataType compute_dtype() const override { return DataType::kBF16; }
  // So many rows make enough blocks of attention for all multiprocessors; a 7B model's layer takes some 7 ms.
  RowUnits row_units() const override { return {.products = 2048, .attention = 8192}; }
  std::string device_name() const override { return device_.name; }
  std::optional<DeviceMemory> device_memory() const override {
    const auto memory = QueryDeviceMemory();
    return memory.ok() ? std::optional(*memory) : std::nullopt;
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return DeviceBuffer::Allocate("Allocate", bytes);
  }
  void* AllocateHost(int64_t bytes) override { return host_memory_.Take(bytes); }
  void FreeHost(void* data, int64_t bytes) override {
    if (data != nullptr) host_memory_.Return(data, bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return DeviceStream::Create(); }
  absl::Status CopyFromHost(Stream& stream, void* dst, const void* src, int64_t bytes) override {
    KVBLEND_RETURN_IF_ERROR(CheckCopy("CopyFromHost", dst, src, bytes));
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), "CopyFromHost", "reads host memory"));
    return bytes == 0 ? absl::OkStatus() : EnqueueCopyFromHost(Of(stream).handle(), dst, src, bytes);
  }
  absl::Status CopyToHost(Stream& stream, void* dst, const void* src, int64_t bytes) override {
    KVBLEND_RETURN_IF_ERROR(CheckCopy("CopyToHost", dst, src, bytes));
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), "CopyToHost", "writes host memory"));
    return bytes == 0 ? absl::OkStatus() : EnqueueCopyToHost(Of(stream).handle(), dst, src, bytes);
  }
  absl::Status Synchronize(Stream& stream) override {
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), "Synchronize", "waits"));
    return Of(stream).Synchronize();
  }
  std::unique_ptr<StreamClock> CreateStreamClock(Stream& stream) override {
    return std::make_unique<DeviceClock>(Of(stream));
  }
  std::unique_ptr<RepeatedStep> CreateRepeatedStep(Stream& stream) override {
    if (!graphs_) return Backend::CreateRepeatedStep(stream);
    return std::make_unique<StepGraphs>(Of(stream));
  }

 protected:
  absl::StatusOr<std::unique_ptr<PackedWeights>> DoPackWeights(int64_t rows, int64_t cols, WeightUsage usage,
                                                               const WeightSource& source) override {
    return DeviceWeights::Create(rows, cols, usage, source);
  }
  absl::StatusOr<std::unique_ptr<RopeTable>> DoCreateRopeTable(const RopeSpec& spec) override {
    return DeviceRopeTable::Create(spec);
  }
  absl::StatusOr<std::unique_ptr<BatchPlan>> DoPlanBatch(const BatchSpec& spec) override {
    return DeviceBatchPlan::Create(spec, plan_memory_);
  }
  absl::StatusOr<std::unique_ptr<KvCorrection>> DoCreateKvCorrection(const KvCorrectionSpec& spec) override {
    return DeviceKvCorrection::Create(spec);
  }

  absl::Status DoEmbed(Stream& stream, const PackedWeights& table, absl::Span<const int32_t> token_ids,
                       float scale, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(auto weights, DeviceWeights::From(table));
    if (Empty(out)) return absl::OkStatus();
    StepRecording* const recording = Of(stream).recording();
    KVBLEND_ASSIGN_OR_RETURN(auto ids, recording != nullptr ? recording->TokenIds(token_ids, table.rows())
                                                            : UploadIndices("Embed", stream, token_ids));
    return StatusOf(LaunchEmbed(Of(stream).handle(), weights->view(), ids, scale, out), "Embed");
  }

  absl::Status DoRmsNorm(Stream& stream, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                         MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    return StatusOf(LaunchRmsNorm(Of(stream).handle(), x, weight, epsilon, out), "RmsNorm");
  }

  absl::Status DoLinear(Stream& stream, ConstMatrixView x, const PackedWeights& packed, bool accumulate,
                        MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(auto weights, DeviceWeights::From(packed));
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_RETURN_IF_ERROR(RoundForProducts("Linear", stream, x));
    void* workspace = nullptr;
    if (gemm_->workspace_bytes() > 0) {
      KVBLEND_ASSIGN_OR_RETURN(auto memory,
                               Of(stream).ScratchMemory(Scratch::kWorkspace, gemm_->workspace_bytes()));
      workspace = memory;
    }
    return gemm_->Run(Of(stream).handle(), x, weights->view(), accumulate, out, workspace);
  }

  absl::StatusOr<std::unique_ptr<PackedExperts>> DoPackExperts(int32_t num_experts, int64_t rows,
                                                               int64_t cols,
                                                               const WeightSource& source) override {
    return DeviceExperts::Create(num_experts, rows, cols, source);
  }

  absl::Status DoChooseExperts(Stream& stream, ConstMatrixView logits, const RoutingSpec& spec,
                               IndicesView experts, MatrixView weights) override {
    if (Empty(weights)) return absl::OkStatus();
    return StatusOf(LaunchChooseExperts(Of(stream).handle(), logits, spec, experts.data, weights),
                    "ChooseExperts");
  }

  absl::Status DoExpertLinear(Stream& stream, ConstMatrixView x, const PackedExperts& packed,
                              IndicesView experts, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(auto weights, DeviceExperts::From(packed));
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_RETURN_IF_ERROR(RoundForProducts("ExpertLinear", stream, x));
    const int64_t bounds = RoundUp(weights->num_experts() + 1, 4);
    KVBLEND_ASSIGN_OR_RETURN(
        auto memory,
        Of(stream).ScratchMemory(Scratch::kIndices, (bounds + out.rows) * int64_t{sizeof(int32_t)}));
    auto* begin = static_cast<int32_t*>(memory);
    const GroupedRows grouped{begin, begin + bounds, weights->num_experts(), static_cast<int32_t>(out.rows)};
    const StreamHandle handle = Of(stream).handle();
    KVBLEND_RETURN_IF_ERROR(StatusOf(LaunchGroupRows(handle, experts.data, grouped), "ExpertLinear"));
    return StatusOf(LaunchExpertLinear(handle, x, weights->view(), grouped, out), "ExpertLinear");
  }

  absl::Status DoSumExperts(Stream& stream, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                            MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    return StatusOf(LaunchSumExperts(Of(stream).handle(), x, weights, accumulate, out), "SumExperts");
  }

  absl::Status DoAddExpertBias(Stream& stream, ConstMatrixView bias, IndicesView experts,
                               MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    return StatusOf(LaunchAddExpertBias(Of(stream).handle(), bias, experts.data, out), "AddExpertBias");
  }

  absl::Status DoGatedActivation(Stream& stream, Activation activation, ConstMatrixView gate,
                                 ConstMatrixView up, MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    return StatusOf(LaunchGatedActivation(Of(stream).handle(), activation, gate, up, out), "GatedActivation");
  }

  absl::Status DoAddScaled(Stream& stream, ConstMatrixView x, float scale, MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    return StatusOf(LaunchAddScaled(Of(stream).handle(), x, scale, out), "AddScaled");
  }

  absl::Status DoSoftCap(Stream& stream, float cap, MatrixView x) override {
    if (Empty(x)) return absl::OkStatus();
    return StatusOf(LaunchSoftCap(Of(stream).handle(), cap, x), "SoftCap");
  }

  absl::Status DoRope(Stream& stream, const BatchPlan& batch, const RopeTable& table, int32_t num_heads,
                      MatrixView x) override {
    KVBLEND_ASSIGN_OR_RETURN(auto plan, DeviceBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(auto rope, DeviceRopeTable::From(table));
    if (Empty(x)) return absl::OkStatus();
    if (StepRecording* step = Of(stream).recording()) step->UsesRope(table);
    KVBLEND_ASSIGN_OR_RETURN(auto rows, plan->ViewOn(Of(stream)));
    return StatusOf(LaunchRope(Of(stream).handle(), rows, rope->view(), num_heads, x), "Rope");
  }

  absl::Status DoKvScatter(Stream& stream, const BatchPlan& batch, const RopeTable& table, ConstMatrixView k,
                           ConstMatrixView v, KvPagesView pages) override {
    return ScatterKv(Of(stream), batch, table, k, v, pages);
  }

  absl::Status DoKvLoad(Stream& stream, const BatchPlan& batch, const RopeTable& table, KvSectionView k,
                        KvSectionView v, KvPagesView pages) override {
    const KvLoadItem item{&batch, k, v};
    return LoadAllKv(Of(stream), {&item, 1}, table, pages);
  }

  absl::Status DoCorrectKv(Stream& stream, KvSectionView k, KvSectionView v, const KvCorrection& correction,
                           MutableKvSectionView k_out, MutableKvSectionView v_out) override {
    return CorrectStoredKv(Of(stream), k, v, correction, k_out, v_out);
  }

  absl::Status DoKvLoadCorrected(Stream& stream, const BatchPlan& batch, const RopeTable& table,
                                 KvSectionView k, KvSectionView v, const KvCorrection& correction,
                                 MutableKvSectionView k_memory, MutableKvSectionView v_memory,
                                 KvPagesView pages) override {
    const KvLoadItem item{&batch, k, v, &correction, k_memory, v_memory};
    return LoadAllKv(Of(stream), {&item, 1}, table, pages);
  }

  absl::Status DoKvLoadAll(Stream& stream, absl::Span<const KvLoadItem> items, const RopeTable& table,
                           KvPagesView pages) override {
    return LoadAllKv(Of(stream), items, table, pages);
  }

  absl::Status DoEncodeKv(Stream& stream, ConstMatrixView in, MutableKvSectionView out) override {
    return EncodeStoredKv(Of(stream), in, out);
  }

  absl::Status DoSelectiveAttention(Stream& stream, const BatchPlan& batch, ConstMatrixView q,
                                    const AttentionSpec& spec, KvPagesView pages, MatrixView out) override {
    constexpr absl::string_view kOp = "SelectiveAttention";
    KVBLEND_ASSIGN_OR_RETURN(auto plan, DeviceBatchPlan::From(batch));
    KVBLEND_RETURN_IF_ERROR(CheckHeadDim(kOp, pages));
    if (Empty(out)) return absl::OkStatus();
    if (StepRecording* step = Of(stream).recording()) step->UsesPages(pages);
    KVBLEND_ASSIGN_OR_RETURN(auto rows, plan->ViewOn(Of(stream), pages.page_list));
    const AttentionShape shape =
        plan->ShapeOf(spec.num_heads, pages, device_.num_multiprocessors, /*statistics=*/false);
    AttentionWorkspace workspace;
    if (shape.splits > 1) {
      const int64_t heads = shape.splits * q.rows * spec.num_heads;
      KVBLEND_ASSIGN_OR_RETURN(
          auto memory, Of(stream).ScratchMemory(Scratch::kWorkspace,
                                                heads * (pages.head_dim + 2) * int64_t{sizeof(float)}));
      workspace.out = static_cast<float*>(memory);
      workspace.max = workspace.out + heads * pages.head_dim;
      workspace.sum = workspace.max + heads;
    }
    return StatusOf(
        LaunchSelectiveAttention(Of(stream).handle(), rows, q, shape, spec, pages, workspace, out), kOp);
  }

  absl::Status DoAttentionMass(Stream& stream, const BatchPlan& batch, ConstMatrixView q,
                               const AttentionSpec& spec, KvPagesView pages, MatrixView out) override {
    constexpr absl::string_view kOp = "AttentionMass";
    KVBLEND_ASSIGN_OR_RETURN(auto plan, DeviceBatchPlan::From(batch));
    KVBLEND_RETURN_IF_ERROR(CheckHeadDim(kOp, pages));
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), kOp, "writes as much as contexts are long"));
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_ASSIGN_OR_RETURN(auto rows, plan->ViewOn(Of(stream), pages.page_list));
    const AttentionShape shape =
        plan->ShapeOf(spec.num_heads, pages, device_.num_multiprocessors, /*statistics=*/true);
    const int64_t heads = q.rows * spec.num_heads, masses = pages.num_kv_heads * shape.total_kv_len;
    KVBLEND_ASSIGN_OR_RETURN(
        auto memory, Of(stream).ScratchMemory(Scratch::kWorkspace, (heads * (2 * shape.splits + 1) + masses) *
                                                                       int64_t{sizeof(float)}));
    AttentionWorkspace workspace;
    workspace.max = static_cast<float*>(memory);
    workspace.sum = workspace.max + shape.splits * heads;
    workspace.log_sum = workspace.sum + shape.splits * heads;
    workspace.head_mass = workspace.log_sum + heads;
    return StatusOf(LaunchAttentionMass(Of(stream).handle(), rows, q, shape, spec, pages, workspace,
                                        static_cast<float*>(out.data)),
                    kOp);
  }

  absl::Status DoSpreadDeviation(Stream& stream, const BatchPlan& batch, const RopeTable& table,
                                 absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                 const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                 KvPagesView pages) override {
    return SpreadDeviationOfRows(Of(stream), batch, table, ranges, keys, values, k, v, pages);
  }

  absl::Status DoValueLengths(Stream& stream, const BatchPlan& batch, KvPagesView pages,
                              MatrixView out) override {
    constexpr absl::string_view kOp = "ValueLengths";
    KVBLEND_ASSIGN_OR_RETURN(auto plan, DeviceBatchPlan::From(batch));
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), kOp, "writes as much as contexts are long"));
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_ASSIGN_OR_RETURN(auto rows, plan->ViewOn(Of(stream), pages.page_list));
    const AttentionShape shape =
        plan->ShapeOf(pages.num_kv_heads, pages, device_.num_multiprocessors, /*statistics=*/true);
    return StatusOf(
        LaunchValueLengths(Of(stream).handle(), rows, shape.key_tiles, pages, static_cast<float*>(out.data)),
        kOp);
  }

  absl::Status DoKvDeviation(Stream& stream, ConstMatrixView fresh, KvSectionView stored,
                             MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_RETURN_IF_ERROR(BringToDevice(Of(stream), stored));
    KVBLEND_RETURN_IF_ERROR(Of(stream).AwaitSections());
    KVBLEND_RETURN_IF_ERROR(StatusOf(
        LaunchKvDeviation(Of(stream).handle(), fresh, KvSource::Of(stored), static_cast<float*>(out.data)),
        "KvDeviation"));
    return Of(stream).ReleaseSections();
  }

  absl::Status DoMassScores(Stream& stream, ConstMatrixView mass, ConstMatrixView lengths,
                            absl::Span<const ColumnRange> counted, absl::Span<const ColumnRange> wanted,
                            MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    std::vector<int32_t> staged;  // the counted ranges, then the wanted columns one by one
    for (const ColumnRange& range : counted) staged.insert(staged.end(), {range.begin, range.end});
    for (const ColumnRange& range : wanted) {
      for (int32_t column = range.begin; column < range.end; ++column) staged.push_back(column);
    }
    KVBLEND_ASSIGN_OR_RETURN(auto indices, UploadIndices("MassScores", stream, staged));
    KVBLEND_ASSIGN_OR_RETURN(
        auto totals, Of(stream).ScratchMemory(Scratch::kWorkspace,
                                              kMassTotals * (mass.rows + 1) * int64_t{sizeof(double)}));
    const auto num_counted = static_cast<int32_t>(counted.size());
    return StatusOf(
        LaunchMassScores(Of(stream).handle(), mass, lengths, reinterpret_cast<const ColumnRange*>(indices),
                         num_counted, indices + 2 * num_counted, static_cast<double*>(totals), out),
        "MassScores");
  }

  absl::Status DoSelectTopK(Stream& stream, ConstMatrixView scores, IndicesView out) override {
    if (out.size == 0) return absl::OkStatus();
    return StatusOf(
        LaunchSelectTopK(Of(stream).handle(), static_cast<const float*>(scores.data), scores.cols, out),
        "SelectTopK");
  }

  absl::Status DoSampleTokens(Stream& stream, ConstMatrixView logits, absl::Span<const SamplingSpec> specs,
                              absl::Span<SampledToken> out) override {
    return specs.empty() ? absl::OkStatus() : SampleOnDevice(Of(stream), logits, specs, out);
  }

  absl::Status DoGatherRows(Stream& stream, ConstMatrixView in, absl::Span<const int32_t> row_indices,
                            MatrixView out) override {
    if (Empty(out)) return absl::OkStatus();
    KVBLEND_ASSIGN_OR_RETURN(auto indices, UploadIndices("GatherRows", stream, row_indices));
    return StatusOf(LaunchGatherRows(Of(stream).handle(), in, indices, out), "GatherRows");
  }

 private:
  // Rounds x to bf16 in rows that begin at multiples of 16 bytes, unless it has these already.
  static absl::Status RoundForProducts(absl::string_view op, Stream& stream, ConstMatrixView& x) {
    const bool as_it_is =
        x.dtype == DataType::kBF16 && x.row_stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    if (as_it_is) return absl::OkStatus();
    const int64_t stride = RoundUp(x.cols, 8);
    KVBLEND_ASSIGN_OR_RETURN(auto rounded,
                             Of(stream).ScratchMemory(Scratch::kActivations, x.rows * stride * 2));
    const MatrixView to{rounded, DataType::kBF16, x.rows, x.cols, stride};
    KVBLEND_RETURN_IF_ERROR(StatusOf(LaunchConvert(Of(stream).handle(), x, to), op));
    x = to;
    return absl::OkStatus();
  }

  static absl::Status CheckHeadDim(absl::string_view op, const KvPagesView& pages) {
    if (pages.head_dim <= kMaxHeadDim) return absl::OkStatus();
    return Invalid(op, "head_dim is ", pages.head_dim, "; allowed on this backend: up to ", kMaxHeadDim);
  }

  static absl::StatusOr<const int32_t*> UploadIndices(absl::string_view op, Stream& stream,
                                                      absl::Span<const int32_t> indices) {
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(Of(stream), op, "reads host memory"));
    const auto bytes = static_cast<int64_t>(indices.size() * sizeof(int32_t));
    KVBLEND_ASSIGN_OR_RETURN(auto memory, Of(stream).ScratchMemory(Scratch::kIndices, bytes));
    KVBLEND_RETURN_IF_ERROR(EnqueueCopyFromHost(Of(stream).handle(), memory, indices.data(), bytes));
    return static_cast<const int32_t*>(memory);
  }

  const DeviceInfo device_;
  const std::unique_ptr<Gemm> gemm_;
  const bool graphs_;
  PlanMemoryPool plan_memory_;
  PinnedPool host_memory_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int index) {
  const char* graphs = std::getenv("KVBLEND_CUDA_GRAPHS");
  const absl::string_view wanted = graphs == nullptr ? "on" : graphs;
  if (wanted != "on" && wanted != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("KVBLEND_CUDA_GRAPHS is '", wanted, "'; allowed: on, off"));
  }
  KVBLEND_ASSIGN_OR_RETURN(auto device, cuda::OpenDevice(index));
  KVBLEND_ASSIGN_OR_RETURN(auto gemm, cuda::CreateGemm());
  return std::make_unique<cuda::CudaBackend>(std::move(device), std::move(gemm), wanted == "on");
}

CudaProbe ProbeCudaDevices() {
  CudaProbe probe{.in_build = true, .error = "", .devices = {}};
  const auto devices = cuda::ListDevices();
  if (!devices.ok()) {
    probe.error = std::string(devices.status().message());
    return probe;
  }
  for (const cuda::DeviceInfo& device : *devices) {
    probe.devices.push_back({device.name, device.compute_major, device.compute_minor});
  }
  return probe;
}

}  // namespace kvblend::kernels
