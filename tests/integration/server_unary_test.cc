// The unary calls, refusals of bytes that are no message, health, and what a server does with its address.
#include <unistd.h>

#include <string>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/call_with_bytes.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/message_text.h"

namespace kvblend::server {
namespace {

using ::kvblend::test_support::FromText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServerUnaryTest : public ServerFixture {
 protected:
  /// The answer to one call of the method; its status must have `code` and hold `message`.
  template <typename Stub, typename Request, typename Response>
  static Response Call(Stub& stub,
                       grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                       const std::type_identity_t<Request>& request,
                       grpc::StatusCode code = grpc::StatusCode::OK, const std::string& message = "") {
    grpc::ClientContext context;
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(message));
    return response;
  }
  v1::StatChunksResponse Stat(const v1::StatChunksRequest& request) {
    return Call(*chunks_, &v1::Chunks::Stub::Stat, request);
  }
};

TEST_F(ServerUnaryTest, ChunksAreListedPageByPage) {
  for (int i = 0; i < 5; ++i) engine_.StoreChunk("tenant", i, 10 + i, "label");
  engine_.StoreChunk("other", 0, 10);
  auto request = FromText<v1::ListChunksRequest>(R"(namespace: "tenant"  page_size: 2)");
  std::vector<std::string> keys;
  std::vector<int> page_sizes;
  do {
    const v1::ListChunksResponse response = Call(*chunks_, &v1::Chunks::Stub::List, request);
    for (const v1::ChunkInfo& info : response.chunks()) {
      EXPECT_EQ(info.label(), "label");
      keys.push_back(info.key());
    }
    page_sizes.push_back(response.chunks_size());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(page_sizes, ElementsAre(2, 2, 1));
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));

  request.set_page_token("no token of ours");
  Call(*chunks_, &v1::Chunks::Stub::List, request, grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerUnaryTest, StatPinAndDeleteFindWhatIsThere) {
  const std::string key = engine_.StoreChunk("", 1, 10).ToHex();
  const std::string missing(64, 'a');
  v1::StatChunksRequest stat;
  stat.add_keys(missing);
  stat.add_keys(key);
  const v1::StatChunksResponse found = Stat(stat);
  ASSERT_EQ(found.chunks_size(), 1);
  EXPECT_EQ(found.chunks(0).key(), key);
  EXPECT_EQ(found.chunks(0).num_tokens(), 10);
  EXPECT_FALSE(found.chunks(0).pinned());
  EXPECT_THAT(found.missing_keys(), ElementsAre(missing));

  v1::PinChunksRequest pin;
  pin.add_keys(key);
  pin.add_keys(missing);
  const v1::PinChunksResponse pinned = Call(*chunks_, &v1::Chunks::Stub::Pin, pin);
  EXPECT_EQ(pinned.changed(), 1);
  EXPECT_THAT(pinned.missing_keys(), ElementsAre(missing));
  EXPECT_TRUE(Stat(stat).chunks(0).pinned());
  pin.set_pinned(false);
  Call(*chunks_, &v1::Chunks::Stub::Pin, pin);
  EXPECT_FALSE(Stat(stat).chunks(0).pinned());

  v1::DeleteChunksRequest remove;
  remove.set_namespace_("another");
  remove.add_keys(key);
  EXPECT_EQ(Call(*chunks_, &v1::Chunks::Stub::Delete, remove).deleted(), 0);  // of another namespace
  remove.clear_namespace_();
  EXPECT_EQ(Call(*chunks_, &v1::Chunks::Stub::Delete, remove).deleted(), 1);
  EXPECT_EQ(Stat(stat).chunks_size(), 0);
}

TEST_F(ServerUnaryTest, SplitAsksTheEngine) {
  auto request = FromText<v1::SplitDocumentRequest>(R"(text: "0123456789"  chunk_tokens: 4  goes_on: true)");
  const v1::SplitDocumentResponse response = Call(*chunks_, &v1::Chunks::Stub::Split, request);
  ASSERT_EQ(response.chunks_size(), 2);
  EXPECT_EQ(response.chunks(1).begin_byte(), 4);
  EXPECT_EQ(response.chunks(1).end_byte(), 8);
  EXPECT_TRUE(response.chunks(0).stored());
  EXPECT_FALSE(response.chunks(1).stored());
  EXPECT_EQ(response.next_byte(), 8);
  request.set_anchoring(static_cast<v1::Anchoring>(7));
  Call(*chunks_, &v1::Chunks::Stub::Split, request, grpc::StatusCode::INVALID_ARGUMENT, "anchoring is 7");
}

TEST_F(ServerUnaryTest, DeleteAllEmptiesOneNamespace) {
  for (int i = 0; i < 3; ++i) engine_.StoreChunk("tenant", i, 10);
  engine_.StoreChunk("other", 0, 10);
  const auto request = FromText<v1::DeleteChunksRequest>(R"(namespace: "tenant"  all: true)");
  EXPECT_EQ(Call(*chunks_, &v1::Chunks::Stub::Delete, request).deleted(), 3);
  EXPECT_EQ(engine_.chunk_store().Stats().entries, 1);
}

TEST_F(ServerUnaryTest, PinningBeyondTheLimitIsRefused) {
  v1::PinChunksRequest request;
  request.add_keys(engine_.StoreChunk("", 1, 2000).ToHex());  // 64 bytes per token; 64 KiB may be pinned
  Call(*chunks_, &v1::Chunks::Stub::Pin, request, grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerUnaryTest, BadKeysAreNamed) {
  v1::StatChunksRequest request;
  request.add_keys(std::string(64, 'a'));
  request.add_keys("xyz");
  Call(*chunks_, &v1::Chunks::Stub::Stat, request, grpc::StatusCode::INVALID_ARGUMENT, "keys[1]");
  Call(*chunks_, &v1::Chunks::Stub::Stat, {}, grpc::StatusCode::INVALID_ARGUMENT, "keys has 0 keys");
}

TEST_F(ServerUnaryTest, InfoTellsTheLimits) {
  const v1::GetInfoResponse response = Call(*admin_, &v1::Admin::Stub::GetInfo, {});
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.model().name(), "fake");
  EXPECT_EQ(response.limits().max_message_bytes(), 1 << 20);
  EXPECT_EQ(response.limits().max_queued_requests(), EngineOptions().max_queued_requests);
  EXPECT_GT(response.uptime_seconds(), 0);
}

TEST_F(ServerUnaryTest, TextThatIsNotUtf8IsNamed) {
  const std::string bad_prompt = "\x12\x04\x22\x02\xC3\x28";  // prompt { question: "\xC3\x28" }
  for (const char* method : {"/kvblend.v1.Inference/Generate", "/kvblend.v1.Inference/Score"}) {
    const grpc::Status status = CallWithBytes(channel_, method, bad_prompt);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("prompt.question is not valid UTF-8 at byte 0 of 2"));
  }
  for (const char* method : {"/kvblend.v1.Chunks/Put", "/kvblend.v1.Chunks/Stat", "/kvblend.v1.Chunks/List",
                             "/kvblend.v1.Chunks/Delete", "/kvblend.v1.Chunks/Pin"}) {
    const grpc::Status status = CallWithBytes(channel_, method,
                                              "\x0A\x02"
                                              "a\xFF");  // namespace
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("namespace is not valid UTF-8 at byte 1 of 2"));
  }
}

TEST_F(ServerUnaryTest, BytesThatAreNoMessageAreRefused) {
  const grpc::Status status = CallWithBytes(channel_, "/kvblend.v1.Admin/GetInfo", "\xFF\xFF");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("not a well-formed kvblend.v1.GetInfoRequest"));
  EXPECT_EQ(CallWithBytes(channel_, "/kvblend.v1.Admin/NoSuchMethod", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServerUnaryTest, AnAddressInUseIsAnErrorThatNamesIt) {
  GrpcServerOptions options;
  options.address = absl::StrCat("127.0.0.1:", server_->port());
  ServiceContext context;
  context.calls = &calls_;
  context.metrics = &metrics_;
  const auto in_use = GrpcServer::Start(options, context);
  EXPECT_EQ(in_use.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(in_use.status().message()), HasSubstr(options.address));
  options.address = "no such address";
  EXPECT_FALSE(GrpcServer::Start(options, context).ok());
  options.address = "127.0.0.1:0";
  options.tls.certificate_path = "/nonexistent";
  EXPECT_THAT(std::string(GrpcServer::Start(options, context).status().message()),
              HasSubstr("--tls-certificate: cannot read /nonexistent: "));
}

TEST_F(ServerUnaryTest, ListensOnUnixSockets) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/kvblend_", getpid(), ".sock");
  server_ = nullptr;
  Start("unix:" + path);
  Call(*admin_, &v1::Admin::Stub::GetInfo, {});
  server_ = nullptr;
  unlink(path.c_str());
}

}  // namespace
}  // namespace kvblend::server
