// What CreateKvCorrection and CorrectKv of every backend refuse.
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/kv_correction.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

class KvCorrectionErrors : public ConformanceTest {
 protected:
  static constexpr int64_t kRows = 8, kCols = 8, kRank = 3;
  Section Of(KvEncoding encoding, KvPart part) { return Section(backend, encoding, part, kRows, kCols); }

  std::vector<float> scale = std::vector<float>(2 * kCols, 1.0f),
                     offset = std::vector<float>(kNumKvCorrectionPlaces * 2 * kCols, 1.0f),
                     down = std::vector<float>(2 * kCols * kRank, 1.0f), up = down;
  const KvCorrectionSpec spec{kCols, kRank, scale, offset, down, up};
};

TEST_P(KvCorrectionErrors, Spec) {
  EXPECT_TRUE(backend.CreateKvCorrection(spec).ok());
  const auto expect = [&](auto change, absl::string_view message) {
    KvCorrectionSpec bad = spec;
    change(bad);
    ExpectInvalid(backend.CreateKvCorrection(bad).status(), {"CreateKvCorrection: ", message});
  };
  expect([](auto& s) { s.cols = 0; }, "cols is 0; allowed: 1 to 16777216");
  expect([](auto& s) { s.cols = -4; }, "cols is -4; allowed: 1 to 16777216");
  expect([](auto& s) { s.cols = int64_t{1} << 40; }, "cols is 1099511627776; allowed: 1 to 16777216");
  expect([](auto& s) { s.rank = -1; }, "rank is -1; allowed: 0 to 1024");
  expect([](auto& s) { s.rank = 1025; }, "rank is 1025; allowed: 0 to 1024");
  expect([](auto& s) { s.cols = 5; }, "scale has 16 values; allowed: 10");
  expect([](auto& s) { s.offset = s.offset.subspan(1); }, "offset has 127 values; allowed: 128");
  expect([](auto& s) { s.rank = 2; }, "down has 48 values; allowed: 32");
  expect([](auto& s) { s.down = {}; }, "down has 0 values; allowed: 48");
  expect([](auto& s) { s.up = s.up.subspan(16); }, "up has 32 values; allowed: 48");
  const auto spoil = [&](float& value, float bad, absl::string_view message) {
    const float good = std::exchange(value, bad);
    expect([](auto&) {}, message);
    value = good;
  };
  spoil(scale[7], NAN, "scale[7] is nan; allowed: finite");
  spoil(offset[127], INFINITY, "offset[127] is inf; allowed: finite");
  spoil(down[47], -INFINITY, "down[47] is -inf; allowed: finite");
  spoil(up[8], NAN, "up[8] is nan; allowed: finite");
  EXPECT_TRUE(backend.CreateKvCorrection(spec).ok());
}

TEST_P(KvCorrectionErrors, Sections) {
  const auto correction = backend.CreateKvCorrection(spec).value();
  Section k = Of(KvEncoding::kInt8, KvPart::kKey), v = Of(KvEncoding::kInt8, KvPart::kValue),
          v_int4 = Of(KvEncoding::kInt4, KvPart::kValue), k_out = Of(KvEncoding::kF32, KvPart::kKey),
          v_out = Of(KvEncoding::kF32, KvPart::kValue), v_bf16 = Of(KvEncoding::kBF16, KvPart::kValue);
  const std::vector<std::byte> k_before = k_out.bytes(), v_before = v_out.bytes();
  struct Arguments {
    MutableKvSectionView k, v, k_out, v_out;
  };
  const auto correct = [&](const KvCorrection& with, auto change) {
    Arguments a{k.view(), v.view(), k_out.view(), v_out.view()};
    change(a);
    return backend.CorrectKv(stream, a.k, a.v, with, a.k_out, a.v_out);
  };
  const auto expect = [&](auto change, absl::string_view message) {
    ExpectInvalid(correct(*correction, change), {"CorrectKv: ", message});
  };
  expect([](Arguments& a) { a.k.encoding = static_cast<KvEncoding>(9); }, "k.encoding is 9; allowed: f32");
  expect([](Arguments& a) { a.k.part = KvPart::kValue; }, "k.part is 1; allowed: kKey");
  expect([](Arguments& a) { a.v.part = KvPart::kKey; }, "v.part is 0; allowed: kValue");
  expect([](Arguments& a) { a.k_out.part = KvPart::kValue; }, "k_out.part is 1; allowed: kKey");
  expect([](Arguments& a) { a.v_out.part = KvPart::kKey; }, "v_out.part is 0; allowed: kValue");
  expect([](Arguments& a) { a.k.rows = -1; }, "k.rows is -1; allowed: 0");
  expect([](Arguments& a) { a.v.rows = 7; }, "v.rows is 7; allowed: 8");
  expect([](Arguments& a) { a.k_out.rows = 9; }, "k_out.rows is 9; allowed: 8");
  expect([](Arguments& a) { a.v_out.rows = 7; }, "v_out.rows is 7; allowed: 8");
  expect([](Arguments& a) { a.k.cols = 9; }, "k.cols is 9; allowed: 8");
  expect([](Arguments& a) { a.v.cols = 16; }, "v.cols is 16; allowed: 8");
  expect([](Arguments& a) { a.k_out.cols = 7; }, "k_out.cols is 7; allowed: 8");
  expect([](Arguments& a) { a.v_out.cols = 0; }, "v_out.cols is 0; allowed: 8");
  expect([](Arguments& a) { a.k.data = nullptr; }, "k.data is null with 8 rows");
  expect([](Arguments& a) { a.v_out.data = nullptr; }, "v_out.data is null with 8 rows");
  expect([](Arguments& a) { a.k_out.data = static_cast<std::byte*>(a.k_out.data) + 4; },
         "k_out.data is not aligned to 64 bytes");
  expect([&](Arguments& a) { a.v = v_int4.view(); }, "v is int4; allowed: k's int8");
  expect([](Arguments& a) { a.k_out.encoding = KvEncoding::kInt8; }, "k_out is int8; allowed: f32, bf16");
  expect([](Arguments& a) { a.k_out.encoding = KvEncoding::kF16; }, "k_out is f16; allowed: f32, bf16");
  expect([&](Arguments& a) { a.v_out = v_bf16.view(); }, "v_out is bf16; allowed: k_out's f32");
  expect([](Arguments& a) { a.k_out.data = a.k.data; }, "k overlaps k_out; allowed: separate memory");
  expect([](Arguments& a) { a.k_out.data = a.v.data; }, "v overlaps k_out; allowed: separate memory");
  expect([](Arguments& a) { a.v_out.data = a.k.data; }, "k overlaps v_out; allowed: separate memory");
  expect([](Arguments& a) { a.v_out.data = a.v.data; }, "v overlaps v_out; allowed: separate memory");
  expect([](Arguments& a) { a.v_out.data = a.k_out.data; }, "k_out overlaps v_out; allowed: separate memory");

  // A correction made by another kind of backend.
  Backend& other = TestBackend(GetParam() == "reference" ? "cpu_f32" : "reference");
  ExpectInvalid(correct(*other.CreateKvCorrection(spec).value(), [](auto&) {}),
                {"the KvCorrection was made by a backend of another kind"});
  EXPECT_EQ(k_out.Download(), k_before);
  EXPECT_EQ(v_out.Download(), v_before);
}

INSTANTIATE_CONFORMANCE(KvCorrectionErrors);

}  // namespace
}  // namespace kvblend::kernels
