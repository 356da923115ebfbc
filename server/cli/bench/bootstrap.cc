#include "server/cli/bench/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

constexpr uint64_t kSeed = 20221124;  // any number, always the same, so that a table can be repeated

double MeanOf(absl::Span<const double> values, absl::Span<const uint32_t> questions) {
  double sum = 0;
  for (const uint32_t question : questions) sum += values[question];
  return sum / static_cast<double>(questions.size());
}

}  // namespace

Bootstrap::Bootstrap(size_t num_questions) : num_questions_(num_questions) {
  if (num_questions < 2) return;
  std::mt19937_64 random(kSeed);
  draws_.resize(kResamples * num_questions);
  // Not a distribution of the standard library's, which each implementation draws in its own way.
  for (uint32_t& question : draws_) question = static_cast<uint32_t>(random() % num_questions);
}

Estimate Bootstrap::Of(Statistic statistic) const {
  Estimate estimate;
  if (num_questions_ == 0) return estimate;
  std::vector<uint32_t> all(num_questions_);
  std::iota(all.begin(), all.end(), 0);
  estimate.value = statistic(all);
  if (draws_.empty() || std::isnan(estimate.value)) return estimate;
  std::vector<double> figures(kResamples);
  for (size_t i = 0; i < figures.size(); ++i) {
    figures[i] = statistic(absl::MakeConstSpan(draws_).subspan(i * num_questions_, num_questions_));
    if (std::isnan(figures[i])) return estimate;
  }
  estimate.interval = {.low = Percentile(figures, 0.025), .high = Percentile(figures, 0.975)};
  return estimate;
}

Estimate Bootstrap::OfMean(absl::Span<const double> values) const {
  return Of([&](absl::Span<const uint32_t> questions) { return MeanOf(values, questions); });
}

Estimate Bootstrap::OfMedian(absl::Span<const double> values) const {
  if (std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); })) return {};
  std::vector<double> drawn;
  return Of([&](absl::Span<const uint32_t> questions) {
    drawn.clear();
    for (const uint32_t question : questions) drawn.push_back(values[question]);
    return Median(drawn);
  });
}

Estimate Bootstrap::OfRatio(absl::Span<const double> numerators,
                            absl::Span<const double> denominators) const {
  return Of([&](absl::Span<const uint32_t> questions) {
    return MeanOf(numerators, questions) / MeanOf(denominators, questions);
  });
}

}  // namespace kvblend::server::cli
