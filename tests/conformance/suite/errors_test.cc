// Every checked entry refuses what it must refuse, names it, and leaves its output alone.
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/stored_section.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

class ErrorConformance : public ConformanceTest {};

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

TEST_P(ErrorConformance, PlanBatch) {
  const std::vector<int32_t> row_indptr = {0, 2, 3}, positions = {0, 5, 1}, kv_len = {6, 2},
                             page_indptr = {0, 2, 3}, page_indices = {4, 0, 2};
  const BatchSpec good{row_indptr, positions, kv_len, page_indptr, page_indices, 4};
  EXPECT_TRUE(backend.PlanBatch(good).ok());
  const auto expect = [&](auto change, std::initializer_list<absl::string_view> parts) {
    BatchSpec bad = good;
    change(bad);
    ExpectInvalid(backend.PlanBatch(bad).status(), parts);
  };
  const std::vector<int32_t> short_indptr = {0, 3}, late = {1, 2, 3}, falling = {0, 3, 2},
                             wrong_end = {0, 2, 2};
  const std::vector<int32_t> repeated = {5, 5, 1}, beyond = {0, 6, 1}, negative = {-1, 5, 1}, big_kv = {9, 2},
                             negative_kv = {-1, 2}, bad_page = {4, -3, 2};
  expect([&](BatchSpec& s) { s.page_size = 0; }, {"PlanBatch", "page_size is 0", "at least 1"});
  expect([&](BatchSpec& s) { s.row_indptr = short_indptr; }, {"row_indptr has 2 entries", "3"});
  expect([&](BatchSpec& s) { s.row_indptr = {}; }, {"row_indptr has 0 entries"});
  expect([&](BatchSpec& s) { s.row_indptr = late; }, {"row_indptr[0] is 1"});
  expect([&](BatchSpec& s) { s.row_indptr = falling; }, {"row_indptr[2] is 2", "at least 3"});
  expect([&](BatchSpec& s) { s.row_indptr = wrong_end; }, {"row_indptr ends at 2", "3"});
  expect([&](BatchSpec& s) { s.page_indptr = short_indptr; }, {"page_indptr has 2 entries"});
  expect([&](BatchSpec& s) { s.positions = repeated; }, {"positions[1] is 5", "strictly increasing"});
  expect([&](BatchSpec& s) { s.positions = beyond; }, {"positions[1] is 6", "1 .. 5"});
  expect([&](BatchSpec& s) { s.positions = negative; }, {"positions[0] is -1"});
  expect([&](BatchSpec& s) { s.kv_len = big_kv; }, {"kv_len[0] is 9", "0 .. 8"});
  expect([&](BatchSpec& s) { s.kv_len = negative_kv; }, {"kv_len[0] is -1"});
  expect([&](BatchSpec& s) { s.page_indices = bad_page; }, {"page_indices[1] is -3"});
  expect([&](BatchSpec& s) { s.num_page_lists = 0; }, {"num_page_lists is 0", "at least 1"});
  expect([&](BatchSpec& s) { s.num_page_lists = 2; }, {"num_page_lists is 2", "3 page_indices"});
  expect([&](BatchSpec& s) { s.num_page_lists = 3; }, {"page_indptr ends at 3", "1"});
}

TEST_P(ErrorConformance, RopeTableAndWeights) {
  const std::vector<float> inv_freq = {1.0f, 0.1f}, bad_freq = {1.0f, kNotANumber};
  EXPECT_TRUE(backend.CreateRopeTable({RopeLayout::kInterleaved, 4, 10, inv_freq}).ok());
  const auto rope = [&](int64_t head_dim, int64_t max_position, absl::Span<const float> freq) {
    return backend.CreateRopeTable({RopeLayout::kInterleaved, head_dim, max_position, freq}).status();
  };
  ExpectInvalid(rope(3, 10, inv_freq), {"CreateRopeTable", "head_dim is 3", "even"});
  ExpectInvalid(rope(0, 10, inv_freq), {"head_dim is 0"});
  ExpectInvalid(rope(4, 0, inv_freq), {"max_position is 0"});
  ExpectInvalid(rope(4, int64_t{1} << 40, inv_freq), {"max_position is 1099511627776"});
  ExpectInvalid(rope(6, 10, inv_freq), {"inv_freq has 2 entries", "3"});
  ExpectInvalid(rope(4, 10, bad_freq), {"inv_freq[1] is nan"});
  ExpectInvalid(backend.CreateRopeTable({static_cast<RopeLayout>(9), 4, 10, inv_freq}).status(),
                {"layout is 9"});

  const test_support::RowFunction zeros([](int64_t, absl::Span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    return absl::OkStatus();
  });
  ExpectInvalid(backend.PackWeights(0, 4, WeightUsage::kLinear, zeros).status(),
                {"PackWeights", "rows is 0"});
  ExpectInvalid(backend.PackWeights(4, -1, WeightUsage::kLinear, zeros).status(), {"cols is -1"});
  ExpectInvalid(backend.PackWeights(int64_t{1} << 32, 4, WeightUsage::kLinear, zeros).status(),
                {"rows is 4294967296"});
}

TEST_P(ErrorConformance, Memory) {
  EXPECT_EQ(backend.Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  const auto huge = backend.Allocate(int64_t{1} << 60).status();
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(huge.message(), "1152921504606846976")) << huge;
  const auto buffer = backend.Allocate(0).value();
  EXPECT_EQ(buffer->size_bytes(), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(backend.Allocate(100).value()->data()) % 64, 0u);
  int value = 0;
  ExpectInvalid(backend.CopyFromHost(stream, &value, nullptr, 4), {"CopyFromHost", "src is null"});
  ExpectInvalid(backend.CopyToHost(stream, &value, &value, -4), {"CopyToHost", "bytes is -4"});
  ASSERT_OK(backend.CopyToHost(stream, nullptr, nullptr, 0));
}

TEST_P(ErrorConformance, HostMemory) {
  for (const int64_t bytes : {1, 4096, 100'000}) {
    auto* data = static_cast<unsigned char*>(backend.AllocateHost(bytes));
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    std::fill_n(data, bytes, static_cast<unsigned char>(bytes));
    const auto buffer = backend.Allocate(bytes).value();
    std::vector<unsigned char> back(bytes);
    ASSERT_OK(backend.CopyFromHost(stream, buffer->data(), data, bytes));
    ASSERT_OK(backend.CopyToHost(stream, back.data(), buffer->data(), bytes));
    ASSERT_OK(backend.Synchronize(stream));
    EXPECT_EQ(back, std::vector<unsigned char>(bytes, static_cast<unsigned char>(bytes)));
    backend.FreeHost(data, bytes);
  }
  backend.FreeHost(nullptr, 1);
}

TEST_P(ErrorConformance, Elementwise) {
  Tensor x = Random(3, 8), out(backend, kF32, 3, 8), weight = Random(1, 8), half(backend, kF16, 3, 8);
  const std::vector<std::byte> before = out.Bytes();
  const auto norm = [&](ConstMatrixView in, ConstMatrixView w, float epsilon, MatrixView to) {
    return backend.RmsNorm(stream, in, w, epsilon, to);
  };
  ExpectInvalid(norm(half.view(), weight.view(), 1e-5f, out.view()), {"RmsNorm", "x.dtype is f16", "f32"});
  ExpectInvalid(norm(x.view(), x.view(), 1e-5f, out.view()), {"weight.rows is 3", "1"});
  ExpectInvalid(norm(x.view(), weight.view(), kNotANumber, out.view()), {"epsilon is nan"});
  ExpectInvalid(norm(x.view(), weight.view(), 0.0f, out.view()), {"epsilon is 0"});
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, half.view()), {"out.dtype is f16"});
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, out.view().Rows(0, 2)), {"out.rows is 2", "3"});
  MatrixView bad = out.view();
  bad.row_stride = 7;
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, bad), {"out.row_stride is 7", "at least cols = 8"});
  bad = out.view();
  bad.data = nullptr;
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, bad), {"out.data is null"});
  bad.data = static_cast<std::byte*>(out.view().data) + 1;
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, bad), {"out.data is not aligned"});
  bad = out.view();
  bad.row_stride = std::numeric_limits<int64_t>::max() / 2;
  ExpectInvalid(norm(x.view(), weight.view(), 1e-5f, bad), {"does not fit into the address space"});
  // One element behind x: not in place, not separate.
  Tensor wide(backend, kF32, 3, 9);
  ExpectInvalid(norm(wide.view().Columns(0, 8), weight.view(), 1e-5f, wide.view().Columns(1, 8)),
                {"out overlaps x"});

  Tensor five = Random(1, 5);
  ExpectInvalid(norm(x.view(), five.view(), 1e-5f, out.view()),
                {"weight.cols is 5", "divisors of x.cols = 8"});

  ExpectInvalid(backend.AddScaled(stream, x.view().Rows(0, 2), 1.0f, out.view()),
                {"AddScaled", "x.rows is 2", "3"});
  ExpectInvalid(backend.AddScaled(stream, weight.view().Columns(0, 7), 1.0f, out.view()),
                {"x.cols is 7", "8"});
  ExpectInvalid(backend.AddScaled(stream, half.view(), 1.0f, out.view()), {"x.dtype is f16"});
  ExpectInvalid(backend.AddScaled(stream, x.view(), kNotANumber, out.view()), {"scale is nan"});
  ExpectInvalid(backend.AddScaled(stream, out.view(), 1.0f, out.view()), {"out overlaps x"});
  ExpectInvalid(backend.SoftCap(stream, 30.0f, half.view()), {"SoftCap", "x.dtype is f16"});
  for (const float cap : {0.0f, -1.0f, 1e-4f, kNotANumber}) {
    ExpectInvalid(backend.SoftCap(stream, cap, out.view()), {"SoftCap", "cap is", "at least 0.001"});
  }
  ExpectInvalid(backend.GatedActivation(stream, static_cast<Activation>(7), x.view(), x.view(), out.view()),
                {"GatedActivation", "activation is 7", "kSilu"});

  const auto silu = [&](ConstMatrixView gate, ConstMatrixView up, MatrixView to) {
    return backend.GatedActivation(stream, Activation::kSilu, gate, up, to);
  };
  ExpectInvalid(silu(x.view(), x.view().Rows(0, 2), out.view()), {"GatedActivation", "up.rows is 2"});
  ExpectInvalid(silu(half.view(), x.view(), out.view()), {"gate.dtype is f16"});
  ExpectInvalid(silu(x.view(), x.view(), out.view().Columns(0, 4)), {"out.cols is 4", "8"});
  ExpectInvalid(silu(x.view(), wide.view().Columns(0, 8), wide.view().Columns(1, 8)), {"out overlaps up"});

  Tensor distance(backend, kF32, 1, 3);
  const Section stored(backend, KvEncoding::kInt8, KvPart::kValue, 3, 8),
      one(backend, KvEncoding::kInt8, KvPart::kValue, 1, 8);
  const auto deviation = [&](ConstMatrixView fresh, KvSectionView section, MatrixView to) {
    return backend.KvDeviation(stream, fresh, section, to);
  };
  ExpectInvalid(deviation(half.view(), stored.view(), distance.view()), {"KvDeviation", "fresh.dtype"});
  ExpectInvalid(deviation(x.view(), one.view(), distance.view()), {"stored.rows is 1"});
  ExpectInvalid(deviation(x.view(), stored.view(), weight.view()), {"out.cols is 8", "3"});
  ExpectInvalid(deviation(x.view(), stored.view(), {stored.view().data, kF32, 1, 3, 3}),
                {"stored overlaps out"});

  const std::vector<int32_t> indices = {0, 3}, negative = {-1, 0};
  MatrixView two = out.view().Rows(0, 2);
  ExpectInvalid(backend.GatherRows(stream, x.view(), indices, two),
                {"GatherRows", "row_indices[1] is 3", "0 .. 2"});
  ExpectInvalid(backend.GatherRows(stream, x.view(), negative, two), {"row_indices[0] is -1"});
  ExpectInvalid(backend.GatherRows(stream, x.view(), indices, half.view().Rows(0, 2)),
                {"out.dtype is f16", "f32"});
  const std::vector<int32_t> valid = {0, 1};
  ExpectInvalid(backend.GatherRows(stream, x.view(), valid, x.view().Rows(0, 2)), {"out overlaps in"});
  EXPECT_EQ(out.Bytes(), before);
}

TEST_P(ErrorConformance, Weights) {
  Tensor matrix = Random(6, 8), x = Random(2, 8), out(backend, kF32, 2, 6);
  const auto linear = Pack(backend, matrix, WeightUsage::kLinear),
             table = Pack(backend, matrix, WeightUsage::kEmbedding);
  const std::vector<std::byte> before = out.Bytes();
  ExpectInvalid(backend.Linear(stream, x.view(), *table, false, out.view()), {"Linear", "kEmbedding"});
  ExpectInvalid(backend.Linear(stream, x.view().Columns(0, 7), *linear, false, out.view()),
                {"x.cols is 7", "8"});
  ExpectInvalid(backend.Linear(stream, x.view(), *linear, false, x.view().Columns(0, 6)), {"out overlaps x"});
  ExpectInvalid(backend.Linear(stream, x.view(), *linear, true, out.view().Columns(0, 5)),
                {"out.cols is 5", "6"});
  Tensor half(backend, kF16, 2, 8);
  ExpectInvalid(backend.Linear(stream, half.view(), *linear, false, out.view()), {"x.dtype is f16"});

  Tensor rows(backend, kF32, 2, 8);
  const std::vector<int32_t> high = {0, 6}, low = {-1, 0}, three = {0, 1, 2};
  ExpectInvalid(backend.Embed(stream, *linear, high, 1.0f, rows.view()), {"Embed", "kLinear"});
  ExpectInvalid(backend.Embed(stream, *table, high, 1.0f, rows.view()), {"token_ids[1] is 6", "0 .. 5"});
  ExpectInvalid(backend.Embed(stream, *table, low, 1.0f, rows.view()), {"token_ids[0] is -1"});
  ExpectInvalid(backend.Embed(stream, *table, three, 1.0f, rows.view()), {"out.rows is 2", "3"});
  EXPECT_EQ(out.Bytes(), before);

  // Weights of another kind of backend.
  Backend& other = TestBackend(GetParam() == "reference" ? "cpu_f32" : "reference");
  const auto foreign = Pack(other, matrix, WeightUsage::kLinearAndEmbedding);
  ExpectInvalid(backend.Linear(stream, x.view(), *foreign, false, out.view()), {"PackedWeights"});
  ExpectInvalid(backend.Embed(stream, *foreign, {}, 1.0f, rows.view().Rows(0, 0)), {"PackedWeights"});
}

TEST_P(ErrorConformance, RopeAndKvScatter) {
  const BatchCase batch{.sequences = {{40, {1, 39}}}, .page_size = 16};
  PagedBatch kv(backend, batch, 2, 8, kBF16, rng);
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 8, 40);
  const auto short_rope = MakeRope(backend, RopeLayout::kInterleaved, 8, 39);
  const auto other_rope = MakeRope(backend, RopeLayout::kInterleaved, 6, 40);
  Tensor k = Random(2, 16), v(backend, kF32, 2, 16), v_bf16(backend, kBF16, 2, 16),
         k_f16(backend, kF16, 2, 16);
  const std::vector<std::byte> before = kv.k_tensor().Bytes(), k_before = k.Bytes();
  ExpectInvalid(backend.Rope(stream, kv.plan(), *rope, 0, k.view()), {"Rope", "num_heads is 0"});
  ExpectInvalid(backend.Rope(stream, kv.plan(), *rope, 3, k.view()), {"x.cols is 16", "24"});
  ExpectInvalid(backend.Rope(stream, kv.plan(), *rope, 2, k.view().Rows(0, 1)), {"x.rows is 1", "2"});
  ExpectInvalid(backend.Rope(stream, kv.plan(), *short_rope, 2, k.view()),
                {"position 39", "below the rope table's 39"});

  const auto scatter = [&](const RopeTable& table, ConstMatrixView keys, ConstMatrixView values,
                           KvPagesView pages) {
    return backend.KvScatter(stream, kv.plan(), table, keys, values, pages);
  };
  ExpectInvalid(scatter(*short_rope, k.view(), v.view(), kv.pages()), {"KvScatter", "position 39"});
  ExpectInvalid(scatter(*other_rope, k.view(), v.view(), kv.pages()), {"rope.head_dim is 6", "8"});
  ExpectInvalid(scatter(*rope, k_f16.view(), v.view(), kv.pages()), {"k.dtype is f16", "f32, bf16"});
  ExpectInvalid(scatter(*rope, k.view(), v_bf16.view(), kv.pages()), {"v.dtype is bf16", "f32"});
  ExpectInvalid(scatter(*rope, k.view().Columns(0, 8), v.view(), kv.pages()), {"k.cols is 8", "16"});
  const auto with = [&](auto change) {
    KvPagesView pages = kv.pages();
    change(pages);
    return scatter(*rope, k.view(), v.view(), pages);
  };
  ExpectInvalid(with([](KvPagesView& p) { p.page_size = 8; }), {"pages.page_size is 8", "16"});
  ExpectInvalid(with([](KvPagesView& p) { p.layout = PageLayout::kTiles; }),
                {"pages.layout is tiles", "pages of 16 tokens x 8", "allowed on this backend: rows"});
  ExpectInvalid(with([](KvPagesView& p) { p.num_pages = 1; }),
                {"the plan uses page", "below pages.num_pages = 1"});
  ExpectInvalid(with([](KvPagesView& p) { p.num_pages = -1; }), {"num_pages is -1"});
  ExpectInvalid(with([](KvPagesView& p) { p.num_kv_heads = 0; }), {"num_kv_heads is 0"});
  ExpectInvalid(with([](KvPagesView& p) { p.head_dim = 0; }), {"head_dim is 0"});
  ExpectInvalid(with([](KvPagesView& p) { p.k = nullptr; }), {"pages.k is null"});
  ExpectInvalid(with([](KvPagesView& p) { p.v = static_cast<std::byte*>(p.v) + 1; }), {"not aligned"});
  ExpectInvalid(with([](KvPagesView& p) { p.num_pages = std::numeric_limits<int64_t>::max() / 100; }),
                {"do not fit into the address space"});
  EXPECT_EQ(kv.k_tensor().Bytes(), before);
  EXPECT_EQ(k.Bytes(), k_before);
}

TEST_P(ErrorConformance, Attention) {
  const BatchCase batch{.sequences = {{40, {1, 39}}}, .page_size = 16};
  PagedBatch kv(backend, batch, 2, 8, kBF16, rng);
  Tensor q = Random(2, 32), out(backend, kF32, 2, 32), mass(backend, kF32, 1, 40),
         q_f16(backend, kF16, 2, 32);
  const std::vector<std::byte> before = out.Bytes(), mass_before = mass.Bytes();
  const auto both = [&](ConstMatrixView queries, AttentionSpec spec, KvPagesView pages,
                        std::initializer_list<absl::string_view> parts) {
    ExpectInvalid(backend.SelectiveAttention(stream, kv.plan(), queries, spec, pages, out.view()), parts);
    ExpectInvalid(backend.AttentionMass(stream, kv.plan(), queries, spec, pages, mass.view()), parts);
  };
  both(q.view(), {3, 1.0f}, kv.pages(), {"num_heads is 3", "multiple of num_kv_heads = 2"});
  both(q.view(), {0, 1.0f}, kv.pages(), {"num_heads is 0"});
  both(q.view(), {-2, 1.0f}, kv.pages(), {"num_heads is -2"});
  both(q.view(), {4, kNotANumber}, kv.pages(), {"scale is nan"});
  both(q.view(), {2, 1.0f}, kv.pages(), {"q.cols is 32", "16"});
  both(q.view().Rows(0, 1), {4, 1.0f}, kv.pages(), {"q.rows is 1", "2"});
  both(q_f16.view(), {4, 1.0f}, kv.pages(), {"q.dtype is f16"});
  both(q.view(), {4, 1.0f, -2}, kv.pages(), {"sliding_window is -2"});
  both(q.view(), {4, 1.0f, 0, -50.0f}, kv.pages(), {"logit_soft_cap is -50"});
  Tensor sinks = Random(1, 4), sinks_f16(backend, kF16, 1, 4);
  const auto with_sinks = [](ConstMatrixView view) { return AttentionSpec{4, 1.0f, 0, 0.0f, view}; };
  both(q.view(), with_sinks(sinks.view().Columns(0, 3)), kv.pages(), {"sinks.cols is 3", "4"});
  both(q.view(), with_sinks(sinks_f16.view()), kv.pages(), {"sinks.dtype is f16"});
  ExpectInvalid(
      backend.SelectiveAttention(stream, kv.plan(), q.view(), with_sinks(out.view().Rows(0, 1).Columns(0, 4)),
                                 kv.pages(), out.view()),
      {"SelectiveAttention", "out overlaps sinks"});
  ExpectInvalid(backend.AttentionMass(stream, kv.plan(), q.view(), with_sinks(mass.view().Columns(0, 4)),
                                      kv.pages(), mass.view()),
                {"AttentionMass", "out overlaps sinks"});
  KvPagesView few = kv.pages();
  few.num_pages = 1;
  both(q.view(), {4, 1.0f}, few, {"the plan uses page"});
  for (const int32_t list : {-1, 2}) {
    KvPagesView other = kv.pages();
    other.page_list = list;
    both(q.view(), {4, 1.0f}, other, {absl::StrCat("page_list is ", list), "0 .. 1"});
  }
  ExpectInvalid(backend.SelectiveAttention(stream, kv.plan(), q.view(), {4, 1.0f}, kv.pages(), q.view()),
                {"SelectiveAttention", "out overlaps q"});
  ExpectInvalid(backend.SelectiveAttention(stream, kv.plan(), q.view(), {4, 1.0f}, kv.pages(), q_f16.view()),
                {"out.dtype is f16"});
  ExpectInvalid(
      backend.AttentionMass(stream, kv.plan(), q.view(), {4, 1.0f}, kv.pages(), mass.view().Columns(0, 39)),
      {"AttentionMass", "out.cols is 39", "40"});
  EXPECT_EQ(out.Bytes(), before);
  EXPECT_EQ(mass.Bytes(), mass_before);
}

INSTANTIATE_CONFORMANCE(ErrorConformance);

}  // namespace
}  // namespace kvblend::kernels
