// The self-check must let a right backend through and stop every wrong one.
#include "engine/serve/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "engine/api/model_report.h"
#include "engine/kv/correction_file.h"
#include "tests/support/backend_decorator.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend {
namespace {

using testing::HasSubstr;

absl::StatusOr<double> CheckOn(std::unique_ptr<kernels::Backend> backend, const std::string& kv_dtype = "f32",
                               int32_t context = 1024, const std::string& chunk_format = "auto") {
  const std::string path = test_support::TemporaryPath("self_check.gguf");
  test_support::TinyModelSpec spec;
  spec.context_length = context;
  if (const absl::Status written = test_support::WriteTinyModel(path, spec); !written.ok()) return written;
  EngineOptions options;
  options.model_path = path;
  options.kv_dtype = kv_dtype;
  options.chunk_format = chunk_format;
  auto runtime = ModelRuntime::LoadOn(std::move(backend), options);
  if (!runtime.ok()) return runtime.status();
  if (chunk_format != "auto") {
    EXPECT_EQ(kernels::Name((*runtime)->key_space.format.encoding), chunk_format);
  }
  return RunSelfCheck(**runtime);
}

TEST(SelfCheck, PassesOnTheReferenceBackendInEveryKvFormat) {
  EXPECT_LT(CheckOn(kernels::CreateReferenceBackend(), "f32").value(), 1e-5);
  EXPECT_LT(CheckOn(kernels::CreateReferenceBackend(), "bf16").value(), 0.05);
  EXPECT_LT(CheckOn(kernels::CreateReferenceBackend(), "f16").value(), 0.01);
}

TEST(SelfCheck, PassesInEveryFormatOfStoredChunks) {
  for (const char* format : {"int8", "int4", "fp8", "bf16", "f16", "f32"}) {
    const auto error = CheckOn(kernels::CreateReferenceBackend(), "f32", 1024, format);
    EXPECT_TRUE(error.ok()) << format << ": " << error.status();
  }
  EXPECT_THAT(CheckOn(kernels::CreateReferenceBackend(), "f32", 1024, "fp4").status().message(),
              HasSubstr("allowed: auto, int8, int4, fp8, bf16, f16, f32"));
}

TEST(SelfCheck, PassesWithTheShortestContextThatItCanUseAndSaysWhichThatIs) {
  EXPECT_TRUE(CheckOn(kernels::CreateReferenceBackend(), "f32", /*context=*/5).ok());
  const absl::Status status = CheckOn(kernels::CreateReferenceBackend(), "f32", /*context=*/4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a context of 4 tokens is too short"));
}

/// What an engine with default settings says of a model when it begins, and what InspectModel says.
void ExpectTheSame(const std::string& path, int32_t context, absl::StatusCode expected) {
  SCOPED_TRACE(testing::Message() << "context " << context);
  EngineOptions options;
  options.model_path = path;
  options.device = "cpu";
  options.num_threads = 1;
  options.max_context_tokens = context;
  const absl::Status created = Engine::Create(options).status();
  EXPECT_EQ(created.code(), expected) << created;
  const absl::StatusOr<ModelReport> report = InspectModel(path, context);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->runs, created);
}

TEST(InspectModel, SaysWhatAnEngineSays) {
  const test_support::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const test_support::TinyModelSpec& spec) {
    EXPECT_TRUE(test_support::WriteTinyModel(folder.path() + "/" + name, spec).ok());
    return folder.path() + "/" + name;
  };
  ExpectTheSame(write("1", {.context_length = 1}), 0, absl::StatusCode::kInvalidArgument);
  ExpectTheSame(write("4", {.context_length = 4}), 0, absl::StatusCode::kInvalidArgument);
  ExpectTheSame(write("5", {.context_length = 5}), 0, absl::StatusCode::kOk);
  const std::string path = write("model", {});
  ExpectTheSame(path, 4, absl::StatusCode::kInvalidArgument);
  ExpectTheSame(path, 0, absl::StatusCode::kOk);

  std::ofstream(CorrectionPath(path)) << "no correction";
  ExpectTheSame(path, 0, absl::StatusCode::kInvalidArgument);
  kv::LearnedCorrection other;  // of a model that is not this one
  other.num_kv_heads = 2;
  other.head_dim = 8;
  other.layers.resize(2);
  std::ofstream(CorrectionPath(path), std::ios::binary) << kv::EncodeCorrection(other);
  ExpectTheSame(path, 0, absl::StatusCode::kInvalidArgument);
}

/// Mixes up K and V of what comes from the store.
class SwapsStoredKeysAndValues final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

 protected:
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    std::swap(k.data, v.data);
    return BackendDecorator::DoKvLoad(stream, plan, rope, k, v, pages);
  }
};

/// Selected rows see the future: the peers' bottom-right mask by row index.
class MasksByRowIndex final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

 protected:
  absl::StatusOr<std::unique_ptr<Plan>> DoPlanBatch(const kernels::BatchSpec& spec) override {
    std::vector<int32_t> positions(spec.positions.begin(), spec.positions.end());
    if (spec.kv_len.size() == 1) {
      const int32_t rows = static_cast<int32_t>(positions.size());
      for (int32_t i = 0; i < rows; ++i) positions[i] = spec.kv_len[0] - rows + i;
    }
    kernels::BatchSpec wrong = spec;
    wrong.positions = positions;
    return BackendDecorator::DoPlanBatch(wrong);
  }
};

class RotatesNothing final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

 protected:
  absl::Status DoRope(Stream& stream, const Plan& plan, const kernels::RopeTable& rope, int32_t num_heads,
                      Out x) override {
    // Right in full prefill, which has one row per position, and wrong for gathered rows.
    if (plan.num_rows() == plan.total_kv_len())
      return BackendDecorator::DoRope(stream, plan, rope, num_heads, x);
    return absl::OkStatus();
  }
};

template <typename Faulty>
void ExpectRefused() {
  const absl::Status status = CheckOn(std::make_unique<Faulty>(kernels::CreateReferenceBackend())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("self-check failed: blended prefill differs from full prefill"));
}

TEST(SelfCheck, RefusesABackendThatMixesUpStoredKv) { ExpectRefused<SwapsStoredKeysAndValues>(); }
TEST(SelfCheck, RefusesABackendThatMasksByRowIndex) { ExpectRefused<MasksByRowIndex>(); }
TEST(SelfCheck, RefusesABackendThatDoesNotRotateGatheredQueries) { ExpectRefused<RotatesNothing>(); }

}  // namespace
}  // namespace kvblend
