#include "engine/kv/tuning/attention_match.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

namespace kvblend::kv {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
using MutableView = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

/// Turns head_dim elements by the angles of a position, or back.
void Rotate(const kernels::HostRopeTable& rope, int64_t position, bool back, const float* in, float* out) {
  const int64_t half = rope.head_dim() / 2;
  const float *cos = rope.cos(position), *sin = rope.sin(position);
  const bool interleaved = rope.layout() == kernels::RopeLayout::kInterleaved;
  const int64_t step = interleaved ? 2 : 1, second = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t at = i * step;
    const float a = in[at], b = in[at + second], s = back ? -sin[i] : sin[i];
    out[at] = a * cos[i] - b * s;
    out[at + second] = a * s + b * cos[i];
  }
}

/// Every K head of rows of KV, rotated: [num_kv_heads][tokens, head_dim].
std::vector<Matrix> RotatedKeys(const LayerAttention& layer, absl::Span<const float> kv) {
  std::vector<Matrix> keys(layer.num_kv_heads, Matrix(layer.num_tokens(), layer.head_dim));
  for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
    for (int64_t token = 0; token < layer.num_tokens(); ++token) {
      Rotate(*layer.rope, token, /*back=*/false,
             kv.data() + token * layer.channels() + int64_t{head} * layer.head_dim,
             keys[head].row(token).data());
    }
  }
  return keys;
}

View ValuesOf(const LayerAttention& layer, absl::Span<const float> kv, int32_t head) {
  return {kv.data() + int64_t{layer.num_kv_heads + head} * layer.head_dim, layer.num_tokens(), layer.head_dim,
          Eigen::OuterStride<>(layer.channels())};
}

/// Rows [begin, end) of the queries, with the heads that share a KV head one under the other.
class Rows {
 public:
  Rows(const LayerAttention& layer, int64_t begin, int64_t end)
      : layer_(layer), begin_(begin), end_(end), group_(layer.num_heads / layer.num_kv_heads) {}

  Matrix Queries(int32_t kv_head) const {
    Matrix queries((end_ - begin_) * group_, layer_.head_dim);
    for (int64_t i = 0; i < queries.rows(); ++i) {
      const int64_t head = kv_head * group_ + i % group_, row = begin_ + i / group_;
      queries.row(i) = Eigen::Map<const Eigen::RowVectorXf>(
          layer_.queries.data() + (row * layer_.num_heads + head) * layer_.head_dim, layer_.head_dim);
    }
    return queries;
  }

  int64_t count() const { return end_ - begin_; }
  /// [count]
  Eigen::Map<const Eigen::VectorXf> Weights() const { return {layer_.weights.data() + begin_, count()}; }

  /// Puts results of Queries' rows, [count * group, head_dim], into their heads' columns; OfHead takes them
  /// out.
  void SideBySide(const Matrix& rows, int32_t kv_head, Matrix& all) const {
    for (int64_t i = 0; i < rows.rows(); ++i)
      all.row(i / group_).segment(ColumnOf(kv_head, i), rows.cols()) = rows.row(i);
  }
  Matrix OfHead(const Matrix& all, int32_t kv_head) const {
    Matrix rows(count() * group_, layer_.head_dim);
    for (int64_t i = 0; i < rows.rows(); ++i)
      rows.row(i) = all.row(i / group_).segment(ColumnOf(kv_head, i), rows.cols());
    return rows;
  }

  /// Softmax of the scores over the keys that each row sees. `slope`, if wanted: the derivative of each score
  /// by the product of query and key; empty where it is the layer's scale everywhere.
  Matrix Probabilities(const Matrix& queries, const Matrix& keys, int32_t kv_head, Matrix* slope) const {
    Matrix scores = layer_.scale * (queries * keys.transpose());
    const float cap = layer_.logit_soft_cap;
    if (cap > 0) scores = cap * (scores / cap).array().tanh();
    if (slope != nullptr && cap > 0) *slope = layer_.scale * (1 - (scores / cap).array().square());
    for (int64_t i = 0; i < scores.rows(); ++i) {
      const int64_t position = layer_.num_tokens() - layer_.num_rows() + begin_ + i / group_;
      const int64_t first =
          layer_.sliding_window == 0 ? 0 : std::max<int64_t>(0, position + 1 - layer_.sliding_window);
      auto row = scores.row(i);
      row.head(first).setConstant(-std::numeric_limits<float>::infinity());
      row.tail(row.size() - position - 1).setConstant(-std::numeric_limits<float>::infinity());
      float largest = row.segment(first, position + 1 - first).maxCoeff(), more = 0;
      if (!layer_.sinks.empty()) {
        const float sink = layer_.sinks[kv_head * group_ + i % group_];
        largest = std::max(largest, sink);
        more = std::exp(sink - largest);
      }
      row = (row.array() - largest).exp();
      row /= row.sum() + more;
    }
    return scores;
  }

 private:
  int64_t ColumnOf(int32_t kv_head, int64_t i) const {
    return (kv_head * group_ + i % group_) * layer_.head_dim;
  }

  const LayerAttention& layer_;
  const int64_t begin_, end_, group_;
};

/// For the query heads that share one KV head.
struct HeadRows {
  Matrix queries, probabilities, slope;
};

/// One thread's part.
struct Part {
  Matrix gradient;  // with respect to rotated K and V
  double missed = 0, wanted = 0;
};

}  // namespace

double MatchAttention(const LayerAttention& layer, absl::Span<const float> corrected, int32_t num_threads,
                      absl::Span<float> gradient) {
  const int64_t tokens = layer.num_tokens(), channels = layer.channels(), head_dim = layer.head_dim;
  const std::vector<Matrix> fresh_keys = RotatedKeys(layer, layer.fresh),
                            keys = RotatedKeys(layer, corrected);
  const int64_t width = static_cast<int64_t>(layer.output.size()) / (int64_t{layer.num_heads} * head_dim);
  const Eigen::Map<const Matrix> output(layer.output.data(), int64_t{layer.num_heads} * head_dim, width);
  std::vector<Part> parts(std::clamp<int64_t>(num_threads, 1, std::max<int64_t>(layer.num_rows(), 1)));
  const auto num_parts = static_cast<int64_t>(parts.size());
  const auto run = [&](int64_t p) {
    Part& part = parts[p];
    part.gradient = Matrix::Zero(tokens, channels);
    const Rows rows(layer, layer.num_rows() * p / num_parts, layer.num_rows() * (p + 1) / num_parts);
    const auto weights = rows.Weights();
    std::vector<HeadRows> heads(layer.num_kv_heads);
    Matrix missed(rows.count(), output.rows()), wanted(missed.rows(), missed.cols());  // heads side by side
    for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
      HeadRows& own = heads[head];
      own.queries = rows.Queries(head);
      const Matrix full = rows.Probabilities(own.queries, fresh_keys[head], head, nullptr) *
                          ValuesOf(layer, layer.fresh, head);
      own.probabilities = rows.Probabilities(own.queries, keys[head], head, &own.slope);
      rows.SideBySide(own.probabilities * ValuesOf(layer, corrected, head) - full, head, missed);
      rows.SideBySide(full, head, wanted);
    }
    const Matrix missed_behind = missed * output;
    part.missed = missed_behind.rowwise().squaredNorm().dot(weights);
    part.wanted = (wanted * output).rowwise().squaredNorm().dot(weights);
    const Matrix by_output = weights.asDiagonal() * missed_behind * output.transpose();
    for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
      const HeadRows& own = heads[head];
      const Matrix by_head = rows.OfHead(by_output, head);
      part.gradient.middleCols((layer.num_kv_heads + head) * head_dim, head_dim).noalias() =
          own.probabilities.transpose() * by_head;
      Matrix by_score = by_head * ValuesOf(layer, corrected, head).transpose();
      const Eigen::VectorXf mean = (by_score.array() * own.probabilities.array()).rowwise().sum();
      by_score = (by_score.colwise() - mean).array() * own.probabilities.array();
      if (own.slope.size() > 0) {
        by_score.array() *= own.slope.array();
      } else {
        by_score *= layer.scale;
      }
      part.gradient.middleCols(head * head_dim, head_dim).noalias() = by_score.transpose() * own.queries;
    }
  };
  std::vector<std::thread> others;
  for (int64_t p = 1; p < num_parts; ++p) others.emplace_back(run, p);
  run(0);
  for (std::thread& other : others) other.join();
  for (int64_t p = 1; p < num_parts; ++p) {
    parts[0].gradient += parts[p].gradient;
    parts[0].missed += parts[p].missed;
    parts[0].wanted += parts[p].wanted;
  }
  const Part& all = parts[0];
  if (!(all.wanted > 0)) {
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    return 0;
  }
  const auto factor = static_cast<float>(2 / all.wanted);
  MutableView out(gradient.data(), tokens, channels, Eigen::OuterStride<>(channels));
  out = factor * all.gradient;
  for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
    for (int64_t token = 0; token < tokens; ++token) {
      float* at = gradient.data() + token * channels + head * head_dim;
      Rotate(*layer.rope, token, /*back=*/true, at, at);
    }
  }
  return all.missed / all.wanted;
}

}  // namespace kvblend::kv
