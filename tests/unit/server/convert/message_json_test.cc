#include "server/convert/message_json.h"

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"
#include "nlohmann/json.hpp"
#include "tests/support/message_text.h"

namespace kvblend::server {
namespace {

using testing::HasSubstr;

TEST(MessageJsonTest, ReadsEveryKindOfField) {
  v1::GenerateRequest request;
  const absl::Status status = ParseJson(R"({
      "namespace": "tenant",
      "prompt": {"system_text": "S", "leadIn": "L", "chunks": ["a", "b"], "question": "Q",
                 "history": [{"role": "user", "text": "u"}, {"role": "ROLE_ASSISTANT", "text": "v"}]},
      "blend": {"reuse": "prefix", "anchoring": "ANCHORING_ISOLATED", "policy": "hkvd", "ratio": 0.25,
                "random_seed": 18446744073709551615, "store_misses": false, "ratio_mode": "auto"},
      "sampling": {"max_tokens": 5, "temperature": 1, "stop": ["x", "yy"], "ignore_eos": true}})",
                                        request);
  ASSERT_TRUE(status.ok()) << status;
  test_support::ExpectMessage(request, R"(
      namespace: "tenant"
      prompt { system_text: "S"  lead_in: "L"  chunks: [ "a", "b" ]  question: "Q"
               history { role: ROLE_USER  text: "u" }  history { role: ROLE_ASSISTANT  text: "v" } }
      blend { reuse: REUSE_PREFIX  anchoring: ANCHORING_ISOLATED  policy: POLICY_HKVD  ratio: 0.25
              random_seed: 18446744073709551615  store_misses: false  ratio_mode: RATIO_MODE_AUTO }
      sampling { max_tokens: 5  temperature: 1  stop: [ "x", "yy" ]  ignore_eos: true })");
}

TEST(MessageJsonTest, ErrorsNameTheField) {
  const auto message = [](const char* json) {
    v1::GenerateRequest request;
    const absl::Status status = ParseJson(json, request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(status.message());
  };
  EXPECT_THAT(message("{"), HasSubstr("not valid JSON"));
  EXPECT_EQ(message("[]"), "the request's JSON is of type array; allowed: an object");
  EXPECT_THAT(message(R"({"promt": {}})"), HasSubstr("promt"));
  EXPECT_THAT(message(R"({"blend": {"ration": 1}})"), HasSubstr("ration"));
  EXPECT_THAT(message(R"({"blend": {"ratio": "much"}})"), HasSubstr("ratio"));
  EXPECT_THAT(message(R"({"blend": {"policy": "best"}})"), HasSubstr("best"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 1.5}})"), HasSubstr("max_tokens"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 3000000000}})"), HasSubstr("max_tokens"));
  EXPECT_THAT(message(R"({"sampling": {"seed": -1}})"), HasSubstr("seed"));
  EXPECT_THAT(message(R"({"prompt": {"chunks": ["a", {}]}})"), HasSubstr("chunks"));
  EXPECT_THAT(message(R"({"prompt": {"history": [{"role": "boss"}]}})"), HasSubstr("boss"));
  // Protobuf's parser would take these.
  EXPECT_EQ(message(R"({"sampling": {"ignore_eos": "yes"}})"),
            "sampling.ignore_eos is no boolean; allowed: true or false");
  EXPECT_EQ(message(R"({"sampling": {"ignoreEos": "no"}})"),
            "sampling.ignoreEos is no boolean; allowed: true or false");
  EXPECT_EQ(message(R"({"prompt": {"chunks": "a"}})"), "prompt.chunks is no array; allowed: an array");
  EXPECT_EQ(message(R"({"prompt": {"history": {}}})"), "prompt.history is no array; allowed: an array");
  EXPECT_EQ(message(R"({"prompt": {"chunks": ["a", null, "b"]}})"),
            "prompt.chunks[1] is null; allowed: a value of the list");
  EXPECT_EQ(message(R"({"prompt": {"chunks": [["a", "b"], "c"]}})"),
            "prompt.chunks[0] is an array; allowed: a value of the list");
  EXPECT_EQ(message(R"({"prompt": {"history": [null]}})"),
            "prompt.history[0] is null; allowed: a value of the list");
  EXPECT_EQ(message(R"({"prompt": {"lead_in": "a", "leadIn": "b"}})"),
            "prompt.lead_in is set under another name, too; allowed: lead_in alone");
}

TEST(MessageJsonTest, NullIsAbsentAndMapsAreObjects) {
  v1::GenerateRequest request;
  const absl::Status status = ParseJson(
      R"({"prompt": {"chunks": null}, "sampling": {"ignore_eos": null, "logit_bias": {"5": 1.5}}})", request);
  ASSERT_TRUE(status.ok()) << status;
  test_support::ExpectMessage(request, R"(prompt {} sampling { logit_bias { key: 5 value: 1.5 } })");
}

TEST(MessageJsonTest, WritesEveryFieldUnderItsOwnName) {
  v1::ChunkReport report;
  report.set_source(v1::CHUNK_SOURCE_OTHER_ANCHOR);
  report.set_key("k");
  EXPECT_EQ(nlohmann::json::parse(MessageToJson(report)),
            nlohmann::json({{"index", 0},
                            {"source", "CHUNK_SOURCE_OTHER_ANCHOR"},
                            {"tier", "TIER_UNSPECIFIED"},
                            {"num_tokens", 0},
                            {"recomputed_tokens", 0},
                            {"key", "k"}}));
}

v1::SplitDocumentResponse SplitInto(int chunks) {
  v1::SplitDocumentResponse response;
  for (int i = 0; i < chunks; ++i) {
    v1::DocumentChunk& chunk = *response.add_chunks();
    chunk.set_begin_byte(i);
    chunk.set_key("],\"next_byte\":\"0\"}" + std::to_string(i));
    chunk.set_stored(i % 2 == 0);
  }
  response.set_next_byte(7 * chunks);
  return response;
}

TEST(MessageJsonTest, ASplitIsPrintedAsOtherMessages) {
  for (const int chunks : {0, 1, 255, 256, 257, 1000}) {
    EXPECT_EQ(SplitToJson(SplitInto(chunks)), MessageToJson(SplitInto(chunks))) << chunks;
  }
}

// The most memory that this process has ever had.
int64_t PeakKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

TEST(MessageJsonTest, ALongSplitTakesLittleMoreMemoryThanItsJson) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer keeps what was freed";
#endif
  const v1::SplitDocumentResponse response = SplitInto(50'000);
  const int64_t before = PeakKilobytes();
  if (before == 0) GTEST_SKIP() << "/proc/self/status has no VmHWM";
  const std::string json = SplitToJson(response);
  EXPECT_LT(PeakKilobytes() - before, 5 * static_cast<int64_t>(json.size()) / 1024);
}

}  // namespace
}  // namespace kvblend::server
