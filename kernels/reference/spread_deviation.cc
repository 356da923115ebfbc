#include "kernels/reference/spread_deviation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/host/page_codec.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/rotation.h"

namespace kvblend::kernels {
namespace {

// The rows of the plan that stand in a range: their numbers.
std::vector<int64_t> RowsIn(const HostBatchPlan& plan, const ColumnRange& range) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < plan.num_rows(); ++i) {
    if (plan.position(i) >= range.begin && plan.position(i) < range.end) rows.push_back(i);
  }
  return rows;
}

// K, or V, of one head in one range.
class HeadOfRange {
 public:
  HeadOfRange(const HostBatchPlan& plan, const HostRopeTable& rope, const KvPagesView& pages, bool is_keys,
              int32_t head)
      : plan_(plan),
        rope_(rope),
        pages_(pages),
        held_(is_keys ? PageValues::Keys(pages) : PageValues::Values(pages)),
        is_keys_(is_keys),
        head_(head) {}

  void Spread(const ColumnRange& range, const std::vector<int64_t>& rows, const DeviationSpread& spread,
              ConstMatrixView fresh) const {
    std::vector<std::vector<float>> deviations;
    for (const int64_t row : rows) deviations.push_back(Deviation(row, fresh));
    for (int32_t token = range.begin; token < range.end; ++token) {
      const std::vector<float> move = MoveOf(token, rows, spread, deviations);
      if (!move.empty()) Add(token, move);
    }
  }

 private:
  int64_t Slot(int32_t position) const { return plan_.Slot(pages_, 0, head_, position); }
  std::vector<float> Held(int32_t position) const {
    std::vector<float> head(pages_.head_dim);
    for (int32_t d = 0; d < pages_.head_dim; ++d) head[d] = held_.Load(Slot(position), d);
    return head;
  }

  // How the fresh KV of a row differs from what is held of it, K before RoPE.
  std::vector<float> Deviation(int64_t row, ConstMatrixView fresh) const {
    std::vector<float> head = Held(plan_.position(row));
    if (is_keys_) reference::UnrotateHead(rope_, plan_.position(row), head.data());
    for (int32_t d = 0; d < pages_.head_dim; ++d) {
      head[d] = reference::Get(fresh, row, int64_t{head_} * pages_.head_dim + d) - head[d];
    }
    return head;
  }

  // What a token is to be moved by; empty where it stays.
  std::vector<float> MoveOf(int32_t token, const std::vector<int64_t>& rows, const DeviationSpread& spread,
                            const std::vector<std::vector<float>>& deviations) const {
    std::vector<double> sum(pages_.head_dim, 0.0);
    double weights = spread.reserve;
    bool is_near = spread.anywhere > 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t distance = std::abs(token - plan_.position(rows[i]));
      if (distance == 0) return {};
      if (static_cast<float>(distance) <= kSpreadReaches * spread.reach) is_near = true;
      const double weight = std::exp(-distance / static_cast<double>(spread.reach)) + spread.anywhere;
      weights += weight;
      for (int32_t d = 0; d < pages_.head_dim; ++d) sum[d] += weight * deviations[i][d];
    }
    std::vector<float> move;
    if (!is_near) return move;
    for (const double value : sum) move.push_back(static_cast<float>(value / weights));
    return move;
  }

  void Add(int32_t token, std::vector<float> move) const {
    if (is_keys_) reference::RotateHead(rope_, token, move.data());
    std::vector<float> head = Held(token);
    for (int32_t d = 0; d < pages_.head_dim; ++d) head[d] += move[d];
    held_.Store(Slot(token), head.data());
  }

  const HostBatchPlan& plan_;
  const HostRopeTable& rope_;
  const KvPagesView& pages_;
  const PageValues held_;
  const bool is_keys_;
  const int32_t head_;
};

}  // namespace

void SpreadDeviationByDefinition(const HostBatchPlan& plan, const HostRopeTable& rope,
                                 absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                 const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                 const KvPagesView& pages) {
  for (const ColumnRange& range : ranges) {
    const std::vector<int64_t> rows = RowsIn(plan, range);
    if (rows.empty()) continue;
    for (int32_t head = 0; head < pages.num_kv_heads; ++head) {
      HeadOfRange(plan, rope, pages, /*is_keys=*/true, head).Spread(range, rows, keys, k);
      HeadOfRange(plan, rope, pages, /*is_keys=*/false, head).Spread(range, rows, values, v);
    }
  }
}

}  // namespace kvblend::kernels
