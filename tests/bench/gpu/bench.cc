#include "tests/bench/gpu/bench.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/bench/gpu/random_weights.h"

namespace kvblend::gpu_bench {

using kernels::DataType;

Sizes Sizes::Tiny() {
  Sizes tiny;
  tiny.num_heads = 4;
  tiny.num_kv_heads = 2;
  tiny.head_dim = 32;
  tiny.hidden_dim = 128;
  tiny.ffn_dim = 192;
  tiny.tokens = 150;
  tiny.gathered = 20;
  tiny.question = 5;
  tiny.page_size = 16;
  tiny.repetitions = 3;
  tiny.model_repetitions = 1;
  tiny.flush_bytes = 4096;
  tiny.peak_dim = 64;
  tiny.copy_bytes = 1 << 16;
  tiny.upload_bytes = 1 << 12;
  return tiny;
}

absl::StatusOr<std::unique_ptr<Bench>> Bench::Create(const Sizes& sizes, int device) {
  std::unique_ptr<Bench> bench(new Bench(sizes));
  KVBLEND_ASSIGN_OR_RETURN(bench->backend_, kernels::CreateCudaBackend(device));
  KVBLEND_ASSIGN_OR_RETURN(bench->stream_, kernels::cuda::DeviceStream::Create());
  KVBLEND_ASSIGN_OR_RETURN(bench->flush_, bench->backend_->Allocate(sizes.flush_bytes));
  bench->reference_ = kernels::CreateReferenceBackend();
  KVBLEND_ASSIGN_OR_RETURN(bench->reference_stream_, bench->reference_->CreateStream());
  return bench;
}

absl::StatusOr<Samples> Bench::Measure(absl::FunctionRef<absl::Status()> enqueue) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<Stopwatch> stopwatch, Stopwatch::Create());
  Samples seconds;
  for (int32_t i = 0; i <= sizes_.repetitions; ++i) {
    // Takes the device longer than it takes the host to enqueue what follows, which is then timed without
    // the host.
    KVBLEND_RETURN_IF_ERROR(
        kernels::cuda::EnqueueZero(stream_->handle(), flush_->data(), flush_->size_bytes()));
    KVBLEND_RETURN_IF_ERROR(stopwatch->Start(stream_->handle()));
    KVBLEND_RETURN_IF_ERROR(enqueue());
    KVBLEND_RETURN_IF_ERROR(stopwatch->Stop(stream_->handle()));
    KVBLEND_RETURN_IF_ERROR(backend_->Synchronize(*stream_));
    KVBLEND_ASSIGN_OR_RETURN(const double time, stopwatch->Seconds());
    if (i > 0) seconds.Add(time);
  }
  return seconds;
}

absl::Status Bench::MeasurePeaks() {
  const int64_t dim = sizes_.peak_dim;
  KVBLEND_ASSIGN_OR_RETURN(const auto weights, MakeRandomWeights(dim, dim, kernels::WeightUsage::kLinear, 1));
  KVBLEND_ASSIGN_OR_RETURN(const auto x, backend_->Allocate(dim * dim * 2));
  KVBLEND_ASSIGN_OR_RETURN(const auto out, backend_->Allocate(dim * dim * 4));
  KVBLEND_RETURN_IF_ERROR(kernels::cuda::StatusOf(
      LaunchFillRandom(stream_->handle(), static_cast<uint16_t*>(x->data()), dim * dim, 1.0f, 2),
      "FillRandomKernel"));
  KVBLEND_ASSIGN_OR_RETURN(const Samples product, Measure([&] {
                             return backend_->Linear(*stream_, {x->data(), DataType::kBF16, dim, dim, dim},
                                                     *weights, false,
                                                     {out->data(), DataType::kF32, dim, dim, dim});
                           }));
  gemm_flops_per_second_ = 2.0 * static_cast<double>(dim) * static_cast<double>(dim * dim) / product.Median();
  KVBLEND_ASSIGN_OR_RETURN(const auto source, backend_->Allocate(sizes_.copy_bytes));
  KVBLEND_ASSIGN_OR_RETURN(const auto target, backend_->Allocate(sizes_.copy_bytes));
  KVBLEND_ASSIGN_OR_RETURN(const Samples copy, Measure([&] {
                             return EnqueueDeviceCopy(stream_->handle(), target->data(), source->data(),
                                                      sizes_.copy_bytes);
                           }));
  copy_bytes_per_second_ = 2.0 * static_cast<double>(sizes_.copy_bytes) / copy.Median();
  return MeasureHost(*target);
}

absl::Status Bench::MeasureHost(kernels::Buffer& target) {
  void* const pinned = backend_->AllocateHost(sizes_.upload_bytes);
  if (pinned == nullptr) return absl::ResourceExhaustedError("no page-locked memory");
  const absl::Cleanup free = [&] { backend_->FreeHost(pinned, sizes_.upload_bytes); };
  KVBLEND_ASSIGN_OR_RETURN(
      const Samples upload,
      Measure([&] { return backend_->CopyFromHost(*stream_, target.data(), pinned, sizes_.upload_bytes); }));
  upload_bytes_per_second_ = static_cast<double>(sizes_.upload_bytes) / upload.Median();
  // Fewer than the driver has room for, so that the host never waits for the device.
  constexpr int32_t kKernels = 200;
  auto* const row = static_cast<float*>(target.data());
  const kernels::MatrixView x{row, DataType::kF32, 1, 64, 64}, weight{row + 64, DataType::kF32, 1, 64, 64};
  Samples seconds;
  for (int32_t i = 0; i <= sizes_.repetitions; ++i) {
    const absl::Time start = absl::Now();
    for (int32_t k = 0; k < kKernels; ++k) {
      KVBLEND_RETURN_IF_ERROR(backend_->RmsNorm(*stream_, x, weight, 1e-5f, x));
    }
    const double time = absl::ToDoubleSeconds(absl::Now() - start) / kKernels;
    KVBLEND_RETURN_IF_ERROR(backend_->Synchronize(*stream_));
    if (i > 0) seconds.Add(time);
  }
  enqueue_seconds_ = seconds.Median();
  return absl::OkStatus();
}

absl::Status Bench::Download(void* host, const void* device, int64_t bytes) {
  KVBLEND_RETURN_IF_ERROR(backend_->CopyToHost(*stream_, host, device, bytes));
  return backend_->Synchronize(*stream_);
}

absl::Status Bench::Upload(void* device, const void* host, int64_t bytes) {
  KVBLEND_RETURN_IF_ERROR(backend_->CopyFromHost(*stream_, device, host, bytes));
  return backend_->Synchronize(*stream_);
}

absl::Status Bench::Add(const Work& work, absl::FunctionRef<absl::Status()> enqueue) {
  if (!(work.error <= work.error_bound)) {
    problems_.push_back(absl::StrCat(work.operation, ", ", work.shape, ": is off by ", work.error,
                                     " of the reference's norm; allowed: ", work.error_bound));
    return absl::OkStatus();
  }
  KVBLEND_ASSIGN_OR_RETURN(const Samples seconds, Measure(enqueue));
  const double median = seconds.Median();
  nlohmann::ordered_json line = {{"operation", work.operation},
                                 {"shape", work.shape},
                                 {"seconds", median},
                                 {"seconds_min", seconds.Min()},
                                 {"seconds_max", seconds.Max()},
                                 {"bytes", work.bytes},
                                 {"bytes_per_second", work.bytes / median},
                                 {"share_of_copy_peak", work.bytes / median / copy_bytes_per_second_},
                                 {"error", work.error},
                                 {"error_bound", work.error_bound}};
  if (work.flops > 0) {
    line["flops"] = work.flops;
    line["flops_per_second"] = work.flops / median;
    line["share_of_gemm_peak"] = work.flops / median / gemm_flops_per_second_;
  }
  lines_.push_back(std::move(line));
  return absl::OkStatus();
}

double RelativeError(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    norm += double{expected[i]} * expected[i];
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace kvblend::gpu_bench
