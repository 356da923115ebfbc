// KvLoadCorrected of every backend: the pages that CorrectKv and KvLoad together would write, and what it
// refuses.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/kv_correction.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

class KvLoadCorrectedConformance : public ConformanceTest {
 protected:
  std::unique_ptr<KvCorrection> RandomCorrection(int64_t cols, int64_t rank) {
    std::vector<float> scale(2 * cols), offset(kNumKvCorrectionPlaces * 2 * cols), down(2 * cols * rank),
        up(2 * cols * rank);
    NormalValues normal;
    for (std::vector<float>* part : {&scale, &offset, &down, &up}) {
      for (float& x : *part) x = normal(rng);
    }
    return backend.CreateKvCorrection({cols, rank, scale, offset, down, up}).value();
  }
  Section RandomSection(KvEncoding encoding, KvPart part, int64_t rows, int64_t cols) {
    NormalValues normal;
    Tensor x(backend, kF32, rows, cols);
    x.Fill([&](int64_t, int64_t) { return 1 + 2 * normal(rng); });
    return Encoded(x, encoding, part);
  }
};

TEST_P(KvLoadCorrectedConformance, IsCorrectKvThenKvLoad) {
  // Runs that begin within tiles and pairs of tokens, scattered tokens, and more than a thread loads at a
  // time.
  BatchCase batch{
      .sequences = {
          {200, RandomPositions(rng, 61, 200)}, {33, {32}}, {250, Range(23, 250)}, {200, Range(16, 200)}}};
  const auto compare = [&](KvEncoding encoding, DataType pages, KvEncoding between, RopeLayout layout,
                           int32_t head_dim, int64_t rank) {
    SCOPED_TRACE(absl::StrCat(std::string(Name(encoding)), " by ", std::string(Name(between)), " to ",
                              std::string(Name(pages)), ", layout ", static_cast<int>(layout), ", head_dim ",
                              head_dim, ", page_size ", batch.page_size, ", rank ", rank));
    const int64_t rows = batch.num_rows(), cols = 3 * head_dim;
    Rng same = rng;
    PagedBatch loaded(backend, batch, 3, head_dim, pages, rng),
        expected(backend, batch, 3, head_dim, pages, same);
    const auto rope = MakeRope(backend, layout, head_dim, 256);
    const auto correction = RandomCorrection(cols, rank);
    const Section k = RandomSection(encoding, KvPart::kKey, rows, cols),
                  v = RandomSection(encoding, KvPart::kValue, rows, cols),
                  k_memory(backend, between, KvPart::kKey, rows, cols),
                  v_memory(backend, between, KvPart::kValue, rows, cols);
    ASSERT_OK(backend.CorrectKv(stream, k.view(), v.view(), *correction, k_memory.view(), v_memory.view()));
    ASSERT_OK(
        backend.KvLoad(stream, expected.plan(), *rope, k_memory.view(), v_memory.view(), expected.pages()));
    const Section k_other(backend, between, KvPart::kKey, rows, cols),
        v_other(backend, between, KvPart::kValue, rows, cols);
    ASSERT_OK(backend.KvLoadCorrected(stream, loaded.plan(), *rope, k.view(), v.view(), *correction,
                                      k_other.view(), v_other.view(), loaded.pages()));
    ASSERT_EQ(loaded.k_tensor().Bytes(), expected.k_tensor().Bytes());
    ASSERT_EQ(loaded.v_tensor().Bytes(), expected.v_tensor().Bytes());
  };
  for (const auto& [head_dim, page_size] : {std::pair{64, 64}, {64, 16}, {34, 16}, {128, 16}}) {
    if (page_size % kPageTile == 0 &&
        backend.best_page_layout(kBF16, page_size, head_dim) != PageLayout::kTiles) {
      continue;
    }
    batch.page_size = page_size;
    for (const KvEncoding encoding : kEncodings) {
      compare(encoding, kBF16, KvEncoding::kBF16, RopeLayout::kInterleaved, head_dim, 16);
      for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
        compare(encoding, kBF16, KvEncoding::kBF16, layout, head_dim, 0);
      }
    }
    for (const int64_t rank : {11, 16, 33}) {
      compare(KvEncoding::kInt8, kBF16, KvEncoding::kBF16, RopeLayout::kSplitHalf, head_dim, rank);
    }
    for (const int64_t rank : {0, 5}) {
      compare(KvEncoding::kInt8, kBF16, KvEncoding::kF32, RopeLayout::kInterleaved, head_dim, rank);
      if (page_size % kPageTile != 0) {
        compare(KvEncoding::kInt8, kF32, KvEncoding::kF32, RopeLayout::kInterleaved, head_dim, rank);
      }
    }
  }
}

// More than are brought to a device at once, from host memory, with V behind K or elsewhere, corrected or
// not, some without rows.
TEST_P(KvLoadCorrectedConformance, AllAreOneAfterTheOther) {
  constexpr int64_t kItems = 91, kRows = 13, kCols = 3 * 64;
  constexpr int32_t kTokens = kItems * kRows;
  const auto batch_at = [&](int64_t i) {
    const auto begin = static_cast<int32_t>(i * kRows);
    return BatchCase{.sequences = {{kTokens, Range(begin, i % 10 == 9 ? begin : begin + kRows)}}};
  };
  const Rng pages = rng;  // gives all the same ones
  const auto paged = [&](int64_t i) {
    Rng same = pages;
    return PagedBatch(backend, batch_at(i), 3, 64, kBF16, same);
  };
  PagedBatch loaded = paged(0), expected = paged(0);
  const auto rope = MakeRope(backend, RopeLayout::kSplitHalf, 64, kTokens);
  const auto narrow = RandomCorrection(kCols, 16), wide = RandomCorrection(kCols, 33);
  const Section k_memory(backend, KvEncoding::kBF16, KvPart::kKey, kRows, kCols),
      v_memory(backend, KvEncoding::kBF16, KvPart::kValue, kRows, kCols),
      k_exact(backend, KvEncoding::kF32, KvPart::kKey, kRows, kCols),
      v_exact(backend, KvEncoding::kF32, KvPart::kValue, kRows, kCols);
  Backend& host = TestBackend("reference");
  std::vector<std::unique_ptr<Buffer>> memory;
  std::vector<PagedBatch> plans;
  std::vector<KvLoadItem> items;
  plans.reserve(kItems);
  for (int64_t i = 0; i < kItems; ++i) {
    plans.push_back(paged(i));
    const int64_t rows = plans.back().plan().num_rows();
    const Section k = RandomSection(KvEncoding::kInt8, KvPart::kKey, rows, kCols),
                  v = RandomSection(KvEncoding::kInt8, KvPart::kValue, rows, kCols);
    const int64_t k_bytes = k.layout().size_bytes, gap = i % 3 == 0 ? 64 : 0;
    const auto& buffer =
        memory.emplace_back(host.Allocate(k_bytes + gap + v.layout().size_bytes + 64).value());
    auto* const k_host = static_cast<std::byte*>(buffer->data());
    std::copy(k.bytes().begin(), k.bytes().end(), k_host);
    std::copy(v.bytes().begin(), v.bytes().end(), k_host + k_bytes + gap);
    KvLoadItem& item = items.emplace_back();
    item.plan = &plans.back().plan();
    item.k = k.view();
    item.v = v.view();
    item.k.data = k_host;
    item.v.data = k_host + k_bytes + gap;
    if (i % 4 == 1) continue;
    item.correction = i % 4 == 2 ? wide.get() : narrow.get();
    item.k_memory = (i % 8 == 3 ? k_exact : k_memory).view();
    item.v_memory = (i % 8 == 3 ? v_exact : v_memory).view();
    item.k_memory.rows = item.v_memory.rows = rows;
  }
  for (const KvLoadItem& item : items) {
    ASSERT_OK(item.correction == nullptr
                  ? backend.KvLoad(stream, *item.plan, *rope, item.k, item.v, expected.pages())
                  : backend.KvLoadCorrected(stream, *item.plan, *rope, item.k, item.v, *item.correction,
                                            item.k_memory, item.v_memory, expected.pages()));
  }
  ASSERT_OK(backend.KvLoadAll(stream, items, *rope, loaded.pages()));
  ASSERT_EQ(loaded.k_tensor().Bytes(), expected.k_tensor().Bytes());
  ASSERT_EQ(loaded.v_tensor().Bytes(), expected.v_tensor().Bytes());

  // Where one is refused, none is loaded.
  const std::vector<std::byte> before = loaded.k_tensor().Bytes();
  std::reverse(items.begin(), items.end());
  items.back().v.rows -= 1;
  ExpectInvalid(backend.KvLoadAll(stream, items, *rope, loaded.pages()), {"KvLoadAll: ", "v.rows is 12"});
  EXPECT_EQ(loaded.k_tensor().Bytes(), before);
  ASSERT_OK(backend.KvLoadAll(stream, {}, *rope, loaded.pages()));
}

TEST_P(KvLoadCorrectedConformance, RefusesWhatCorrectKvAndKvLoadRefuse) {
  const BatchCase batch{.sequences = {{8, Range(0, 8)}}};
  PagedBatch kv(backend, batch, 2, 4, kF32, rng);
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 4, 16);
  const auto correction = RandomCorrection(8, 3), narrow = RandomCorrection(4, 3);
  const Section k = RandomSection(KvEncoding::kInt8, KvPart::kKey, 8, 8),
                v = RandomSection(KvEncoding::kInt8, KvPart::kValue, 8, 8),
                k_memory(backend, KvEncoding::kF32, KvPart::kKey, 8, 8),
                v_memory(backend, KvEncoding::kF32, KvPart::kValue, 8, 8);
  struct Arguments {
    MutableKvSectionView k, v, k_memory, v_memory;
  };
  const auto load = [&](const KvCorrection& with, auto change) {
    Arguments a{k.view(), v.view(), k_memory.view(), v_memory.view()};
    change(a);
    return backend.KvLoadCorrected(stream, kv.plan(), *rope, a.k, a.v, with, a.k_memory, a.v_memory,
                                   kv.pages());
  };
  ASSERT_OK(load(*correction, [](Arguments&) {}));
  const auto expect = [&](auto change, absl::string_view message) {
    ExpectInvalid(load(*correction, change), {"KvLoadCorrected: ", message});
  };
  expect([](Arguments& a) { a.k.rows = 7; }, "k.rows is 7; allowed: 8");
  expect([](Arguments& a) { a.v.rows = 7; }, "v.rows is 7; allowed: 8");
  expect([](Arguments& a) { a.k_memory.rows = 9; }, "k_memory.rows is 9; allowed: 8");
  expect([](Arguments& a) { a.v_memory.part = KvPart::kKey; }, "v_memory.part is 0; allowed: kValue");
  expect([](Arguments& a) { a.k_memory.encoding = KvEncoding::kInt8; },
         "k_memory is int8; allowed: f32, bf16");
  expect([](Arguments& a) { a.v_memory.encoding = KvEncoding::kBF16; },
         "v_memory is bf16; allowed: k_memory's f32");
  expect([](Arguments& a) { a.k_memory.data = a.v.data; }, "v overlaps k_memory; allowed: separate memory");
  ExpectInvalid(load(*narrow, [](Arguments&) {}), {"KvLoadCorrected: ", "k.cols is 8; allowed: 4"});
}

INSTANTIATE_CONFORMANCE(KvLoadCorrectedConformance);

}  // namespace
}  // namespace kvblend::kernels
