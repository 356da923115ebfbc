// What the conformance tests share: the backends under test, tensors in a backend's memory, paged KV, an
// attention oracle in double precision, and comparison against a bound per element.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

using enum DataType;

/// Relative error of one rounding to the type: half a unit in the last place.
constexpr double UnitRoundoff(DataType dtype) {
  return dtype == kF32 ? 0x1p-24 : dtype == kBF16 ? 0x1p-8 : 0x1p-11;
}

/// Defined once per test program: the backends it knows, "reference" among them, and which the suite tests.
std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends();
bool IsUnderTest(const std::string& name);

/// One instance per name for the whole program.
Backend& TestBackend(const std::string& name);
std::vector<std::string> TestBackendNames();
/// The calling thread's stream on a backend. Tensors move their values on it too, so they come in order with
/// the operations that a test enqueues there.
Stream& TestStream(Backend& backend);

using Rng = std::mt19937;

/// Copies into a backend's memory, and out of it, on its TestStream, and waits. Errors fail the test.
void CopyIn(Backend& backend, Buffer& to, const void* from, int64_t bytes);
void CopyOut(Backend& backend, void* to, const Buffer& from, int64_t bytes);

/// A matrix in a backend's memory with a host copy. Elements between cols and row_stride hold a sentinel.
class Tensor {
 public:
  Tensor(Backend& backend, DataType dtype, int64_t rows, int64_t cols, int64_t row_stride = 0);

  /// Normally distributed values, rounded to the dtype.
  Tensor& Randomize(Rng& rng, double deviation = 1.0);
  Tensor& Fill(const std::function<float(int64_t row, int64_t col)>& value);

  Backend& backend() const { return backend_; }
  MatrixView view() { return {buffer_->data(), dtype_, rows_, cols_, row_stride_}; }
  DataType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  /// The value as last written by the host or read by Download.
  double at(int64_t row, int64_t col) const;
  /// Reads the backend's memory; fails the test when a sentinel has changed.
  void Download();
  /// All values row by row. Downloads first.
  std::vector<double> Values();
  std::vector<std::byte> Bytes();

 private:
  void Upload();

  Backend& backend_;
  const DataType dtype_;
  const int64_t rows_, cols_, row_stride_;
  std::vector<std::byte> host_;
  std::unique_ptr<Buffer> buffer_;
};

/// Ragged sequences over pages in shuffled order.
struct BatchCase {
  struct Sequence {
    int32_t kv_len;
    std::vector<int32_t> positions;
  };
  std::vector<Sequence> sequences;
  int32_t page_size = 16;
  int32_t sliding_window = 0;

  int64_t num_rows() const;
};

std::vector<int32_t> Range(int32_t begin, int32_t end);
/// `count` different positions below `end`, ascending.
std::vector<int32_t> RandomPositions(Rng& rng, int32_t count, int32_t end);

/// A BatchCase laid out: the plan, and the KV of one layer, in the layout that the backend likes best. Slots
/// that no sequence owns hold NaN. The plan has two lists of pages, of which pages() goes by the second; the
/// first has nothing but a page that no sequence owns.
class PagedBatch {
 public:
  PagedBatch(Backend& backend, const BatchCase& batch, int32_t num_kv_heads, int32_t head_dim, DataType dtype,
             Rng& rng);

  const BatchCase& batch() const { return batch_; }
  const BatchPlan& plan() const { return *plan_; }
  AttentionSpec Spec(int32_t num_heads, float scale) const {
    return {num_heads, scale, batch_.sliding_window};
  }
  int32_t num_kv_heads() const { return num_kv_heads_; }
  KvPagesView pages();
  double k(size_t sequence, int64_t position, int64_t head, int64_t d) const;
  double v(size_t sequence, int64_t position, int64_t head, int64_t d) const;
  /// Element of k_tensor() and of v_tensor(), counted row by row, that holds element d of `slot_row`.
  int64_t KeyElement(int64_t slot_row, int64_t d) const;
  int64_t ValueElement(int64_t slot_row, int64_t d) const;
  /// Fills all slots of all sequences with random values, or with NaN.
  void Randomize(Rng& rng);
  void Clear();
  void Download();
  /// Where (sequence, position, head) lies: of layout kRows, the row of the k and v tensors.
  int64_t SlotRow(size_t sequence, int64_t position, int64_t head) const;
  Tensor& k_tensor() { return k_; }
  Tensor& v_tensor() { return v_; }
  const Tensor& k_tensor() const { return k_; }

 private:
  BatchCase batch_;
  int32_t num_kv_heads_;
  PageLayout layout_;
  std::vector<std::vector<int32_t>> pages_of_;  // [sequence][page]
  int64_t num_pages_;
  Tensor k_, v_;  // [num_pages * num_kv_heads * page_size, head_dim]
  std::unique_ptr<BatchPlan> plan_;
};

/// Attention in double precision, straight from the definition, with what bounds the error of other
/// computations of it.
struct AttentionOracle {
  std::vector<double> out;    // [rows, heads, head_dim]
  std::vector<double> bound;  // the same: largest admissible error
  std::vector<double> mass;   // [total_kv_len]
  std::vector<double> mass_bound;
};

/// Whether attention of many rows rounds to codes of 16 bits.
bool AttendsInCodes(Backend& backend);
/// What attention may round to where pages are not f32: codes of 16 bits are held to bf16's roundings.
DataType AttentionDtype(Backend& backend);

struct OracleOptions {
  DataType out = kF32;
  std::optional<DataType> pages = std::nullopt;          // in place of kv's
  const std::vector<int32_t>* mask_positions = nullptr;  // that each row is masked by, in place of the plan's
  double soft_cap = 0;                                   // as AttentionSpec::logit_soft_cap
  const Tensor* sinks = nullptr;                         // as AttentionSpec::sinks
};
/// What attention gives for the values that the backend of `q` holds.
AttentionOracle ComputeAttention(const PagedBatch& kv, const Tensor& q, int32_t num_heads, double scale,
                                 const OracleOptions& options = {});

/// What the backend of `q` computes, in rows as wide as those of `q`. Errors fail the test.
Tensor Attend(const BatchPlan& plan, const KvPagesView& pages, Tensor& q, const AttentionSpec& spec,
              DataType out = kF32);
Tensor Attend(PagedBatch& kv, Tensor& q, int32_t num_heads, float scale, DataType out = kF32);
/// The same for AttentionMass.
Tensor Mass(const BatchPlan& plan, const KvPagesView& pages, Tensor& q, const AttentionSpec& spec);
Tensor Mass(PagedBatch& kv, Tensor& q, int32_t num_heads, float scale);

/// The largest |actual - expected| / bound, and where.
struct Worst {
  double ratio = 0;
  size_t index = 0;
  std::string description;
};
Worst FindWorst(const std::vector<double>& actual, const std::vector<double>& expected,
                const std::vector<double>& bound);

/// |actual[i] - expected[i]| <= bound[i] for all i; prints the worst element otherwise.
void ExpectWithin(const std::vector<double>& actual, const std::vector<double>& expected,
                  const std::vector<double>& bound);

/// What an element is to be, and how far off it may be.
struct Expected {
  double value, bound;
};
/// ExpectWithin for every element. `expected` is asked before `actual` is downloaded, so that at() still
/// gives it what an operation has found there.
void ExpectElements(Tensor& actual, const std::function<Expected(int64_t row, int64_t col)>& expected);

/// The status is kInvalidArgument, and all `parts` stand in its message.
void ExpectInvalid(const absl::Status& status, std::initializer_list<absl::string_view> parts);

/// Bit by bit, field by field.
void ExpectSameToken(const SampledToken& actual, const SampledToken& expected);

/// Packs the rows of `weights`.
std::unique_ptr<PackedWeights> Pack(Backend& backend, const Tensor& weights, WeightUsage usage);
std::unique_ptr<RopeTable> MakeRope(Backend& backend, RopeLayout layout, int64_t head_dim,
                                    int64_t max_position);

/// A test run once per backend: `backend` and its TestStream are ready.
class ConformanceTest : public testing::TestWithParam<std::string> {
 protected:
  /// The dtypes that RmsNorm, SiluMul and SelectiveAttention may write.
  std::vector<DataType> OutputTypes() const {
    if (backend.compute_dtype() == kF32) return {kF32};
    return {kF32, backend.compute_dtype()};
  }
  /// Normally distributed f32.
  Tensor Random(int64_t rows, int64_t cols, int64_t row_stride = 0) {
    Tensor tensor(backend, kF32, rows, cols, row_stride);
    tensor.Randomize(rng);
    return tensor;
  }

  Backend& backend = TestBackend(GetParam());
  Stream& stream = TestStream(backend);
  Rng rng{20261121};
};

#define INSTANTIATE_CONFORMANCE(suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(TestBackendNames()), \
                           [](const auto& info) { return info.param; })

#define ASSERT_OK(expression) ASSERT_EQ((expression), absl::OkStatus())
#define EXPECT_OK(expression) EXPECT_EQ((expression), absl::OkStatus())

}  // namespace kvblend::kernels
