#include "tests/conformance/harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/host/float_convert.h"
#include "tests/conformance/normal_values.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

constexpr std::byte kSentinel{0xA5};

std::map<std::string, std::unique_ptr<Backend>>& Backends() {
  static auto* backends = [] {
    auto* map = new std::map<std::string, std::unique_ptr<Backend>>(MakeTestBackends());
    // Threads must be joined before the sanitizers look for leaks.
    std::atexit([] { Backends().clear(); });
    return map;
  }();
  return *backends;
}

}  // namespace

Backend& TestBackend(const std::string& name) { return *Backends().at(name); }

Stream& TestStream(Backend& backend) {
  // Destroyed before the backends: a thread's objects go first.
  static thread_local std::map<Backend*, std::unique_ptr<Stream>> streams;
  auto& stream = streams[&backend];
  if (stream == nullptr) stream = backend.CreateStream().value();
  return *stream;
}

void CopyIn(Backend& backend, Buffer& to, const void* from, int64_t bytes) {
  EXPECT_OK(backend.CopyFromHost(TestStream(backend), to.data(), from, bytes));
  EXPECT_OK(backend.Synchronize(TestStream(backend)));
}
void CopyOut(Backend& backend, void* to, const Buffer& from, int64_t bytes) {
  EXPECT_OK(backend.CopyToHost(TestStream(backend), to, from.data(), bytes));
  EXPECT_OK(backend.Synchronize(TestStream(backend)));
}

std::vector<std::string> TestBackendNames() {
  std::vector<std::string> names;
  for (const auto& [name, backend] : Backends()) {
    if (IsUnderTest(name)) names.push_back(name);
  }
  return names;
}

Tensor::Tensor(Backend& backend, DataType dtype, int64_t rows, int64_t cols, int64_t row_stride)
    : backend_(backend),
      dtype_(dtype),
      rows_(rows),
      cols_(cols),
      row_stride_(row_stride == 0 ? cols : row_stride),
      // The last row ends with its columns, so that reading on is an error that AddressSanitizer sees.
      host_(rows == 0 ? 0 : ((rows - 1) * row_stride_ + cols) * SizeOf(dtype), kSentinel),
      buffer_(backend.Allocate(host_.size()).value()) {
  Upload();
}

void Tensor::Upload() { CopyIn(backend_, *buffer_, host_.data(), host_.size()); }

Tensor& Tensor::Randomize(Rng& rng, double deviation) {
  NormalValues normal(0.0f, static_cast<float>(deviation));
  return Fill([&](int64_t, int64_t) { return normal(rng); });
}

Tensor& Tensor::Fill(const std::function<float(int64_t, int64_t)>& value) {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < cols_; ++c) StoreElement(host_.data(), dtype_, r * row_stride_ + c, value(r, c));
  }
  Upload();
  return *this;
}

double Tensor::at(int64_t row, int64_t col) const {
  return LoadElement(host_.data(), dtype_, row * row_stride_ + col);
}

void Tensor::Download() {
  CopyOut(backend_, host_.data(), *buffer_, host_.size());
  for (int64_t r = 0; r + 1 < rows_; ++r) {
    for (int64_t i = (r * row_stride_ + cols_) * SizeOf(dtype_); i < (r + 1) * row_stride_ * SizeOf(dtype_);
         ++i) {
      ASSERT_EQ(host_[i], kSentinel) << "written between the columns and the next row, row " << r;
    }
  }
}

std::vector<double> Tensor::Values() {
  Download();
  std::vector<double> values;
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < cols_; ++c) values.push_back(at(r, c));
  }
  return values;
}

std::vector<std::byte> Tensor::Bytes() {
  Download();
  return host_;
}

int64_t BatchCase::num_rows() const {
  int64_t rows = 0;
  for (const Sequence& sequence : sequences) rows += static_cast<int64_t>(sequence.positions.size());
  return rows;
}

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

std::vector<int32_t> RandomPositions(Rng& rng, int32_t count, int32_t end) {
  std::vector<int32_t> all = Range(0, end);
  std::shuffle(all.begin(), all.end(), rng);
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

namespace {

constexpr int64_t kUnownedPages = 2;

int64_t CountPages(const BatchCase& batch) {
  int64_t pages = kUnownedPages;
  for (const auto& sequence : batch.sequences)
    pages += (sequence.kv_len + batch.page_size - 1) / batch.page_size;
  return pages;
}

}  // namespace

PagedBatch::PagedBatch(Backend& backend, const BatchCase& batch, int32_t num_kv_heads, int32_t head_dim,
                       DataType dtype, Rng& rng)
    : batch_(batch),
      num_kv_heads_(num_kv_heads),
      layout_(backend.best_page_layout(dtype, batch.page_size, head_dim)),
      num_pages_(CountPages(batch)),
      k_(backend, dtype, num_pages_ * num_kv_heads * batch.page_size, head_dim),
      v_(backend, dtype, num_pages_ * num_kv_heads * batch.page_size, head_dim) {
  std::vector<int32_t> pages = Range(0, static_cast<int32_t>(num_pages_));
  std::shuffle(pages.begin(), pages.end(), rng);
  std::vector<int32_t> row_indptr{0}, positions, kv_len, page_indptr{0};
  std::vector<int32_t> page_indices(num_pages_ - kUnownedPages, pages.back());
  for (const auto& sequence : batch.sequences) {
    const int32_t count = (sequence.kv_len + batch.page_size - 1) / batch.page_size;
    pages_of_.emplace_back(pages.begin() + page_indptr.back(), pages.begin() + page_indptr.back() + count);
    page_indices.insert(page_indices.end(), pages_of_.back().begin(), pages_of_.back().end());
    page_indptr.push_back(page_indptr.back() + count);
    positions.insert(positions.end(), sequence.positions.begin(), sequence.positions.end());
    row_indptr.push_back(static_cast<int32_t>(positions.size()));
    kv_len.push_back(sequence.kv_len);
  }
  plan_ = backend
              .PlanBatch({.row_indptr = row_indptr,
                          .positions = positions,
                          .kv_len = kv_len,
                          .page_indptr = page_indptr,
                          .page_indices = page_indices,
                          .page_size = batch.page_size,
                          .num_page_lists = 2})
              .value();
  Randomize(rng);
}

KvPagesView PagedBatch::pages() {
  return {.k = k_.view().data,
          .v = v_.view().data,
          .dtype = k_.view().dtype,
          .layout = layout_,
          .num_pages = num_pages_,
          .num_kv_heads = num_kv_heads_,
          .page_size = batch_.page_size,
          .head_dim = static_cast<int32_t>(k_.cols()),
          .page_list = 1};
}

int64_t PagedBatch::SlotRow(size_t sequence, int64_t position, int64_t head) const {
  const int64_t page = pages_of_[sequence][position / batch_.page_size];
  return (page * num_kv_heads_ + head) * batch_.page_size + position % batch_.page_size;
}

// As kernels/tensor.h describes the layouts.
int64_t PagedBatch::KeyElement(int64_t slot_row, int64_t d) const {
  const int64_t head_dim = k_.cols();
  if (layout_ == PageLayout::kRows) return slot_row * head_dim + d;
  const int64_t tile = slot_row / kPageTile, token = slot_row % kPageTile;
  return ((tile * (head_dim / 2) + d / 2) * kPageTile + token) * 2 + d % 2;
}
int64_t PagedBatch::ValueElement(int64_t slot_row, int64_t d) const {
  const int64_t head_dim = v_.cols();
  if (layout_ == PageLayout::kRows) return slot_row * head_dim + d;
  return (slot_row / 2 * head_dim + d) * 2 + slot_row % 2;
}

double PagedBatch::k(size_t s, int64_t position, int64_t head, int64_t d) const {
  const int64_t element = KeyElement(SlotRow(s, position, head), d);
  return k_.at(element / k_.cols(), element % k_.cols());
}
double PagedBatch::v(size_t s, int64_t position, int64_t head, int64_t d) const {
  const int64_t element = ValueElement(SlotRow(s, position, head), d);
  return v_.at(element / v_.cols(), element % v_.cols());
}

void PagedBatch::Randomize(Rng& rng) {
  const int64_t head_dim = k_.cols();
  NormalValues normal;
  const auto fill = [&](Tensor& tensor, int64_t (PagedBatch::*element)(int64_t, int64_t) const) {
    std::vector<float> values(tensor.rows() * head_dim, std::numeric_limits<float>::quiet_NaN());
    for (size_t s = 0; s < batch_.sequences.size(); ++s) {
      for (int64_t p = 0; p < batch_.sequences[s].kv_len; ++p) {
        for (int64_t h = 0; h < num_kv_heads_; ++h) {
          for (int64_t d = 0; d < head_dim; ++d) values[(this->*element)(SlotRow(s, p, h), d)] = normal(rng);
        }
      }
    }
    tensor.Fill([&](int64_t row, int64_t col) { return values[row * head_dim + col]; });
  };
  fill(k_, &PagedBatch::KeyElement);
  fill(v_, &PagedBatch::ValueElement);
}

void PagedBatch::Clear() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Tensor* tensor : {&k_, &v_}) tensor->Fill([&](int64_t, int64_t) { return nan; });
}

void PagedBatch::Download() {
  k_.Download();
  v_.Download();
}

bool AttendsInCodes(Backend& backend) {
  return backend.Describe().find("attention in int16") != std::string::npos;
}
DataType AttentionDtype(Backend& backend) {
  return AttendsInCodes(backend) ? kBF16 : backend.compute_dtype();
}

AttentionOracle ComputeAttention(const PagedBatch& kv, const Tensor& q, int32_t num_heads, double scale,
                                 const OracleOptions& options) {
  const BatchCase& batch = kv.batch();
  const int64_t num_kv_heads = kv.num_kv_heads(), head_dim = kv.k_tensor().cols();
  const bool codes = AttendsInCodes(q.backend());
  const DataType compute = AttentionDtype(q.backend());
  const DataType pages_dtype = options.pages.value_or(kv.k_tensor().dtype());
  // f32 pages are never rounded; otherwise q, the probabilities and, from f16, k and v are rounded to
  // `compute`.
  const double u = pages_dtype == kF32 ? 0x1p-24 : UnitRoundoff(compute);
  const double kv_u = pages_dtype == kF16 && compute == kBF16 ? u : 0;
  AttentionOracle oracle;
  oracle.out.resize(q.rows() * num_heads * head_dim);
  oracle.bound.resize(oracle.out.size());
  int64_t row = 0, kv_offset = 0;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const auto& sequence = batch.sequences[s];
    // K and V as [kv head][key][head_dim], converted once.
    std::vector<double> keys, values;
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      for (int64_t i = 0; i < sequence.kv_len * head_dim; ++i) {
        keys.push_back(kv.k(s, i / head_dim, h, i % head_dim));
        values.push_back(kv.v(s, i / head_dim, h, i % head_dim));
      }
    }
    oracle.mass.resize(kv_offset + sequence.kv_len, 0.0);
    oracle.mass_bound.resize(kv_offset + sequence.kv_len, 1e-30);
    for (size_t i = 0; i < sequence.positions.size(); ++i, ++row) {
      const int64_t position =
          options.mask_positions == nullptr ? sequence.positions[i] : (*options.mask_positions)[row];
      const int64_t first =
          batch.sliding_window == 0 ? 0 : std::max<int64_t>(0, position - batch.sliding_window + 1);
      for (int64_t h = 0; h < num_heads; ++h) {
        const int64_t kv_begin = h / (num_heads / num_kv_heads) * sequence.kv_len;
        std::vector<double> query(head_dim), p;
        for (int64_t d = 0; d < head_dim; ++d) query[d] = q.at(row, h * head_dim + d);
        double max = -std::numeric_limits<double>::infinity(), sum = 0, score_error = 0;
        for (int64_t key = first; key <= position; ++key) {
          const double* k = keys.data() + (kv_begin + key) * head_dim;
          double dot = 0, squares = 0, magnitude = 0;
          for (int64_t d = 0; d < head_dim; ++d) {
            const double product = query[d] * k[d];
            dot += product;
            squares += product * product;
            magnitude += std::abs(product);
          }
          p.push_back(dot * scale);
          // Roundings of q (and k) are independent: their effect grows with the 2-norm of the products; 4 u
          // times it is more than 5 standard deviations. Sums in f32 add at most a few ulps of the 1-norm.
          score_error = std::max(
              score_error, std::abs(scale) * (4 * (u + kv_u) * std::sqrt(squares) + 8 * 0x1p-24 * magnitude) +
                               4 * 0x1p-24 * std::abs(p.back()));
          if (options.soft_cap != 0) p.back() = options.soft_cap * std::tanh(p.back() / options.soft_cap);
          max = std::max(max, p.back());
        }
        // The cap is flatter than 1 everywhere, and its own roundings are a few ulps of it.
        score_error += 8 * 0x1p-24 * options.soft_cap;
        if (options.sinks != nullptr) {
          const double sink = options.sinks->at(0, h);
          score_error = std::max(score_error, 4 * 0x1p-24 * std::abs(sink));
          max = std::max(max, sink);
          sum = std::exp(sink - max);
        }
        for (double& x : p) sum += x = std::exp(x - max);
        // A softmax over scores that are off by at most e is off by a factor of at most exp(2 e).
        const double relative = std::expm1(2 * score_error) + 16 * 0x1p-24;
        for (size_t j = 0; j < p.size(); ++j) {
          const double probability = p[j] / sum / num_heads;
          oracle.mass[kv_offset + first + j] += probability;
          oracle.mass_bound[kv_offset + first + j] += probability * (relative + 32 * 0x1p-24);
        }
        // A code of a value is off by at most 2^-13 of the largest of its row. So is a weight, of the largest
        // of 64 keys; these errors are independent: sqrt(64) times half of it, five standard deviations.
        double code_error = 0, largest_weight = 0;
        for (size_t j = 0; codes && j < p.size(); ++j) {
          double largest = 0;
          for (int64_t d = 0; d < head_dim; ++d) {
            largest = std::max(largest,
                               std::abs(values[(kv_begin + first + static_cast<int64_t>(j)) * head_dim + d]));
          }
          code_error += 0x1p-13 * p[j] / sum * largest;
          largest_weight = std::max(largest_weight, p[j] / sum * largest);
        }
        code_error += 5 * 8 * 0.3 * 0x1p-13 * largest_weight;
        for (int64_t d = 0; d < head_dim; ++d) {
          double value = 0, magnitude = 0;
          for (size_t j = 0; j < p.size(); ++j) {
            const double term =
                p[j] / sum * values[(kv_begin + first + static_cast<int64_t>(j)) * head_dim + d];
            value += term;
            magnitude += std::abs(term);
          }
          const int64_t index = (row * num_heads + h) * head_dim + d;
          oracle.out[index] = value;
          oracle.bound[index] = code_error +
                                magnitude * (relative + u + kv_u + std::sqrt(p.size()) * 0x1p-24) +
                                std::abs(value) * UnitRoundoff(options.out) + 1e-30;
        }
      }
    }
    kv_offset += sequence.kv_len;
  }
  return oracle;
}

Tensor Attend(const BatchPlan& plan, const KvPagesView& pages, Tensor& q, const AttentionSpec& spec,
              DataType out) {
  Backend& backend = q.backend();
  Tensor result(backend, out, q.rows(), q.cols(), q.view().row_stride);
  EXPECT_OK(backend.SelectiveAttention(TestStream(backend), plan, q.view(), spec, pages, result.view()));
  return result;
}
Tensor Attend(PagedBatch& kv, Tensor& q, int32_t num_heads, float scale, DataType out) {
  return Attend(kv.plan(), kv.pages(), q, kv.Spec(num_heads, scale), out);
}

Tensor Mass(const BatchPlan& plan, const KvPagesView& pages, Tensor& q, const AttentionSpec& spec) {
  Backend& backend = q.backend();
  Tensor result(backend, kF32, 1, plan.total_kv_len());
  EXPECT_OK(backend.AttentionMass(TestStream(backend), plan, q.view(), spec, pages, result.view()));
  return result;
}
Tensor Mass(PagedBatch& kv, Tensor& q, int32_t num_heads, float scale) {
  return Mass(kv.plan(), kv.pages(), q, kv.Spec(num_heads, scale));
}

Worst FindWorst(const std::vector<double>& actual, const std::vector<double>& expected,
                const std::vector<double>& bound) {
  Worst worst;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    // A NaN that is expected is right; any other NaN is infinitely wrong.
    double ratio = error <= bound[i] && bound[i] == 0 ? 0 : error / bound[i];
    if (std::isnan(actual[i]) && std::isnan(expected[i])) ratio = 0;
    if (std::isinf(expected[i]) && actual[i] == expected[i]) ratio = 0;
    if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    if (ratio > worst.ratio) worst = {ratio, i, ""};
  }
  if (!expected.empty()) {
    worst.description = absl::StrCat("worst element ", worst.index, ": ", actual[worst.index], " instead of ",
                                     expected[worst.index], ", allowed error ", bound[worst.index]);
  }
  return worst;
}

void ExpectWithin(const std::vector<double>& actual, const std::vector<double>& expected,
                  const std::vector<double>& bound) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(bound.size(), expected.size());
  const Worst worst = FindWorst(actual, expected, bound);
  EXPECT_LE(worst.ratio, 1.0) << worst.description;
}

void ExpectElements(Tensor& actual, const std::function<Expected(int64_t, int64_t)>& expected) {
  std::vector<double> values, bounds;
  for (int64_t r = 0; r < actual.rows(); ++r) {
    for (int64_t c = 0; c < actual.cols(); ++c) {
      const auto [value, bound] = expected(r, c);
      values.push_back(value);
      bounds.push_back(bound);
    }
  }
  ExpectWithin(actual.Values(), values, bounds);
}

void ExpectInvalid(const absl::Status& status, std::initializer_list<absl::string_view> parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const absl::string_view part : parts)
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << "\n" << status;
}

void ExpectSameToken(const SampledToken& actual, const SampledToken& expected) {
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  EXPECT_EQ(actual.token_id, expected.token_id);
  EXPECT_EQ(bits(actual.logit), bits(expected.logit));
  EXPECT_EQ(actual.invalid_token, expected.invalid_token);
  EXPECT_EQ(bits(actual.scored_logit), bits(expected.scored_logit));
  EXPECT_EQ(bits(actual.max_logit), bits(expected.max_logit));
  EXPECT_EQ(actual.weight_sum, expected.weight_sum);
  ASSERT_EQ(actual.num_top, expected.num_top);
  for (int32_t i = 0; i < expected.num_top; ++i) {
    EXPECT_EQ(actual.top_ids[i], expected.top_ids[i]) << "rank " << i;
    EXPECT_EQ(bits(actual.top_logits[i]), bits(expected.top_logits[i])) << "rank " << i;
  }
}

std::unique_ptr<PackedWeights> Pack(Backend& backend, const Tensor& weights, WeightUsage usage) {
  const test_support::RowFunction rows([&](int64_t row, absl::Span<float> out) {
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<float>(weights.at(row, c));
    return absl::OkStatus();
  });
  return backend.PackWeights(weights.rows(), weights.cols(), usage, rows).value();
}

std::unique_ptr<RopeTable> MakeRope(Backend& backend, RopeLayout layout, int64_t head_dim,
                                    int64_t max_position) {
  std::vector<float> inv_freq(head_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / head_dim));
  }
  return backend.CreateRopeTable({layout, head_dim, max_position, inv_freq}).value();
}

}  // namespace kvblend::kernels
