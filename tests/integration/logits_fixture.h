// Reads tests/fixtures/logits/*.bin; the README there describes the format and what it can measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::test_support {

struct FullPosition {
  int32_t position = 0;
  std::vector<float> log_probs;  // [vocab]
};

struct PartialPosition {
  int32_t position = 0;
  float rest_log_prob = 0;  // log of the mass outside of `ids`
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

struct LogitsFixture {
  int32_t vocab_size = 0;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> top1;  // most likely next token after each position
  std::vector<FullPosition> full;
  std::vector<PartialPosition> partial;
};

absl::StatusOr<LogitsFixture> ReadLogitsFixture(const std::string& path);

// KL(expected || softmax(logits)) in nats. The partial form counts all tokens outside of `ids` as one.
double KlDivergence(const FullPosition& expected, absl::Span<const float> logits);
double KlDivergence(const PartialPosition& expected, absl::Span<const float> logits);

}  // namespace kvblend::test_support
