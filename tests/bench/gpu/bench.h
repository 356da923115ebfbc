// What the GPU benchmarks share: the device, timing with a cold L2 cache, and what they report.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/memory.h"
#include "nlohmann/json.hpp"
#include "tests/bench/gpu/stopwatch.h"
#include "tests/bench/samples.h"

namespace kvblend::gpu_bench {

/// What is measured: Mistral-7B's shapes, or ones that the emulated device is through with in seconds.
struct Sizes {
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t hidden_dim = 4096;
  int32_t ffn_dim = 14336;
  int32_t tokens = 6000;   // of the prompt
  int32_t gathered = 900;  // recomputed at 15%; a third of them at 5%
  int32_t question = 30;
  int32_t page_size = 64;
  int32_t repetitions = 21;                   // of which the median counts
  int32_t model_repetitions = 5;              // of whole prefills
  int64_t flush_bytes = int64_t{512} << 20;   // several times any L2 cache
  int64_t peak_dim = 8192;                    // of the product that is the measured peak
  int64_t copy_bytes = int64_t{2} << 30;      // of the copy that is the measured peak
  int64_t upload_bytes = int64_t{256} << 20;  // of one from the host's memory

  static Sizes Tiny();
};

/// One of the two backends that operations run on: the one that is measured, or the reference.
struct Side {
  bool is_reference;
  kernels::Backend& backend;
  kernels::Stream& stream;
};

/// A line of the report. `flops` and `bytes` are what the operation cannot do without: unmasked products, and
/// every input and output once.
struct Work {
  std::string operation;
  std::string shape;
  double flops = 0;
  double bytes = 0;
  double error = 0;  // measured against the reference, relative to the result's norm
  double error_bound = 0;
};

/// One thread.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const Sizes& sizes, int device);

  const Sizes& sizes() const { return sizes_; }
  kernels::Backend& backend() { return *backend_; }
  kernels::cuda::DeviceStream& stream() { return *stream_; }
  Side device() { return {false, *backend_, *stream_}; }
  Side reference() { return {true, *reference_, *reference_stream_}; }

  /// Runs `enqueue` once to warm up and then `repetitions` times, each with nothing of its data in the L2
  /// cache, timed on the device.
  absl::StatusOr<Samples> Measure(absl::FunctionRef<absl::Status()> enqueue);

  /// Measures what `enqueue` does and adds a line. What is wrong, its error being above the bound, is not
  /// timed: it goes to problems().
  absl::Status Add(const Work& work, absl::FunctionRef<absl::Status()> enqueue);
  /// The same for an operation whose error is that of `result` (Mirror, PagedKv) after a run on both sides.
  template <typename Result>
  absl::Status Compare(Work work, const Result& result,
                       absl::FunctionRef<absl::Status(const Side&)> operation) {
    for (const Side& side : {device(), reference()}) KVBLEND_RETURN_IF_ERROR(operation(side));
    KVBLEND_ASSIGN_OR_RETURN(work.error, result.RelativeError(*this));
    return Add(work, [&] { return operation(device()); });
  }
  const std::vector<nlohmann::ordered_json>& lines() const { return lines_; }
  const std::vector<std::string>& problems() const { return problems_; }

  /// The fastest bf16 product and the fastest device copy of this run; what others are a share of. And two
  /// limits of the host's: copies of page-locked memory to the device, and how long it is busy with enqueuing
  /// a kernel.
  absl::Status MeasurePeaks();
  double gemm_flops_per_second() const { return gemm_flops_per_second_; }
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }
  double upload_bytes_per_second() const { return upload_bytes_per_second_; }
  double enqueue_seconds() const { return enqueue_seconds_; }

  /// What was computed, from device memory to host memory.
  absl::Status Download(void* host, const void* device, int64_t bytes);
  absl::Status Upload(void* device, const void* host, int64_t bytes);

 private:
  explicit Bench(const Sizes& sizes) : sizes_(sizes) {}
  /// `target`: device memory of sizes().copy_bytes.
  absl::Status MeasureHost(kernels::Buffer& target);

  const Sizes sizes_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::cuda::DeviceStream> stream_;
  std::unique_ptr<kernels::Backend> reference_;
  std::unique_ptr<kernels::Stream> reference_stream_;
  std::vector<nlohmann::ordered_json> lines_;
  std::vector<std::string> problems_;
  std::unique_ptr<kernels::Buffer> flush_;
  double gemm_flops_per_second_ = 0;
  double copy_bytes_per_second_ = 0;
  double upload_bytes_per_second_ = 0;
  double enqueue_seconds_ = 0;
};

/// ||actual - expected|| / ||expected||; infinite when a value is not finite.
double RelativeError(const std::vector<float>& actual, const std::vector<float>& expected);

}  // namespace kvblend::gpu_bench
