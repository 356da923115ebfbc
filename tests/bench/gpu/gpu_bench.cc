// Speed of the CUDA backend: its operations in Mistral-7B's shapes, each beside the fastest bf16 product and
// the fastest copy of the same run, and whole prefills of models with random weights. One JSON object.
//
//   gpu_bench [--device=N] [--out=FILE] [--models=NAME,...|none] [--tiny]
//
// --tiny: shapes that the emulated device is through with in seconds; the times then say nothing.
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "engine/api/status_macros.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/bench/gpu/bench.h"
#include "tests/bench/gpu/models.h"
#include "tests/bench/gpu/operations.h"

namespace kvblend::gpu_bench {
namespace {

constexpr char kUsage[] =
    "Usage: gpu_bench [--device=N] [--out=FILE] [--models=NAME,...|none] [--tiny]\n"
    "Without --out the JSON goes to standard output. Models: Mistral-7B, Llama-3.1-8B, Llama-2-13B.\n";

struct Options {
  int device = 0;
  bool tiny = false;
  std::string out;
  std::vector<ModelShape> models = KnownShapes();
};

absl::StatusOr<std::vector<ModelShape>> ParseModels(const std::string& list) {
  std::vector<ModelShape> chosen;
  if (list == "none") return chosen;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(list, ','))) {
    std::vector<std::string> known;
    for (const ModelShape& shape : KnownShapes()) {
      known.push_back(shape.name);
      if (shape.name == name) chosen.push_back(shape);
    }
    if (chosen.empty() || chosen.back().name != name) {
      return absl::InvalidArgumentError(
          absl::StrCat("--models names '", name, "'; allowed: none, ", absl::StrJoin(known, ", ")));
    }
  }
  return chosen;
}

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--tiny") {
      options.tiny = true;
      options.models = {TinyShape()};
    } else if (absl::ConsumePrefix(&argument, "--device=")) {
      if (!absl::SimpleAtoi(argument, &options.device))
        return absl::InvalidArgumentError(absl::StrCat("--device is '", argument, "'; allowed: a number"));
    } else if (absl::ConsumePrefix(&argument, "--out=")) {
      options.out = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--models=")) {
      KVBLEND_ASSIGN_OR_RETURN(options.models, ParseModels(std::string(argument)));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument '", argument, "'"));
    }
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
  Lines lines;
  KVBLEND_RETURN_IF_ERROR(MeasureAttention(*bench, lines));
  KVBLEND_RETURN_IF_ERROR(MeasureMovement(*bench, lines));
  KVBLEND_RETURN_IF_ERROR(MeasureLinear(*bench, lines));
  result["operations"] = std::move(lines);
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
  const auto options = kvblend::gpu_bench::Parse(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n%s", std::string(options.status().message()).c_str(),
                 kvblend::gpu_bench::kUsage);
    return 2;
  }
  const auto result = kvblend::gpu_bench::Run(*options);
  if (!result.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  const std::string json = result->dump(2) + "\n";
  if (options->out.empty()) {
    std::fputs(json.c_str(), stdout);
    return 0;
  }
  std::ofstream file(options->out);
  file << json;
  file.close();
  if (!file) {
    std::fprintf(stderr, "gpu_bench: can't write %s\n", options->out.c_str());
    return 1;
  }
  return 0;
}
