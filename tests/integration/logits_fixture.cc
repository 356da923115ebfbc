#include "tests/integration/logits_fixture.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblend::test_support {
namespace {

template <typename T>
void ReadInto(std::ifstream& file, T* values, size_t count) {
  file.read(reinterpret_cast<char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
}

double LogSumExp(absl::Span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

absl::StatusOr<LogitsFixture> ReadLogitsFixture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic(8, '\0');
  ReadInto(file, magic.data(), magic.size());
  uint32_t header[6] = {};
  ReadInto(file, header, 6);
  const auto [version, num_tokens, vocab_size, num_full, num_partial, top_k] = header;
  if (!file || magic != "KVBLOGIT" || version != 1) {
    return absl::DataLossError(absl::StrCat(path, ": not a logits fixture of version 1"));
  }
  LogitsFixture fixture;
  fixture.vocab_size = static_cast<int32_t>(vocab_size);
  fixture.token_ids.resize(num_tokens);
  ReadInto(file, fixture.token_ids.data(), num_tokens);
  fixture.top1.resize(num_tokens);
  ReadInto(file, fixture.top1.data(), num_tokens);
  fixture.full.resize(num_full);
  for (FullPosition& full : fixture.full) {
    ReadInto(file, &full.position, 1);
    full.log_probs.resize(vocab_size);
    ReadInto(file, full.log_probs.data(), vocab_size);
  }
  fixture.partial.resize(num_partial);
  for (PartialPosition& partial : fixture.partial) {
    ReadInto(file, &partial.position, 1);
    ReadInto(file, &partial.rest_log_prob, 1);
    partial.ids.resize(top_k);
    ReadInto(file, partial.ids.data(), top_k);
    partial.log_probs.resize(top_k);
    ReadInto(file, partial.log_probs.data(), top_k);
  }
  if (!file || file.peek() != std::ifstream::traits_type::eof()) {
    return absl::DataLossError(absl::StrCat(path, ": its size does not match its header"));
  }
  return fixture;
}

// The stored log-probabilities are rounded to float32; normalising them anew keeps that out of the result to
// first order.
double KlDivergence(const FullPosition& expected, absl::Span<const float> logits) {
  const double expected_normalizer = LogSumExp(expected.log_probs);
  const double normalizer = LogSumExp(logits);
  double divergence = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double log_p = expected.log_probs[id] - expected_normalizer;
    divergence += std::exp(log_p) * (log_p - (logits[id] - normalizer));
  }
  return divergence;
}

double KlDivergence(const PartialPosition& expected, absl::Span<const float> logits) {
  std::vector<float> expected_parts = expected.log_probs;
  expected_parts.push_back(expected.rest_log_prob);
  const double expected_normalizer = LogSumExp(expected_parts);
  const double normalizer = LogSumExp(logits);
  std::vector<bool> listed(logits.size(), false);
  double divergence = 0;
  for (size_t i = 0; i < expected.ids.size(); ++i) {
    const int32_t id = expected.ids[i];
    listed[id] = true;
    const double log_p = expected.log_probs[i] - expected_normalizer;
    divergence += std::exp(log_p) * (log_p - (logits[id] - normalizer));
  }
  double rest = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!listed[id]) rest += std::exp(logits[id] - normalizer);
  }
  const double log_p = expected.rest_log_prob - expected_normalizer;
  return divergence + std::exp(log_p) * (log_p - std::log(rest));
}

}  // namespace kvblend::test_support
