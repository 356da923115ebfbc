// Trace contexts, timelines as JSON, and the folder of them.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/trace/trace_context.h"
#include "server/trace/trace_folder.h"
#include "server/trace/trace_json.h"
#include "server/trace/tracer.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpan[] = "00f067aa0ba902b7";

std::string Header(const std::string& version, const std::string& trace, const std::string& span,
                   const std::string& rest) {
  return version + "-" + trace + "-" + span + "-" + rest;
}

TEST(TraceContextTest, ValidHeadersAreTaken) {
  const auto context = ParseTraceParent(Header("00", kTrace, kSpan, "01"));
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->span_id, kSpan);
  EXPECT_TRUE(context->sampled);
  const std::pair<const char*, bool> flags[] = {{"00", false}, {"02", false}, {"03", true}, {"ff", true}};
  for (const auto& [digits, sampled] : flags) {
    const auto other = ParseTraceParent(Header("00", kTrace, kSpan, digits));
    ASSERT_TRUE(other.has_value()) << digits;
    EXPECT_EQ(other->sampled, sampled) << digits;
  }
  EXPECT_TRUE(ParseTraceParent(Header("01", kTrace, kSpan, "00")).has_value()) << "a later version";
  EXPECT_TRUE(ParseTraceParent(Header("cc", kTrace, kSpan, "00-what-comes-later")).has_value());
}

TEST(TraceContextTest, WhatTheSpecificationForbidsIsNoContext) {
  const std::string good = Header("00", kTrace, kSpan, "01");
  std::vector<std::string> bad = {"",
                                  "00",
                                  Header("ff", kTrace, kSpan, "01"),
                                  Header("0", kTrace, kSpan, "01"),
                                  Header("00", std::string(32, '0'), kSpan, "01"),
                                  Header("00", kTrace, std::string(16, '0'), "01"),
                                  Header("00", "4BF92F3577B34DA6A3CE929D0E0E4736", kSpan, "01"),
                                  Header("0A", kTrace, kSpan, "01"),
                                  Header("00", kTrace, kSpan, "0G"),
                                  Header("00", kTrace, kSpan, "01-more"),
                                  Header("01", kTrace, kSpan, "01.more"),
                                  Header("00", kTrace, kSpan, "1"),
                                  " " + good,
                                  good + " "};
  for (size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = 'x';
    bad.push_back(changed);
    bad.push_back(good.substr(0, i));
  }
  for (const std::string& header : bad) EXPECT_FALSE(ParseTraceParent(header).has_value()) << header;
}

TEST(TraceContextTest, ACallIsANewSpanOfItsCallersTraceOrOfANewOne) {
  const std::string parent = Header("00", kTrace, kSpan, "01");
  const TraceContext first = NewCall(parent), second = NewCall(parent);
  EXPECT_EQ(first.trace_id, kTrace);
  EXPECT_NE(first.span_id, kSpan);
  EXPECT_NE(first.span_id, second.span_id);
  const TraceContext own = NewCall("00-zz"), other = NewCall("");
  EXPECT_NE(own.trace_id, other.trace_id);
  EXPECT_THAT(ToHeader(own), MatchesRegex("00-[0-9a-f]{32}-[0-9a-f]{16}-00"));
  EXPECT_TRUE(ParseTraceParent(ToHeader(own)).has_value());
}

RequestTrace::Span Span(const char* name, int64_t begin, int64_t end, int32_t layer = -1) {
  return {.name = name, .begin = begin, .end = end, .layer = layer};
}

TEST(RequestTraceTest, UnitsOfOneKindBecomeOneSpanUnlessOthersHadTheirTurn) {
  RequestTrace trace;
  trace.AddUnit(Span("attend", 0, 100'000, 3));
  trace.AddUnit(Span("attend", 101'000, 200'000, 3));
  trace.AddUnit(Span("attend", 201'000, 300'000, 4));  // another layer
  trace.AddUnit(Span("mlp", 301'000, 400'000, 4));
  trace.AddUnit(Span("mlp", 400'000 + RequestTrace::kSameWorkNanoseconds + 1, 900'000, 4));  // later
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const RequestTrace::Span& span : trace.spans()) times.emplace_back(span.begin, span.end);
  EXPECT_THAT(times, ElementsAre(std::pair(0, 200'000), std::pair(201'000, 300'000),
                                 std::pair(301'000, 400'000), std::pair(420'001, 900'000)));
}

TEST(RequestTraceTest, IsBounded) {
  RequestTrace trace;
  for (size_t i = 0; i < RequestTrace::kMaxSpans + 5; ++i) {
    trace.Add(Span("x", static_cast<int64_t>(2 * i), static_cast<int64_t>(2 * i + 1)));
  }
  EXPECT_EQ(trace.spans().size(), RequestTrace::kMaxSpans);
  EXPECT_EQ(trace.dropped(), 5);
}

TEST(TraceJsonTest, IsWhatTheFormatAsksFor) {
  RequestTrace trace;
  trace.Add(Span("attend", 2'000, 5'001, 1));
  trace.Add(Span("layer", 1'500, 1'234'567, 1));
  trace.Add({.track = RequestTrace::Track::kRequest,
             .name = "queue",
             .begin = 0,
             .end = 1'500,
             .arguments = {RequestTrace::Argument{"ahead", 4}}});
  const auto json = nlohmann::json::parse(TraceJson(trace, {.trace_id = kTrace,
                                                            .span_id = kSpan,
                                                            .method = "Generate",
                                                            .code = "OK",
                                                            .request_id = "chatcmpl-1",
                                                            .client_request_id = "mine"}));
  EXPECT_EQ(json["otherData"]["trace_id"], kTrace);
  EXPECT_EQ(json["otherData"]["request_id"], "chatcmpl-1");
  EXPECT_EQ(json["otherData"]["client_request_id"], "mine");
  EXPECT_EQ(json["otherData"]["dropped_spans"], 0);
  std::map<int, std::string> threads;
  std::vector<nlohmann::json> events;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") events.push_back(event);
    if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
  }
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0]["name"], "queue");
  EXPECT_EQ(threads[events[0]["tid"]], "request");
  EXPECT_EQ(events[0]["args"]["ahead"], 4);
  EXPECT_EQ(events[1]["name"], "layer 1");  // before what is within it
  EXPECT_DOUBLE_EQ(events[1]["ts"], 1.5);
  EXPECT_DOUBLE_EQ(events[1]["dur"], 1233.067);
  EXPECT_EQ(events[2]["name"], "attend");
  EXPECT_EQ(events[2]["args"]["layer"], 1);
  EXPECT_EQ(threads[events[2]["tid"]], "engine thread");
  const RequestTrace empty;
  const auto unnamed = nlohmann::json::parse(TraceJson(empty, {}));
  EXPECT_FALSE(unnamed["otherData"].contains("request_id"));
}

class TraceFolderTest : public testing::Test {
 protected:
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  void Put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name) << bytes;
  }

  test_support::TemporaryFolder temporary_;
  const std::string path_ = temporary_.path() + "/traces";
  const absl::Time time_ = absl::FromUnixSeconds(1'700'000'000);
};

TEST_F(TraceFolderTest, TheOldestGoWhenThereAreTooManyFilesOrBytes) {
  std::filesystem::create_directories(path_);
  Put("kvblend-20200101T000000.000000000Z-0.json", "0123456789");  // an earlier server's
  Put("kvblend-20200101T000000.000000000Z-1.json.part", "half");   // which died
  Put("notes.txt", "somebody's");
  auto folder = TraceFolder::Open(path_, {.max_files = 3, .max_bytes = 25});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->num_files(), 1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE((*folder)->Write(time_ + absl::Seconds(i), std::to_string(i), "01234").ok());
  }
  EXPECT_EQ((*folder)->bytes(), 20);
  EXPECT_EQ(Names().size(), 4);
  ASSERT_TRUE((*folder)->Write(time_ + absl::Seconds(2), "2", "x").ok());  // one file too many
  EXPECT_THAT(Names(), ElementsAre("kvblend-20231114T221320.000000000Z-0.json",
                                   "kvblend-20231114T221321.000000000Z-1.json",
                                   "kvblend-20231114T221322.000000000Z-2.json", "notes.txt"));
  ASSERT_TRUE((*folder)->Write(time_ + absl::Seconds(3), "3", std::string(24, 'x')).ok());  // too many bytes
  EXPECT_THAT(Names(), ElementsAre("kvblend-20231114T221322.000000000Z-2.json",
                                   "kvblend-20231114T221323.000000000Z-3.json", "notes.txt"));
  EXPECT_THAT((*folder)->Write(time_, "4", std::string(26, 'x')).message(),
              AllOf(HasSubstr("26 bytes"), HasSubstr("at most 25")));
  EXPECT_EQ(Names().size(), 3);
}

TEST_F(TraceFolderTest, WhatIsNoFolderIsNamed) {
  std::ofstream(path_) << "a file";
  const auto folder = TraceFolder::Open(path_, {});
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(folder.status().message(), HasSubstr("--trace-dir is " + path_));
}

TEST_F(TraceFolderTest, AFolderThatCannotBeWrittenToIsNamed) {
  EXPECT_THAT(TraceFolder::Open("/proc/self", {}).status().message(),  // which takes no files, whoever asks
              AllOf(HasSubstr("--trace-dir is /proc/self: cannot create"),
                    HasSubstr("allowed: a folder to write to")));
  ASSERT_TRUE(TraceFolder::Open(path_, {}).ok());
  EXPECT_TRUE(Names().empty());
}

TEST_F(TraceFolderTest, AWriteThatFailsLeavesNothing) {
  auto folder = TraceFolder::Open(path_, {});
  ASSERT_TRUE(folder.ok());
  std::filesystem::remove_all(path_);
  std::ofstream(path_) << "a file";
  EXPECT_THAT((*folder)->Write(time_, "0", "x").message(), HasSubstr(path_));
  std::filesystem::remove(path_);
  ASSERT_TRUE((*folder)->Write(time_, "1", "x").ok()) << "it goes on when it can, in a folder made anew";
  EXPECT_EQ(Names().size(), 1);
  EXPECT_EQ((*folder)->num_files(), 1);
  // A device that is always full, in the place of the file that is written.
  const std::string full = temporary_.path() + "/full.json";
  std::filesystem::create_symlink("/dev/full", full + ".part");
  EXPECT_THAT(WriteWholeFile(full, "x").message(), HasSubstr("cannot write " + full));
  EXPECT_FALSE(std::filesystem::exists(full));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(full + ".part")));
}

TEST_F(TraceFolderTest, TracersKeepWhatCallersKeepAndAShareOfTheRest) {
  const auto tracer = Tracer::Open({.folder = path_, .sample = 0.25});
  ASSERT_TRUE(tracer.ok());
  EXPECT_TRUE(BeginCall(tracer->get(), Header("00", std::string(31, 'f') + "e", kSpan, "01")).sampled);
  EXPECT_FALSE(BeginCall(tracer->get(), Header("00", std::string(32, 'f'), kSpan, "00")).sampled);
  EXPECT_TRUE(BeginCall(tracer->get(), Header("00", std::string(18, 'f') + std::string(14, '1'), kSpan, "00"))
                  .sampled)
      << "0x11 / 0x100 is less than a quarter";
  EXPECT_FALSE(
      BeginCall(tracer->get(), Header("00", std::string(18, '0') + std::string(14, '4'), kSpan, "00"))
          .sampled);
  EXPECT_FALSE(BeginCall(nullptr, Header("00", kTrace, kSpan, "01")).sampled) << "nobody keeps it here";
  int kept = 0;
  constexpr int kCalls = 4000;
  for (int i = 0; i < kCalls; ++i) kept += BeginCall(tracer->get(), "").sampled ? 1 : 0;
  EXPECT_NEAR(kept, kCalls / 4, 6 * 27.4);  // six standard deviations: sqrt(4000 * 0.25 * 0.75)
}

TEST_F(TraceFolderTest, TracersWriteWhatHasSpansByTheirEnd) {
  {
    const auto tracer = Tracer::Open({.folder = path_, .sample = 1});
    ASSERT_TRUE(tracer.ok());
    const auto trace = std::make_shared<RequestTrace>();
    trace->Add(Span("x", 0, 1));
    (*tracer)->End(trace, {.trace_id = kTrace, .span_id = kSpan, .method = "Generate", .code = "OK"});
    (*tracer)->End(std::make_shared<RequestTrace>(),
                   {.trace_id = "empty", .span_id = "", .method = "", .code = ""});
    (*tracer)->End(nullptr, {});
  }
  ASSERT_EQ(Names().size(), 1);
  EXPECT_THAT(Names()[0], HasSubstr(kTrace));
}

}  // namespace
}  // namespace kvblend::server
