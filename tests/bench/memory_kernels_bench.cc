// Speed of the operations that only move and convert: GB/s and the share of a plain copy's that touches as
// much memory.
#include <cmath>
#include <cstring>

#include "tests/bench/kernels_bench_support.h"

namespace kvblend::kernels {
namespace {

constexpr double kPageBytes = 2.0 * kContext * kKvWidth * 2;  // of one layer: K and V in bf16

std::unique_ptr<RopeTable> MakeRope(RopeLayout layout) {
  std::vector<float> inv_freq(kHeadDim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(100000.0, -2.0 * static_cast<double>(i) / kHeadDim));
  }
  return Cpu().CreateRopeTable({layout, kHeadDim, 8192, inv_freq}).value();
}

// A layer's K or V as the store keeps it.
struct Section {
  Section(KvEncoding encoding, KvPart part)
      : buffer(Cpu().Allocate(LayoutOf(encoding, part, kContext, kKvWidth).size_bytes).value()),
        view{buffer->data(), encoding, part, kContext, kKvWidth} {
    const Matrix values(DataType::kF32, kContext, kKvWidth);
    (void)Cpu().EncodeKv(TheStream(), values.view, view).ok();
  }
  double bytes() const { return static_cast<double>(buffer->size_bytes()); }
  std::unique_ptr<Buffer> buffer;
  MutableKvSectionView view;
};

// The 6,000 tokens of a prompt in the store, and pages for them, all 30 layers: nothing of it stays in the
// caches.
struct StoredPrompt {
  explicit StoredPrompt(KvEncoding encoding) {
    for (int layer = 0; layer < kLayers; ++layer) {
      pages.emplace_back(Spread(kContext));
      k.emplace_back(encoding, KvPart::kKey);
      v.emplace_back(encoding, KvPart::kValue);
    }
  }
  // load(k, v, pages) of every layer.
  template <typename Load>
  absl::Status ForLayers(const Load& load) {
    absl::Status status;
    for (int layer = 0; layer < kLayers; ++layer) {
      status.Update(load(k[layer].view, v[layer].view, pages[layer]));
    }
    return status;
  }
  std::vector<Kv> pages;
  std::vector<Section> k, v;
};

// From the store into pages. Arg: KvEncoding.
void BM_KvLoad(benchmark::State& state) {
  const auto encoding = static_cast<KvEncoding>(state.range(0));
  state.SetLabel(std::string(Name(encoding)));
  const auto rope = MakeRope(RopeLayout::kInterleaved);
  StoredPrompt stored(encoding);
  const double seconds = Measure(state, [&] {
    return stored.ForLayers([&](const KvSectionView& k, const KvSectionView& v, const Kv& pages) {
      return Cpu().KvLoad(TheStream(), *pages.plan, *rope, k, v, pages.view);
    });
  });
  const double bytes = kLayers * (stored.k[0].bytes() + stored.v[0].bytes() + kPageBytes);
  ReportMoved(state, seconds, bytes, bytes);
}
BENCHMARK(BM_KvLoad)
    ->Arg(static_cast<int>(KvEncoding::kBF16))
    ->Arg(static_cast<int>(KvEncoding::kInt8))
    ->Arg(static_cast<int>(KvEncoding::kInt4))
    ->Arg(static_cast<int>(KvEncoding::kFp8))
    ->UseRealTime();

// The same corrected on the way, one map for all layers. Args: KvEncoding, the map's rank.
void BM_KvLoadCorrected(benchmark::State& state) {
  const auto encoding = static_cast<KvEncoding>(state.range(0));
  const int64_t rank = state.range(1);
  state.SetLabel(absl::StrCat(std::string(Name(encoding)), ", rank ", rank));
  const auto rope = MakeRope(RopeLayout::kInterleaved);
  const std::vector<float> scale(2 * kKvWidth, 1.0f), offset(kNumKvCorrectionPlaces * 2 * kKvWidth, 0.1f),
      map(2 * kKvWidth * rank, 0.01f);
  const auto correction =
      Cpu().CreateKvCorrection({kKvWidth, rank, scale, offset, /*down=*/map, /*up=*/map}).value();
  Matrix k_memory(DataType::kBF16, kContext, kKvWidth), v_memory(DataType::kBF16, kContext, kKvWidth);
  const auto section = [](Matrix& matrix, KvPart part) {
    return MutableKvSectionView{matrix.view.data, KvEncoding::kBF16, part, kContext, kKvWidth};
  };
  StoredPrompt stored(encoding);
  const double seconds = Measure(state, [&] {
    return stored.ForLayers([&](const KvSectionView& k, const KvSectionView& v, const Kv& pages) {
      return Cpu().KvLoadCorrected(TheStream(), *pages.plan, *rope, k, v, *correction,
                                   section(k_memory, KvPart::kKey), section(v_memory, KvPart::kValue),
                                   pages.view);
    });
  });
  ReportFlops(state, seconds, 2.0 * 2 * kLayers * kContext * 2 * kKvWidth * static_cast<double>(rank),
              OperandsOfFloats());
}
BENCHMARK(BM_KvLoadCorrected)
    ->Args({static_cast<int>(KvEncoding::kBF16), 16})
    ->Args({static_cast<int>(KvEncoding::kInt8), 16})  // the most of kvblend calibrate
    ->Args({static_cast<int>(KvEncoding::kInt8), 8})
    ->Args({static_cast<int>(KvEncoding::kInt8), 0})
    ->UseRealTime();

// KvLoad into int8 pages: a step of bf16 for 32 channels of a token and head.
void BM_KvLoadInt8Pages(benchmark::State& state) {
  const auto encoding = static_cast<KvEncoding>(state.range(0));
  state.SetLabel(std::string(Name(encoding)));
  const auto rope = MakeRope(RopeLayout::kInterleaved);
  const int64_t codes = int64_t{Kv::kPages} * kKvHeads * kPageSize * kHeadDim,
                steps = codes / kPageGroup * static_cast<int64_t>(sizeof(uint16_t));
  const Kv batch(Spread(kContext));
  std::vector<std::unique_ptr<Buffer>> k_pages, v_pages;  // codes, then steps
  std::vector<Section> k, v;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (auto* buffers : {&k_pages, &v_pages}) {
      buffers->push_back(Cpu().Allocate(codes + steps).value());
      std::memset(buffers->back()->data(), 0, codes + steps);
    }
    k.emplace_back(encoding, KvPart::kKey);
    v.emplace_back(encoding, KvPart::kValue);
  }
  const double seconds = Measure(state, [&] {
    absl::Status status;
    for (int layer = 0; layer < kLayers; ++layer) {
      KvPagesView pages = batch.view;
      pages.dtype = DataType::kInt8;
      pages.layout = PageLayout::kRows;
      pages.k = k_pages[layer]->data();
      pages.v = v_pages[layer]->data();
      pages.k_steps = static_cast<std::byte*>(pages.k) + codes;
      pages.v_steps = static_cast<std::byte*>(pages.v) + codes;
      status.Update(Cpu().KvLoad(TheStream(), *batch.plan, *rope, k[layer].view, v[layer].view, pages));
    }
    return status;
  });
  const double page_bytes = kPageBytes / 2 * (1 + 2.0 / kPageGroup);
  const double bytes = kLayers * (k[0].bytes() + v[0].bytes() + page_bytes);
  ReportMoved(state, seconds, bytes, bytes);
}
BENCHMARK(BM_KvLoadInt8Pages)
    ->Arg(static_cast<int>(KvEncoding::kBF16))
    ->Arg(static_cast<int>(KvEncoding::kInt8))
    ->UseRealTime();

// One layer's fresh KV, in the caches as the product that computed it has left it. Arg: 0 interleaved, 1
// split halves.
void BM_KvScatter(benchmark::State& state) {
  Kv kv(Spread(kContext));
  const auto rope = MakeRope(state.range(0) == 0 ? RopeLayout::kInterleaved : RopeLayout::kSplitHalf);
  Matrix k(DataType::kBF16, kContext, kKvWidth), v(DataType::kBF16, kContext, kKvWidth);
  const double seconds =
      Measure(state, [&] { return Cpu().KvScatter(TheStream(), *kv.plan, *rope, k.view, v.view, kv.view); });
  ReportMoved(state, seconds, 2 * kPageBytes, 2 * kPageBytes);
}
BENCHMARK(BM_KvScatter)->Arg(0)->Arg(1)->UseRealTime();

// Deviations of some tokens passed on to all others of chunks of 600, all 30 layers. Arg: tokens that pass
// them on, per 100.
void BM_SpreadDeviation(benchmark::State& state) {
  const std::vector<int32_t> rows = Spread(kContext * state.range(0) / 100);
  std::vector<ColumnRange> chunks;
  for (int32_t begin = 0; begin < kContext; begin += 600) chunks.push_back({begin, begin + 600});
  const auto rope = MakeRope(RopeLayout::kInterleaved);
  std::vector<Kv> layers;
  for (int layer = 0; layer < kLayers; ++layer) layers.emplace_back(rows);
  const auto fresh_rows = static_cast<int64_t>(rows.size());
  Matrix k(DataType::kF32, fresh_rows, kKvWidth), v(DataType::kF32, fresh_rows, kKvWidth);
  const double seconds = Measure(state, [&] {
    absl::Status status;
    for (Kv& layer : layers) {
      status.Update(Cpu().SpreadDeviation(TheStream(), *layer.plan, *rope, chunks, {.anywhere = 0},
                                          {.anywhere = 0.05f}, k.view, v.view, layer.view));
    }
    return status;
  });
  ReportMoved(state, seconds, 2 * kLayers * kPageBytes, 2 * kLayers * kPageBytes);
}
BENCHMARK(BM_SpreadDeviation)->Arg(5)->Arg(15)->UseRealTime();

// One layer's KV into its stored form, as int8. Arg: 0 K, 1 V.
void BM_EncodeKv(benchmark::State& state) {
  const KvPart part = state.range(0) == 0 ? KvPart::kKey : KvPart::kValue;
  const Matrix values(DataType::kF32, kContext, kKvWidth);
  Section section(KvEncoding::kInt8, part);
  const double seconds =
      Measure(state, [&] { return Cpu().EncodeKv(TheStream(), values.view, section.view); });
  const double bytes = 4.0 * kContext * kKvWidth + section.bytes();
  ReportMoved(state, seconds, bytes, bytes);
}
BENCHMARK(BM_EncodeKv)->Arg(0)->Arg(1)->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  Matrix x(DataType::kF32, kContext, kWidth), weight(DataType::kF32, 1, kWidth),
      out(Cpu().compute_dtype(), kContext, kWidth);
  const double seconds =
      Measure(state, [&] { return Cpu().RmsNorm(TheStream(), x.view, weight.view, 1e-5f, out.view); });
  const double bytes = 1.0 * kContext * kWidth * static_cast<double>(4 + SizeOf(Cpu().compute_dtype()));
  ReportMoved(state, seconds, bytes, bytes);
}
BENCHMARK(BM_RmsNorm)->UseRealTime();

void BM_GatedActivation(benchmark::State& state) {
  Matrix both(DataType::kF32, kContext, 3072), out(Cpu().compute_dtype(), kContext, 1536);
  const double seconds = Measure(state, [&] {
    return Cpu().GatedActivation(TheStream(), Activation::kSilu, both.view.Columns(0, 1536),
                                 both.view.Columns(1536, 1536), out.view);
  });
  const double bytes = kContext * 1536.0 * static_cast<double>(8 + SizeOf(Cpu().compute_dtype()));
  ReportMoved(state, seconds, bytes, bytes);
}
BENCHMARK(BM_GatedActivation)->UseRealTime();

// In place: it touches half of what it moves.
void BM_Rope(benchmark::State& state) {
  Kv kv(Spread(kContext));
  const auto rope = MakeRope(RopeLayout::kInterleaved);
  Matrix q(DataType::kF32, kContext, kWidth);
  const double seconds =
      Measure(state, [&] { return Cpu().Rope(TheStream(), *kv.plan, *rope, kHeads, q.view); });
  ReportMoved(state, seconds, kContext * kWidth * 8.0, kContext * kWidth * 4.0);
}
BENCHMARK(BM_Rope)->UseRealTime();

}  // namespace
}  // namespace kvblend::kernels
