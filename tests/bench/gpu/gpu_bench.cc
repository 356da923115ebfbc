// Speed of the CUDA backend: its operations in Mistral-7B's shapes, each beside the fastest bf16 product and
// the fastest copy of the same run, and whole prefills of models with random weights. One JSON object.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/bench/arguments.h"
#include "tests/bench/gpu/bench.h"
#include "tests/bench/gpu/models.h"
#include "tests/bench/gpu/operations.h"

namespace kvblend::gpu_bench {
namespace {

struct Kind {
  const char* name;
  absl::Status (*measure)(Bench& bench);
};
constexpr Kind kOperations[] = {
    {"attention", MeasureAttention}, {"movement", MeasureMovement}, {"linear", MeasureLinear}};

struct Options {
  int device = 0;
  bool tiny = false;
  std::vector<std::string> operations;  // names of kOperations
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
  for (const Kind& kind : kOperations) options.operations.push_back(kind.name);
  std::vector<std::string> kinds = options.operations;
  kinds.push_back("none");
  app.add_option("--operations", options.operations, "which kinds are measured (default: all); or none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(kinds));
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

// A machine with a GPU is a rare guest: whatever went wrong, what was measured before and what can be
// measured behind it is kept.
absl::Status Run(const Options& options) {
  const Sizes sizes = options.tiny ? Sizes::Tiny() : Sizes();
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Create(sizes, options.device));
  KVBLEND_RETURN_IF_ERROR(bench->MeasurePeaks());
  nlohmann::ordered_json result = {{"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
                                   {"device", bench->backend().device_name()},
                                   {"backend", bench->backend().Describe()},
                                   {"cuda_driver", DriverVersion()},
                                   {"repetitions", sizes.repetitions},
                                   {"gemm_peak_flops_per_second", bench->gemm_flops_per_second()},
                                   {"copy_peak_bytes_per_second", bench->copy_bytes_per_second()},
                                   {"upload_bytes_per_second", bench->upload_bytes_per_second()},
                                   {"enqueue_seconds", bench->enqueue_seconds()}};
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  std::vector<std::string> failures;
  const auto write = [&] {
    std::vector<std::string> problems = bench->problems();
    problems.insert(problems.end(), failures.begin(), failures.end());
    result["operations"] = bench->lines();
    result["models"] = models;
    result["problems"] = problems;
    // Standard output gets the whole once.
    return options.out == "-" ? absl::OkStatus() : WriteText(options.out, result.dump(2) + "\n");
  };
  const auto run = [&](const std::string& section, absl::FunctionRef<absl::Status()> measure) {
    std::fprintf(stderr, "%s\n", section.c_str());
    if (const absl::Status status = measure(); !status.ok()) {
      failures.push_back(absl::StrCat(section, ": ", status.ToString()));
    }
    return write();
  };
  for (const Kind& kind : kOperations) {
    if (absl::c_linear_search(options.operations, kind.name)) {
      KVBLEND_RETURN_IF_ERROR(run(kind.name, [&] { return kind.measure(*bench); }));
    }
  }
  for (const ModelShape& shape : options.models) {
    KVBLEND_RETURN_IF_ERROR(run(shape.name, [&]() -> absl::Status {
      KVBLEND_ASSIGN_OR_RETURN(auto model, MeasureModel(*bench, shape, options.device));
      models.push_back(std::move(model));
      return absl::OkStatus();
    }));
  }
  KVBLEND_RETURN_IF_ERROR(write());
  if (options.out == "-") KVBLEND_RETURN_IF_ERROR(WriteText("-", result.dump(2) + "\n"));
  if (result["problems"].empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrJoin(result["problems"].get<std::vector<std::string>>(), "\n"));
}

}  // namespace
}  // namespace kvblend::gpu_bench

int main(int argc, char** argv) {
  return kvblend::ExitCode(kvblend::gpu_bench::Run(kvblend::gpu_bench::Parse(argc, argv)));
}
