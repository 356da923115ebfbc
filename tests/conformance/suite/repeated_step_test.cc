// What a RepeatedStep does is what its operations do, bit for bit.
#include <string>

#include "tests/conformance/tiny_decoder.h"

namespace kvblend::kernels {
namespace {

class RepeatedStepTest : public ConformanceTest {};

// Contexts grow, sequences come and go, and every row samples in its own way.
TEST_P(RepeatedStepTest, StepsAreThoseOfTheirOperations) {
  constexpr int32_t kSequences = 4;
  for (const DataType pages : {kBF16, kF32}) {
    TinyDecoder repeated(backend, kSequences, pages), direct(backend, kSequences, pages);
    const std::unique_ptr<RepeatedStep> step = repeated.MakeStep();
    const auto set_length = [&](int32_t sequence, int32_t length) {
      repeated.SetLength(sequence, length);
      direct.SetLength(sequence, length);
    };
    const std::vector<LogitChange> changes = {{3, true}, {17, true, -0.5f}, {170, false, 2}, {299, true}};
    std::vector<bool> decodes(kSequences);
    for (int round = 0; round < 48; ++round) {
      SCOPED_TRACE("round " + std::to_string(round) + ", pages of type " +
                   std::to_string(static_cast<int>(pages)));
      const auto changed = static_cast<int32_t>(rng() % (2 * kSequences));
      if (changed < kSequences) {
        decodes[changed] = !decodes[changed];
        set_length(changed, static_cast<int32_t>(rng() % 3 * 120 + rng() % 40));
      }
      std::vector<TinyDecoder::Next> next;
      for (int32_t s = 0; s < kSequences; ++s) {
        if (!decodes[s]) continue;
        next.push_back({s, static_cast<int32_t>(rng() % TinyDecoder::kVocab), RandomSpec(rng, changes)});
      }
      const auto expected = direct.Run(nullptr, next), actual = repeated.Run(step.get(), next);
      ASSERT_OK(expected.status());
      ASSERT_OK(actual.status());
      ExpectSameTokens(*actual, *expected);
    }
    EXPECT_EQ(repeated.Kv(), direct.Kv());
    EXPECT_EQ(step->problem(), "");
  }
}

// Values that are not allowed are refused, however often the shape was seen before, and nothing is lost.
TEST_P(RepeatedStepTest, ValuesAreCheckedInEveryStep) {
  TinyDecoder repeated(backend, 2), direct(backend, 2);
  const std::unique_ptr<RepeatedStep> step = repeated.MakeStep();
  const auto run_both = [&](int32_t token) {
    const std::vector<TinyDecoder::Next> next = {{0, token}, {1, token + 1}};
    const auto expected = direct.Run(nullptr, next), actual = repeated.Run(step.get(), next);
    ASSERT_OK(expected.status());
    ASSERT_OK(actual.status());
    ExpectSameTokens(*actual, *expected);
  };
  for (int32_t token = 10; token < 14; ++token) run_both(token);

  const auto expect_refused = [&](const TinyDecoder::Next& bad, const std::string& what) {
    const std::vector<int32_t> lengths = {repeated.length(0), repeated.length(1)};
    ExpectInvalid(repeated.Run(step.get(), {{0, 1}, bad}).status(), {what});
    for (const int32_t s : {0, 1}) repeated.SetLength(s, lengths[s]);
  };
  expect_refused({1, TinyDecoder::kVocab}, "Embed: token_ids[1] is 300");
  expect_refused({1, -1}, "Embed: token_ids[1] is -1");
  expect_refused({1, 5, {.temperature = -1}}, "SampleTokens");
  expect_refused({1, 5, {.scored_token = TinyDecoder::kVocab}}, "SampleTokens");
  for (int32_t token = 20; token < 24; ++token) run_both(token);
  for (TinyDecoder* decoder : {&repeated, &direct}) decoder->SetLength(1, TinyDecoder::kMaxPosition - 4);
  for (int32_t token = 30; token < 34; ++token) run_both(token);
  expect_refused({1, 34}, "the plan has position 752");
  EXPECT_EQ(repeated.Kv(), direct.Kv());
}

INSTANTIATE_CONFORMANCE(RepeatedStepTest);

}  // namespace
}  // namespace kvblend::kernels
