// What a request's trace tells of it, against what its report tells.
#include "engine/api/request_trace.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;

using Span = RequestTrace::Span;

class EngineTraceTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.keep_conversations = 0;  // each request of the same prompt does the same
    options.max_draft_tokens = 0;    // a token per step
    return options;
  }
  /// Long enough that choosing is worth it.
  static std::vector<std::string> Chunks() {
    return {std::string(90, 'a') + " Paris is in France.\n", std::string(90, 'b') + " Rome is in Italy.\n"};
  }
  std::shared_ptr<GenerateRecorder> Traced(GenerateRequest request) {
    trace_ = std::make_shared<RequestTrace>();
    request.caller.trace = trace_;
    auto recorder = Generate(std::move(request));
    spans_ = trace_->spans();
    return recorder;
  }
  /// Seconds and number by name.
  std::map<std::string, std::pair<double, int>> Sums() const {
    std::map<std::string, std::pair<double, int>> sums;
    for (const Span& span : spans_) {
      sums[span.name].first += 1e-9 * static_cast<double>(span.end - span.begin);
      ++sums[span.name].second;
    }
    return sums;
  }
  /// The spans of a track lie beside or within each other, and none ends before it begins.
  void ExpectNested(RequestTrace::Track track) const {
    std::vector<Span> spans;
    std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(spans),
                 [&](const Span& span) { return span.track == track; });
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<const Span*> open;
    for (const Span& span : spans) {
      EXPECT_GE(span.begin, 0) << span.name;
      EXPECT_LE(span.begin, span.end) << span.name;
      while (!open.empty() && open.back()->end <= span.begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back()->end) << span.name << " in " << open.back()->name;
      }
      open.push_back(&span);
    }
  }

  std::shared_ptr<RequestTrace> trace_;
  std::vector<Span> spans_;
};

TEST_F(EngineTraceTest, SpansAreNestedAndAddUpToTheReport) {
  Put(Chunks());
  // The trace and the report read their clocks one behind the other: what runs between the two, and the
  // processor being lost there, is their difference. So one request of a few has to agree, to a twentieth.
  double difference = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto recorder = Traced(Request(Chunks()));
    for (const auto track : {RequestTrace::Track::kRequest, RequestTrace::Track::kEngine})
      ExpectNested(track);
    const auto sums = Sums();
    const auto seconds = [&](const char* name) { return sums.contains(name) ? sums.at(name).first : 0.0; };
    const auto count = [&](const char* name) { return sums.contains(name) ? sums.at(name).second : 0; };
    const PromptReport& report = recorder->prompts.at(0);
    ASSERT_GT(report.recomputed_tokens, 0) << "the query pass has something to choose from";
    for (const char* once : {"request", "accept", "queue", "prompt", "answer", "prefill", "lookup",
                             "query pass", "pass", "select", "logits"}) {
      EXPECT_EQ(count(once), 1) << once;
    }
    EXPECT_EQ(count("layer"), 2 * engine_->info().num_layers) << "of the query pass and of the other";
    EXPECT_EQ(count("decode step"), recorder->result.completion_tokens - 1);
    EXPECT_NEAR(seconds("accept") + seconds("queue") + seconds("prompt") + seconds("answer"),
                seconds("request"), 1e-6);
    const std::pair<double, double> pairs[] = {
        {seconds("queue"), report.queue_seconds},
        {seconds("lookup") + seconds("pages"), report.lookup_seconds},
        {seconds("wait for stored KV") + seconds("place stored KV"), report.load_seconds},
        {seconds("query pass") + seconds("select") + seconds("pass") + seconds("logits"),
         report.load_seconds + report.select_seconds + report.prefill_seconds},
        {seconds("queue") + seconds("prompt"), report.time_to_first_token_seconds},
        {seconds("request") - seconds("accept"), recorder->result.total_seconds}};
    double largest = 0;
    for (const auto& [traced, reported] : pairs) largest = std::max(largest, std::abs(traced - reported));
    difference = std::min(difference, largest / recorder->result.total_seconds);
  }
  EXPECT_LT(difference, 0.05);
}

TEST_F(EngineTraceTest, TheSelectionByDeviationIsWithinItsLayer) {
  Put(Chunks());
  GenerateRequest request = Request(Chunks());
  request.blend.policy = Policy::kHkvd;
  Traced(request);
  ExpectNested(RequestTrace::Track::kEngine);
  const auto select = std::find_if(spans_.begin(), spans_.end(),
                                   [](const Span& span) { return std::string_view(span.name) == "select"; });
  ASSERT_NE(select, spans_.end());
  EXPECT_EQ(select->layer, request.blend.hkvd_layer);
}

TEST_F(EngineTraceTest, AStepTellsHowManyAnswersItWasFor) {
  HeldAnswer first;
  GenerateRequest request = Request();
  request.sampling.max_tokens = 40;
  ASSERT_TRUE(engine_->Generate(request, first.recorder).ok());
  first.started.WaitForNotification();
  const auto trace = std::make_shared<RequestTrace>();
  request.caller.trace = trace;
  const auto second = std::make_shared<GenerateRecorder>();
  ASSERT_TRUE(engine_->Generate(request, second).ok());
  first.go_on.Notify();
  first.recorder->Wait();
  second->Wait();
  int64_t most = 0;
  for (const Span& span : trace->spans()) {
    if (std::string_view(span.name) == "decode step") most = std::max(most, span.arguments[0].value);
  }
  EXPECT_EQ(most, 2);
}

TEST_F(EngineTraceTest, ARequestThatEndsInItsQueueHasThatAlone) {
  GenerateRequest request = Request();
  request.caller.deadline = absl::Now() - absl::Seconds(1);
  request.caller.trace = std::make_shared<RequestTrace>();
  const auto recorder = std::make_shared<GenerateRecorder>();
  if (engine_->Generate(request, recorder).ok()) recorder->Wait();
  spans_ = request.caller.trace->spans();
  EXPECT_THAT(Sums(), Not(Contains(Key("prefill"))));
  EXPECT_THAT(Sums(), Not(Contains(Key("answer"))));
}

// Which layers are measured is found out once, and behind the first token.
TEST_F(EngineTraceTest, TheFirstTokenDoesNotWaitForAttention) {
  GenerateRequest request = Request();
  request.sampling.attribution = true;
  const auto answer = Traced(request);
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  EXPECT_EQ(answer->result.attributions.size(), 8);
  int64_t said = -1, begun = -1;
  for (const Span& span : spans_) {
    if (span.name == std::string("prompt")) said = span.end;
    if (span.name == std::string("find attention") && begun < 0) begun = span.begin;
  }
  ASSERT_GE(said, 0);
  EXPECT_GE(begun, said);
  Traced(request);
  EXPECT_THAT(Sums(), Not(Contains(Key("find attention"))));
}

}  // namespace
}  // namespace kvblend
