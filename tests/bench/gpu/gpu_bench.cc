// Speed of the CUDA backend: its operations in Mistral-7B's shapes, each beside the fastest bf16 product and
// the fastest copy of the same run, and whole prefills of models with random weights. One JSON object.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/bench/arguments.h"
#include "tests/bench/gpu/bench.h"
#include "tests/bench/gpu/models.h"
#include "tests/bench/gpu/operations.h"

namespace kvblend::gpu_bench {
namespace {

struct Options {
  int device = 0;
  bool tiny = false;
  std::string out = "-";
  std::vector<ModelShape> models = KnownShapes();
};

Options Parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> known = {"none"}, names;
  for (const ModelShape& shape : options.models) known.push_back(shape.name);
  CLI::App app("Speed of the CUDA backend, as one JSON object.");
  app.add_option("--device", options.device, "number of the GPU");
  app.add_option("--out", options.out, "file for the JSON (default: -, standard output)");
  app.add_option("--models", names, "whose prefill is measured (default: all); or none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(known));
  app.add_flag("--tiny", options.tiny,
               "shapes that the emulated device is through with in seconds; the times then say nothing")
      ->disable_flag_override();
  ParseOrExit(app, argc, argv);
  if (options.tiny) options.models = {TinyShape()};
  if (!names.empty()) {
    std::erase_if(options.models, [&](const ModelShape& shape) {
      return std::find(names.begin(), names.end(), shape.name) == names.end();
    });
  }
  return options;
}

absl::StatusOr<nlohmann::ordered_json> Run(const Options& options) {
  const Sizes sizes = options.tiny ? Sizes::Tiny() : Sizes();
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Create(sizes, options.device));
  KVBLEND_RETURN_IF_ERROR(bench->MeasurePeaks());
  nlohmann::ordered_json result = {{"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
                                   {"device", bench->backend().device_name()},
                                   {"backend", bench->backend().Describe()},
                                   {"cuda_driver", DriverVersion()},
                                   {"repetitions", sizes.repetitions},
                                   {"gemm_peak_flops_per_second", bench->gemm_flops_per_second()},
                                   {"copy_peak_bytes_per_second", bench->copy_bytes_per_second()}};
  KVBLEND_RETURN_IF_ERROR(MeasureAttention(*bench));
  KVBLEND_RETURN_IF_ERROR(MeasureMovement(*bench));
  KVBLEND_RETURN_IF_ERROR(MeasureLinear(*bench));
  result["operations"] = bench->lines();
  result["models"] = nlohmann::ordered_json::array();
  for (const ModelShape& shape : options.models) {
    std::fprintf(stderr, "%s\n", shape.name.c_str());
    KVBLEND_ASSIGN_OR_RETURN(auto model, MeasureModel(*bench, shape, options.device));
    result["models"].push_back(std::move(model));
  }
  return result;
}

}  // namespace
}  // namespace kvblend::gpu_bench

int main(int argc, char** argv) {
  const kvblend::gpu_bench::Options options = kvblend::gpu_bench::Parse(argc, argv);
  const auto result = kvblend::gpu_bench::Run(options);
  if (!result.ok()) return kvblend::ExitCode(result.status());
  return kvblend::ExitCode(kvblend::WriteText(options.out, result->dump(2) + "\n"));
}
