// The unary calls, refusals of bytes that are no message, health, and what a server does with its address.
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/slice.h"
#include "tests/integration/server_fixture.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ServerUnaryTest = ServerFixture;

TEST_F(ServerUnaryTest, ChunksAreListedPageByPage) {
  for (int i = 0; i < 5; ++i) engine_.StoreChunk("tenant", i, 10 + i, "label");
  engine_.StoreChunk("other", 0, 10);
  v1::ListChunksRequest request;
  request.set_namespace_("tenant");
  request.set_page_size(2);
  std::vector<std::string> keys;
  std::vector<int> page_sizes;
  do {
    grpc::ClientContext context;
    v1::ListChunksResponse response;
    ASSERT_TRUE(chunks_->List(&context, request, &response).ok());
    for (const v1::ChunkInfo& info : response.chunks()) {
      EXPECT_EQ(info.label(), "label");
      keys.push_back(info.key());
    }
    page_sizes.push_back(response.chunks_size());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(page_sizes, ElementsAre(2, 2, 1));
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));

  grpc::ClientContext context;
  v1::ListChunksResponse response;
  request.set_page_token("no token of ours");
  EXPECT_EQ(chunks_->List(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerUnaryTest, StatPinAndDeleteFindWhatIsThere) {
  const std::string key = engine_.StoreChunk("", 1, 10).ToHex();
  const std::string missing(64, 'a');
  v1::StatChunksRequest stat;
  stat.add_keys(missing);
  stat.add_keys(key);
  const auto stat_chunk = [&] {
    grpc::ClientContext context;
    v1::StatChunksResponse response;
    EXPECT_TRUE(chunks_->Stat(&context, stat, &response).ok());
    return response;
  };
  v1::StatChunksResponse found = stat_chunk();
  ASSERT_EQ(found.chunks_size(), 1);
  EXPECT_EQ(found.chunks(0).key(), key);
  EXPECT_EQ(found.chunks(0).num_tokens(), 10);
  EXPECT_FALSE(found.chunks(0).pinned());
  EXPECT_THAT(found.missing_keys(), ElementsAre(missing));

  v1::PinChunksRequest pin;
  pin.add_keys(key);
  pin.add_keys(missing);
  {
    grpc::ClientContext context;
    v1::PinChunksResponse response;
    ASSERT_TRUE(chunks_->Pin(&context, pin, &response).ok());
    EXPECT_EQ(response.changed(), 1);
    EXPECT_THAT(response.missing_keys(), ElementsAre(missing));
    EXPECT_TRUE(stat_chunk().chunks(0).pinned());
  }
  {
    pin.set_pinned(false);
    grpc::ClientContext context;
    v1::PinChunksResponse response;
    ASSERT_TRUE(chunks_->Pin(&context, pin, &response).ok());
    EXPECT_FALSE(stat_chunk().chunks(0).pinned());
  }

  v1::DeleteChunksRequest remove;
  remove.set_namespace_("another");
  remove.add_keys(key);
  {
    grpc::ClientContext context;
    v1::DeleteChunksResponse response;
    ASSERT_TRUE(chunks_->Delete(&context, remove, &response).ok());
    EXPECT_EQ(response.deleted(), 0);  // of another namespace
  }
  remove.clear_namespace_();
  {
    grpc::ClientContext context;
    v1::DeleteChunksResponse response;
    ASSERT_TRUE(chunks_->Delete(&context, remove, &response).ok());
    EXPECT_EQ(response.deleted(), 1);
    EXPECT_EQ(stat_chunk().chunks_size(), 0);
  }
}

TEST_F(ServerUnaryTest, SplitAsksTheEngine) {
  v1::SplitDocumentRequest request;
  request.set_text("0123456789");
  request.set_chunk_tokens(4);
  request.set_goes_on(true);
  {
    grpc::ClientContext context;
    v1::SplitDocumentResponse response;
    ASSERT_TRUE(chunks_->Split(&context, request, &response).ok());
    ASSERT_EQ(response.chunks_size(), 2);
    EXPECT_EQ(response.chunks(1).begin_byte(), 4);
    EXPECT_EQ(response.chunks(1).end_byte(), 8);
    EXPECT_TRUE(response.chunks(0).stored());
    EXPECT_FALSE(response.chunks(1).stored());
    EXPECT_EQ(response.next_byte(), 8);
  }
  request.set_anchoring(static_cast<v1::Anchoring>(7));
  grpc::ClientContext context;
  v1::SplitDocumentResponse response;
  const grpc::Status status = chunks_->Split(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("anchoring is 7"));
}

TEST_F(ServerUnaryTest, DeleteAllEmptiesOneNamespace) {
  for (int i = 0; i < 3; ++i) engine_.StoreChunk("tenant", i, 10);
  engine_.StoreChunk("other", 0, 10);
  v1::DeleteChunksRequest request;
  request.set_namespace_("tenant");
  request.set_all(true);
  grpc::ClientContext context;
  v1::DeleteChunksResponse response;
  ASSERT_TRUE(chunks_->Delete(&context, request, &response).ok());
  EXPECT_EQ(response.deleted(), 3);
  EXPECT_EQ(engine_.chunk_store().Stats().entries, 1);
}

TEST_F(ServerUnaryTest, PinningBeyondTheLimitIsRefused) {
  const std::string key =
      engine_.StoreChunk("", 1, 2000).ToHex();  // 64 bytes per token; 64 KiB may be pinned
  v1::PinChunksRequest request;
  request.add_keys(key);
  grpc::ClientContext context;
  v1::PinChunksResponse response;
  EXPECT_EQ(chunks_->Pin(&context, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerUnaryTest, BadKeysAreNamed) {
  v1::StatChunksRequest request;
  request.add_keys(std::string(64, 'a'));
  request.add_keys("xyz");
  grpc::ClientContext context;
  v1::StatChunksResponse response;
  const grpc::Status status = chunks_->Stat(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("keys[1]"));
  grpc::ClientContext empty_context;
  EXPECT_THAT(chunks_->Stat(&empty_context, {}, &response).error_message(), HasSubstr("keys has 0 keys"));
}

TEST_F(ServerUnaryTest, InfoTellsTheLimits) {
  grpc::ClientContext context;
  v1::GetInfoResponse response;
  ASSERT_TRUE(admin_->GetInfo(&context, {}, &response).ok());
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.model().name(), "fake");
  EXPECT_EQ(response.limits().max_message_bytes(), 1 << 20);
  EXPECT_EQ(response.limits().max_queued_requests(), EngineOptions().max_queued_requests);
  EXPECT_GT(response.uptime_seconds(), 0);
}

// Sends bytes as they are, and returns the status of the answer.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& bytes) {
  const grpc::Slice slice(bytes);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
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
  options.tls_certificate_path = "/nonexistent";
  EXPECT_THAT(std::string(GrpcServer::Start(options, context).status().message()),
              HasSubstr("--tls-certificate is '/nonexistent'"));
}

TEST_F(ServerUnaryTest, ListensOnUnixSockets) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/kvblend_", getpid(), ".sock");
  server_ = nullptr;
  Start("unix:" + path);
  grpc::ClientContext context;
  v1::GetInfoResponse response;
  EXPECT_TRUE(admin_->GetInfo(&context, {}, &response).ok());
  server_ = nullptr;
  unlink(path.c_str());
}

}  // namespace
}  // namespace kvblend::server
