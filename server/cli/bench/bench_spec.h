// What the bench measures: the rows of its table and the knobs they share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/names.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server::cli {

/// How a prompt is prefilled.
enum class BenchMode : uint8_t {
  kFull,    // nothing reused: the reference for quality
  kPrefix,  // the exact prefix reused: system text, lead-in and first chunk
  kReuse,   // every chunk reused, nothing recomputed
  kBlend,   // every chunk reused, a policy's choice of tokens recomputed
};

/// For Name and ParseName.
NameTable<BenchMode> NamesOf(BenchMode);

/// A share of tokens to recompute; kAutoRatio: what the engine chooses by what loading and computing cost.
using BenchRatio = std::optional<double>;
inline constexpr BenchRatio kAutoRatio = std::nullopt;
/// A number or "auto".
absl::StatusOr<BenchRatio> ParseBenchRatio(std::string_view text);
/// "0.15" or "auto".
std::string RatioName(const BenchRatio& ratio);

/// One row of the table.
struct BenchVariant {
  BenchMode mode = BenchMode::kFull;
  std::optional<v1::Policy> policy = std::nullopt;  // reuse: none; empty for full and prefix
  std::optional<BenchRatio> ratio = std::nullopt;   // only for policies that have one
  int32_t query_layers = 0;                         // policy query: layers of its pass; 0: all
  v1::Anchoring anchoring = v1::ANCHORING_ANCHORED;
  bool correction = true;  // reuse and blend: the learned correction of stored KV, where the engine has one
  bool spread = true;      // blend: deviations are passed on

  v1::BlendOptions blend_options() const;
  /// "blend query 0.15 anchored", for progress and warnings.
  std::string Label() const;
  /// As ParseRow reads it: "full", "reuse", "query:0.15", "hkvd:auto:isolated", "cacheblend".
  std::string RowName() const;
  bool operator==(const BenchVariant&) const = default;
};

/// CacheBlend as published (EuroSys 2025): isolated chunks, the 15% of tokens recomputed whose values deviate
/// most at layer 1, no learned correction, deviations passed on to nobody.
BenchVariant CacheBlendAsPublished();

/// A row by its name: full, prefix, cacheblend, or WHAT[:RATIO][:LAYERS-layers][:isolated][:uncorrected]
/// [:unspread], where WHAT is reuse or a policy. kInvalidArgument: names the row and what is allowed.
absl::StatusOr<BenchVariant> ParseRow(const std::string& name);

/// One variant per combination that makes a difference: full and prefix come once (an exact prefix is always
/// anchored), policies without a ratio once per anchoring, numbers of voting layers only with policy query.
/// In the order full, prefix, then per anchoring and correction reuse and blend, whatever the order of
/// `modes`. kInvalidArgument when a list is empty that is needed, or a ratio is outside 0 to 1.
absl::StatusOr<std::vector<BenchVariant>> MakeVariants(const std::vector<BenchMode>& modes,
                                                       const std::vector<v1::Policy>& policies,
                                                       const std::vector<BenchRatio>& ratios,
                                                       const std::vector<v1::Anchoring>& anchorings,
                                                       const std::vector<int32_t>& query_layers = {0},
                                                       const std::vector<bool>& corrections = {true});

/// What is measured; each costs time of its own.
struct BenchMeasures {
  bool ttft = true;  // time to first token
  bool kl = true;    // divergence and top-1 agreement with full prefill
  bool nll = true;   // likelihood of the gold answer
  bool f1 = true;    // the generated answer
};

/// The measures named: each name is "ttft", "kl", "nll" or "f1".
absl::StatusOr<BenchMeasures> ParseMeasures(const std::vector<std::string>& names);

struct BenchOptions {
  std::vector<BenchVariant> variants;
  BenchMeasures measures;
  int max_passages = 0;  // per question; 0: all
  int repeats = 3;       // TTFT measurements per question and variant; their median counts
  int32_t kl_tokens = 16;
  int32_t answer_tokens = 32;
  std::string tenant_namespace;  // chunks that the bench stores live here, and are removed again

  /// Whether full prefill is among the variants.
  bool HasFull() const;
};

}  // namespace kvblend::server::cli
