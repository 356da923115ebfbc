#include <algorithm>
#include <memory>
#include <mutex>

#include "absl/strings/str_replace.h"
#include "tests/cuda_emulation/launcher.h"

namespace kvblend::cuda_emulation {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<KernelEntry>> kernels;
};

Registry& TheRegistry() {
  static auto* registry = new Registry();
  return *registry;
}

// "... RegisteredKernel<Kernel>::Register() [with auto Kernel = ns::NormKernel<float>]", or clang's
// "[Kernel = &ns::NormKernel<float>]", becomes "NormKernel<float>".
std::string ShortName(std::string_view function) {
  const size_t equals = function.find("Kernel = ");
  std::string name(equals == std::string_view::npos ? function : function.substr(equals + 9));
  name = name.substr(0, name.find_last_of(']'));
  if (const size_t alias = name.find("; "); alias != std::string::npos) name.resize(alias);
  return absl::StrReplaceAll(
      name,
      {{"kvblend::kernels::cuda::", ""}, {"{anonymous}::", ""}, {"(anonymous namespace)::", ""}, {"&", ""}});
}

template <typename Keep>
std::vector<std::string> Names(const Keep& keep) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& kernel : registry.kernels) {
    if (keep(*kernel)) names.push_back(kernel->name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

KernelEntry& RegisterKernel(std::string_view pretty_function) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  registry.kernels.push_back(std::make_unique<KernelEntry>());
  registry.kernels.back()->name = ShortName(pretty_function);
  return *registry.kernels.back();
}

std::vector<std::string> AllKernels() {
  return Names([](const KernelEntry&) { return true; });
}
std::vector<std::string> KernelsNotExecuted() {
  return Names([](const KernelEntry& kernel) { return !kernel.executed; });
}

}  // namespace kvblend::cuda_emulation
