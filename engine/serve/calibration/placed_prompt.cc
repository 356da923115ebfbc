#include "engine/serve/calibration/placed_prompt.h"

#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "engine/kv/section_rows.h"

namespace kvblend {
namespace {

std::vector<int32_t> Numbers(int64_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<float>> PlacedPrompt::Layer::StoredOf(const Chunk& chunk) const {
  KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv sections, chunk.kv.AcquireLayer(index_));
  std::vector<float> rows(sections.k.rows * 2 * sections.k.cols);
  kv::DecodeRows(sections.k, sections.v, chunk.tokens, absl::MakeSpan(rows));
  return rows;
}

absl::StatusOr<std::vector<float>> PlacedPrompt::Layer::QuestionMass() const {
  kernels::Backend& backend = *owner_.runtime_.backend;
  const model::Transformer& transformer = *owner_.runtime_.transformer;
  const int32_t tokens = owner_.num_tokens_, question = owner_.question_begin_;
  KVBLEND_ASSIGN_OR_RETURN(const auto asking, sequence_.PlanRange(question, tokens, tokens));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView mass,
                           owner_.mass_.Resize(backend, 1, tokens, kernels::DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(backend.AttentionMass(
      *owner_.runtime_.stream, *asking, transformer.Queries(owner_.state_).Rows(question, tokens - question),
      transformer.attention(index_), sequence_.Layer(index_), mass));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<float> all, owner_.ToHost(mass));
  all.resize(question);
  return all;
}

absl::StatusOr<std::vector<float>> PlacedPrompt::Layer::LastQueries() const {
  const int32_t question = owner_.question_begin_;
  return owner_.ToHost(
      owner_.runtime_.transformer->Queries(owner_.state_).Rows(question, owner_.num_tokens_ - question));
}

absl::StatusOr<std::vector<float>> PlacedPrompt::Layer::OutputWeights() const {
  kernels::Backend& backend = *owner_.runtime_.backend;
  const model::Transformer& transformer = *owner_.runtime_.transformer;
  kernels::Stream& stream = *owner_.runtime_.stream;
  // Packed weights can't be read, but they can be multiplied by.
  const int64_t inputs = transformer.Queries(owner_.state_).cols, outputs = owner_.runtime_.config.hidden_dim;
  std::vector<float> unit(inputs * inputs);
  for (int64_t i = 0; i < inputs; ++i) unit[i * (inputs + 1)] = 1;
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView rows,
                           owner_.unit_rows_.Resize(backend, inputs, inputs, kernels::DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView output,
                           owner_.output_.Resize(backend, inputs, outputs, kernels::DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(backend.CopyFromHost(stream, rows.data, unit.data(), unit.size() * sizeof(float)));
  KVBLEND_RETURN_IF_ERROR(transformer.ProjectOutput(stream, index_, rows, /*accumulate=*/false, output));
  return owner_.ToHost(output);
}

absl::StatusOr<std::vector<float>> PlacedPrompt::ToHost(kernels::MatrixView matrix) {
  kernels::Backend& backend = *runtime_.backend;
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView dense,
                           gathered_.Resize(backend, matrix.rows, matrix.cols, kernels::DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(backend.GatherRows(*runtime_.stream, matrix, Numbers(matrix.rows), dense));
  std::vector<float> values(matrix.rows * matrix.cols);
  KVBLEND_RETURN_IF_ERROR(
      backend.CopyToHost(*runtime_.stream, values.data(), dense.data, values.size() * sizeof(float)));
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(*runtime_.stream));
  return values;
}

absl::StatusOr<std::vector<PlacedPrompt::Chunk>> PlacedPrompt::Store(const prompt::PromptLayout& layout) {
  const bool isolated = anchoring_ == Anchoring::kIsolated;
  const absl::Span<const int32_t> anchor = isolated ? absl::Span<const int32_t>() : layout.anchor_ids;
  std::vector<Chunk> chunks;
  for (const prompt::Span& span : layout.spans) {
    if (span.kind != prompt::SpanKind::kChunk || span.size() == 0 || (span.chunk_index == 0 && !isolated))
      continue;
    KVBLEND_ASSIGN_OR_RETURN(
        StoredChunk stored,
        runner_.EnsureStored("", anchor,
                             absl::MakeConstSpan(layout.token_ids).subspan(span.begin, span.size()), {},
                             [] { return absl::OkStatus(); }));
    chunks.push_back({.begin = span.begin, .kv = *std::move(stored.entry), .tokens = Numbers(span.size())});
  }
  return chunks;
}

absl::Status PlacedPrompt::VisitLayers(
    const prompt::PromptLayout& layout, absl::Span<const int32_t> answer,
    absl::FunctionRef<absl::Status(const Layer&, absl::Span<const Chunk>)> visit) {
  if (!layout.anchor_is_prefix) {
    return absl::InvalidArgumentError("prompts for calibration have no history");
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<Chunk> chunks, Store(layout));
  std::vector<int32_t> token_ids = layout.token_ids;
  token_ids.insert(token_ids.end(), answer.begin(), answer.end());
  num_tokens_ = static_cast<int32_t>(token_ids.size());
  question_begin_ = layout.spans.back().begin;
  kernels::Stream& stream = *runtime_.stream;
  const model::Transformer& transformer = *runtime_.transformer;
  kv::SequencePages pages(*runtime_.page_pool);
  KVBLEND_RETURN_IF_ERROR(pages.Grow(num_tokens_));
  const blend::PagedSequence sequence(*runtime_.backend, *runtime_.page_pool, pages);
  KVBLEND_ASSIGN_OR_RETURN(const auto rows, sequence.PlanRange(0, num_tokens_, num_tokens_));
  KVBLEND_RETURN_IF_ERROR(transformer.Begin(stream, token_ids, state_));
  for (int32_t layer = 0; layer < runtime_.config.num_layers; ++layer) {
    const kernels::KvPagesView layer_pages = sequence.Layer(layer);
    KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, layer, state_));
    KVBLEND_RETURN_IF_ERROR(transformer.WriteKv(stream, layer, *rows, state_, layer_pages));
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> fresh, ToHost(transformer.KeysAndValues(state_)));
    KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, layer, *rows, state_));
    KVBLEND_RETURN_IF_ERROR(visit(Layer(*this, layer, sequence, fresh), chunks));
    KVBLEND_RETURN_IF_ERROR(transformer.AttendAndMlp(stream, layer, *rows, layer_pages, state_));
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(stream));
  }
  return absl::OkStatus();
}

}  // namespace kvblend
