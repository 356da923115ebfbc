#include "engine/runtime/cost_measurement.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "engine/blend/paged_sequence.h"
#include "engine/kv/sequence_pages.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend {
namespace {

constexpr int32_t kContextTokens = 1024;

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(SteadyNow() - start); }

class CostMeasurement {
 public:
  CostMeasurement(ModelRuntime& runtime, const kv::SequencePages& pages, int32_t context_tokens)
      : runtime_(runtime),
        sequence_(*runtime.backend, *runtime.page_pool, pages),
        context_tokens_(context_tokens) {}

  /// Runs the last `rows` tokens of the context through `layers` layers; with `measures_attention`, as a
  /// query pass.
  absl::StatusOr<blend::PassMeasurement> Pass(int32_t rows, int32_t layers, bool measures_attention) {
    using Kind = blend::PassMeasurement::Kind;
    const model::Transformer& transformer = *runtime_.transformer;
    kernels::Backend& backend = *runtime_.backend;
    kernels::Stream& stream = *runtime_.stream;
    const int32_t begin = context_tokens_ - rows;
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, sequence_.PlanRange(begin, context_tokens_, context_tokens_));
    KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView mass,
                             mass_.Resize(backend, 1, context_tokens_, kernels::DataType::kF32));
    // Any tokens will do, but not all the same: their attention would be the same as well.
    std::vector<int32_t> token_ids(rows);
    for (int32_t i = 0; i < rows; ++i) token_ids[i] = i % runtime_.config.vocab_size;
    KVBLEND_RETURN_IF_ERROR(transformer.Begin(stream, token_ids, state_));
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
    const absl::Time start = SteadyNow();
    for (int32_t layer = 0; layer < layers; ++layer) {
      const kernels::KvPagesView pages = sequence_.Layer(layer);
      KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, layer, state_));
      KVBLEND_RETURN_IF_ERROR(transformer.WriteKv(stream, layer, *plan, state_, pages));
      KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, layer, *plan, state_));
      KVBLEND_RETURN_IF_ERROR(transformer.AttendAndMlp(
          stream, layer, *plan, pages, state_, measures_attention ? std::optional(mass) : std::nullopt));
    }
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
    return blend::PassMeasurement{.kind = measures_attention ? Kind::kQuery : Kind::kForward,
                                  .size = blend::SizeOfRange(begin, context_tokens_),
                                  .layers = layers,
                                  .seconds = SecondsSince(start)};
  }

  /// Places one layer of a chunk that fills the context. Returns the seconds.
  absl::StatusOr<double> Place() {
    store::KvFormat format = runtime_.key_space.format;
    format.num_layers = 1;
    KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<store::ChunkKv> kv,
                             store::ChunkKv::Allocate(format, context_tokens_, *runtime_.host_memory));
    std::memset(kv->MutableLayerBytes(0).data(), 0, kv->MutableLayerBytes(0).size());
    const store::LayerKv stored = kv->Layer(0);
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, sequence_.PlanRange(0, context_tokens_, context_tokens_));
    const absl::Time start = SteadyNow();
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->KvLoad(*runtime_.stream, *plan, runtime_.transformer->rope(0),
                                                     stored.k, stored.v, sequence_.Layer(0)));
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
    return SecondsSince(start);
  }

 private:
  ModelRuntime& runtime_;
  const blend::PagedSequence sequence_;
  const int32_t context_tokens_;
  model::PassState state_;
  model::ScratchMatrix mass_;
};

}  // namespace

absl::StatusOr<blend::PrefillMeasurements> MeasureCosts(ModelRuntime& runtime) {
  const int32_t context_tokens = std::min(kContextTokens, runtime.max_context_tokens);
  kv::SequencePages pages(*runtime.page_pool);
  KVBLEND_RETURN_IF_ERROR(pages.Grow(context_tokens));
  CostMeasurement measurement(runtime, pages, context_tokens);
  // Placing first: the passes then find KV in the pages.
  blend::PrefillMeasurements costs;
  for (int round = 0; round < 2; ++round) {  // the first one warms caches
    KVBLEND_ASSIGN_OR_RETURN(costs.place_seconds, measurement.Place());
  }
  costs.placed_token_layers = context_tokens;
  struct Size {
    int32_t rows;
    int32_t layers;  // different ones, so that their weights come from memory as in a real pass
    bool measures_attention;
  };
  for (const Size& size : {Size{16, 8, false}, Size{16, 8, true}, Size{128, 2, false}}) {
    const int32_t rows = std::min(size.rows, context_tokens);
    const int32_t layers = std::min(size.layers, runtime.config.num_layers);
    // The first pass of a size may compile kernels.
    KVBLEND_RETURN_IF_ERROR(measurement.Pass(rows, 1, size.measures_attention).status());
    KVBLEND_ASSIGN_OR_RETURN(costs.passes.emplace_back(),
                             measurement.Pass(rows, layers, size.measures_attention));
  }
  return costs;
}

}  // namespace kvblend
