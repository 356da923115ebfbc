// Asks the engine all that the bench measures on one question.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/dataset.h"
#include "server/cli/bench/question_result.h"
#include "server/cli/bench/reference_cache.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

/// Where full prefill's results are kept between runs, and for which engine they hold.
struct KeptReferences {
  ReferenceCache* cache = nullptr;  // null: nowhere
  OrderedJson engine;
};

/// In the order StoreChunks, MakeReference, Measure..., RemoveChunks. Everything that is given must outlive
/// it.
class QuestionRunner {
 public:
  QuestionRunner(Client& client, const BenchQuestion& question, const BenchOptions& options,
                 const KeptReferences& kept);

  /// Puts the chunks that the variants reuse; remembers which ones to remove.
  absl::Status StoreChunks();
  absl::Status RemoveChunks();

  /// What full prefill gives, as far as the measures need it: from where it is kept, or computed.
  absl::Status MakeReference();

  absl::Status MeasureDivergence(const BenchVariant& variant, QuestionResult& result);
  absl::Status MeasureLikelihood(const BenchVariant& variant, QuestionResult& result);
  absl::Status MeasureAnswer(const BenchVariant& variant, QuestionResult& result);
  /// Always of this run: never kept.
  absl::Status MeasureTtft(const BenchVariant& variant, QuestionResult& result);

 private:
  template <typename Request>
  Request MakeRequest(const BenchVariant& variant) const;
  v1::GenerateRequest MakeGenerate(const BenchVariant& variant, int32_t max_tokens) const;

  absl::StatusOr<ReferencePart> KeptOr(std::string_view what, int32_t tokens, std::string_view text,
                                       absl::FunctionRef<absl::StatusOr<ReferencePart>()> compute);

  // These run for any variant; the reference is what they give for full prefill.
  absl::StatusOr<ReferencePart> WriteAndScoreGreedyTokens();
  absl::StatusOr<ReferencePart> ScoreGreedyTokens(const BenchVariant& variant,
                                                  const std::vector<int32_t>& tokens);
  absl::StatusOr<ReferencePart> ScoreGoldAnswer(const BenchVariant& variant);
  absl::StatusOr<ReferencePart> Answer(const BenchVariant& variant);

  Client& client_;
  const BenchQuestion& question_;
  const BenchOptions& options_;
  const KeptReferences& kept_;
  const v1::Prompt prompt_;
  // Full prefill's.
  std::vector<int32_t> greedy_tokens_;
  ReferencePart greedy_scores_;
  ReferencePart gold_scores_;
  ReferencePart answer_;
  std::set<std::string> new_keys_;
};

}  // namespace kvblend::server::cli
