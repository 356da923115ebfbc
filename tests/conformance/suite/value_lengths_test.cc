// ValueLengths of every backend against the definition in double precision.
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

class ValueLengthsConformance : public ConformanceTest {};

TEST_P(ValueLengthsConformance, AreTheRootsOfTheSumsOfSquares) {
  BatchCase batch{.sequences = {{75, {3, 74}}, {1, {0}}, {64, Range(60, 64)}, {130, {129}}}};
  constexpr int32_t kHeads = 3;
  for (const DataType dtype : {kF32, kBF16, kF16}) {
    for (const auto& [head_dim, page_size] : {std::pair{64, 64}, {64, 16}, {34, 16}, {128, 16}, {256, 16}}) {
      SCOPED_TRACE(
          absl::StrCat(std::string(Name(dtype)), ", head_dim ", head_dim, ", page_size ", page_size));
      batch.page_size = page_size;
      PagedBatch kv(backend, batch, kHeads, head_dim, dtype, rng);
      Tensor out(backend, kF32, 1, kv.plan().total_kv_len());
      ASSERT_OK(backend.ValueLengths(stream, kv.plan(), kv.pages(), out.view()));
      const std::vector<double> lengths = out.Values();
      int64_t column = 0;
      for (size_t s = 0; s < batch.sequences.size(); ++s) {
        for (int64_t position = 0; position < batch.sequences[s].kv_len; ++position, ++column) {
          double squares = 0;
          for (int64_t h = 0; h < kHeads; ++h) {
            for (int64_t d = 0; d < head_dim; ++d) squares += std::pow(kv.v(s, position, h, d), 2);
          }
          ASSERT_NEAR(lengths[column], std::sqrt(squares), 1e-5 * std::sqrt(squares)) << s << " " << position;
        }
      }
    }
  }
}

TEST_P(ValueLengthsConformance, Errors) {
  const BatchCase batch{.sequences = {{40, {39}}}};
  PagedBatch kv(backend, batch, 2, 64, kBF16, rng);
  Tensor out(backend, kF32, 1, 40), half(backend, kF16, 1, 40), two(backend, kF32, 2, 40);
  const auto measure = [&](const KvPagesView& pages, MatrixView to) {
    return backend.ValueLengths(stream, kv.plan(), pages, to);
  };
  KvPagesView few = kv.pages(), without = kv.pages();
  few.num_pages = 1;
  without.v = nullptr;
  ExpectInvalid(measure(kv.pages(), half.view()), {"ValueLengths: ", "out.dtype is f16"});
  ExpectInvalid(measure(kv.pages(), two.view()), {"out.rows is 2", "1"});
  ExpectInvalid(measure(kv.pages(), out.view().Columns(0, 39)), {"out.cols is 39", "40"});
  ExpectInvalid(measure(few, out.view()), {"ValueLengths: ", "page"});
  ExpectInvalid(measure(without, out.view()), {"pages.v is null"});
}

INSTANTIATE_CONFORMANCE(ValueLengthsConformance);

}  // namespace
}  // namespace kvblend::kernels
