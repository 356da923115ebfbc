// Which device is chosen, from what was asked for and what a probe reported.
#include "kernels/device_choice.h"

#include "gmock/gmock.h"

namespace kvblend::kernels {
namespace {

using testing::HasSubstr;

const CudaDevice kOld{"Old GPU", 7, 5}, kNew{"New GPU", 9, 0};

CudaProbe Found(std::vector<CudaDevice> devices) {
  return {.in_build = true, .error = "", .devices = std::move(devices)};
}
CudaProbe NoBuild() { return {}; }
CudaProbe NoDriver() { return {.in_build = true, .error = "CUDA driver is missing", .devices = {}}; }

struct Case {
  const char* asked;
  CudaProbe probe;
  const char* name;    // chosen; nullptr: refused with `code`
  const char* reason;  // or the error's message, in part
  absl::StatusCode code = absl::StatusCode::kOk;
};

TEST(DeviceChoiceTest, FollowsWhatWasAskedForAndWhatIsThere) {
  constexpr auto kMissing = absl::StatusCode::kFailedPrecondition;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {"auto", NoBuild(), "cpu", "this build has no CUDA"},
      {"auto", NoDriver(), "cpu", "no usable GPU: CUDA driver is missing"},
      {"auto", Found({}), "cpu", "no usable GPU: none is visible"},
      {"auto", Found({kOld}), "cpu",
       "no usable GPU: Old GPU with compute capability 7.5; needed: at least 8.0"},
      {"auto", Found({kOld, kNew, kNew}), "cuda:1", "New GPU with compute capability 9.0"},
      {"cuda", Found({kOld, kNew}), "cuda:1", "New GPU with compute capability 9.0"},
      {"cuda:1", Found({kNew, kNew}), "cuda:1", "New GPU with compute capability 9.0"},
      {"cpu", Found({kNew}), "cpu", "as asked for"},
      {"reference", Found({kNew}), "reference", "as asked for"},
      {"cuda", NoBuild(), nullptr,
       "device is 'cuda', but this build has no CUDA; it takes a build with -DKVBLEND_CUDA=ON", kMissing},
      {"cuda:0", NoBuild(), nullptr, "device is 'cuda:0', but this build has no CUDA", kMissing},
      {"cuda", NoDriver(), nullptr, "device is 'cuda', but no usable GPU: CUDA driver is missing", kMissing},
      {"cuda:0", Found({}), nullptr, "none is visible", kMissing},
      {"cuda", Found({kOld}), nullptr, "Old GPU with compute capability 7.5", kMissing},
      {"cuda:0", Found({kOld, kNew}), nullptr,
       "device is 'cuda:0', which is Old GPU with compute capability 7.5; needed: at least 8.0", kMissing},
      {"cuda:1", Found({kNew}), nullptr, "device is 'cuda:1', but 1 CUDA device is visible; allowed: cuda:0",
       kInvalid},
      {"cuda:7", Found({kNew, kNew}), nullptr,
       "device is 'cuda:7', but 2 CUDA devices are visible; allowed: cuda:0 to cuda:1", kInvalid},
      {"gpu", Found({kNew}), nullptr, "device is 'gpu'; allowed: auto, cpu, cuda, cuda:N (from 0), reference",
       kInvalid}};
  for (const Case& test : cases) {
    SCOPED_TRACE(test.asked);
    const auto choice = ChooseDevice(test.asked, [&] { return test.probe; });
    if (test.name == nullptr) {
      EXPECT_EQ(choice.status().code(), test.code) << test.reason;
      EXPECT_THAT(std::string(choice.status().message()), HasSubstr(test.reason));
      continue;
    }
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->name(), test.name);
    EXPECT_EQ(choice->reason, test.reason);
  }
}

TEST(DeviceChoiceTest, LooksForGpusOnlyWhenOneMayBeChosen) {
  for (const char* device : {"cpu", "reference", "tpu"}) {
    bool looked = false;
    (void)ChooseDevice(device, [&] {
      looked = true;
      return NoBuild();
    });
    EXPECT_FALSE(looked) << device;
  }
}

TEST(DeviceChoiceTest, NamesAreExact) {
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:12", "reference"}) {
    EXPECT_TRUE(CheckDeviceName(name).ok()) << name;
  }
  for (const char* name :
       {"", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1x", "cuda:99999999999", "cuda0"}) {
    EXPECT_EQ(CheckDeviceName(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(DeviceChoiceTest, ABuildWithoutCudaSaysWhatToBuild) {
  const auto refused =
      CreateBackend({.kind = DeviceChoice::Kind::kCuda, .cuda_index = 9999, .reason = ""}, {});
  EXPECT_FALSE(refused.ok());
  if (!ProbeCuda().in_build) {
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("-DKVBLEND_CUDA=ON"));
  }
  EXPECT_EQ((*CreateBackend({.kind = DeviceChoice::Kind::kReference, .reason = ""}, {}))->name(),
            "reference");
}

}  // namespace
}  // namespace kvblend::kernels
