#include "server/cli/grpc_client.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/api/status_macros.h"
#include "google/protobuf/empty.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/cli/grpc_convert.h"
#include "server/convert/reports.h"
#include "server/convert/requests.h"

namespace kvblend::server::cli {
namespace {

// Unary calls only look things up; a server that needs longer for that hangs.
constexpr std::chrono::seconds kUnaryTimeout{30};

class GrpcClient : public EngineClient {
 public:
  GrpcClient(const std::string& address, Cancellation& cancellation)
      : address_(address), cancellation_(cancellation), channel_(MakeChannel(address)) {}

  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request,
                                          const GenerateCallbacks& callbacks) override {
    std::optional<GenerateResult> result;
    KVBLEND_RETURN_IF_ERROR(Stream<v1::GenerateEvent>(
        request.caller,
        [&](grpc::ClientContext& context) { return inference_->Generate(&context, ToProto(request)); },
        [&](const v1::GenerateEvent& event) {
          if (event.has_prompt() && callbacks.on_prompt) callbacks.on_prompt(FromProto(event.prompt()));
          if (event.has_text() && callbacks.on_text) callbacks.on_text(FromProto(event.text()));
          if (event.has_finished()) result = FromProto(event.finished());
        }));
    if (!result) return absl::InternalError("the server ended the answer without saying why");
    return *result;
  }

  absl::StatusOr<Scores> Score(const ScoreRequest& request) override {
    Scores scores;
    KVBLEND_RETURN_IF_ERROR(Stream<v1::ScoreEvent>(
        request.caller,
        [&](grpc::ClientContext& context) { return inference_->Score(&context, ToProto(request)); },
        [&](const v1::ScoreEvent& event) {
          if (event.has_prompt()) scores.prompt = FromProto(event.prompt());
          if (event.has_token()) scores.tokens.push_back(FromProto(event.token()));
        }));
    return scores;
  }

  absl::Status PutChunks(const PutChunksRequest& request,
                         const std::function<void(const PutChunkProgress&)>& on_progress) override {
    return Stream<v1::PutChunkProgress>(
        request.caller,
        [&](grpc::ClientContext& context) { return chunks_->Put(&context, ToProto(request)); },
        [&](const v1::PutChunkProgress& progress) {
          if (on_progress) on_progress(FromProto(progress));
        });
  }

  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override {
    v1::SplitDocumentResponse response;
    KVBLEND_RETURN_IF_ERROR(Unary(
        [&](grpc::ClientContext& context) { return chunks_->Split(&context, ToProto(request), &response); }));
    return FromProto(response);
  }

  absl::StatusOr<StatResult> StatChunks(const std::string& tenant_namespace,
                                        absl::Span<const std::string> keys) override {
    v1::StatChunksRequest request;
    request.set_namespace_(tenant_namespace);
    for (const std::string& key : keys) request.add_keys(key);
    v1::StatChunksResponse response;
    KVBLEND_RETURN_IF_ERROR(
        Unary([&](grpc::ClientContext& context) { return chunks_->Stat(&context, request, &response); }));
    StatResult result;
    for (const v1::ChunkInfo& chunk : response.chunks()) result.chunks.push_back(ToChunkInfo(chunk));
    result.missing_keys.assign(response.missing_keys().begin(), response.missing_keys().end());
    return result;
  }

  absl::StatusOr<ChunkPage> ListChunks(const std::string& tenant_namespace, int32_t page_size,
                                       const std::string& page_token) override {
    v1::ListChunksRequest request;
    request.set_namespace_(tenant_namespace);
    if (page_size != 0) request.set_page_size(page_size);
    request.set_page_token(page_token);
    v1::ListChunksResponse response;
    KVBLEND_RETURN_IF_ERROR(
        Unary([&](grpc::ClientContext& context) { return chunks_->List(&context, request, &response); }));
    ChunkPage page{.chunks = {}, .next_page_token = response.next_page_token()};
    for (const v1::ChunkInfo& chunk : response.chunks()) page.chunks.push_back(ToChunkInfo(chunk));
    return page;
  }

  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(const PrefetchChunksRequest& request) override {
    v1::PrefetchChunksResponse response;
    KVBLEND_RETURN_IF_ERROR(Unary([&](grpc::ClientContext& context) {
      return chunks_->Prefetch(&context, ToProto(request), &response);
    }));
    std::vector<PrefetchedChunk> chunks;
    for (const v1::PrefetchedChunk& message : response.chunks()) {
      chunks.push_back(ToPrefetchedChunk(message));
    }
    return chunks;
  }

  absl::StatusOr<ChangeResult> DeleteChunks(const std::string& tenant_namespace,
                                            absl::Span<const std::string> keys) override {
    v1::DeleteChunksRequest request;
    request.set_namespace_(tenant_namespace);
    for (const std::string& key : keys) request.add_keys(key);
    return Delete(request);
  }

  absl::StatusOr<ChangeResult> DeleteAllChunks(const std::string& tenant_namespace) override {
    v1::DeleteChunksRequest request;
    request.set_namespace_(tenant_namespace);
    request.set_all(true);
    return Delete(request);
  }

  absl::StatusOr<ChangeResult> PinChunks(const std::string& tenant_namespace,
                                         absl::Span<const std::string> keys, bool pinned) override {
    v1::PinChunksRequest request;
    request.set_namespace_(tenant_namespace);
    for (const std::string& key : keys) request.add_keys(key);
    request.set_pinned(pinned);
    v1::PinChunksResponse response;
    KVBLEND_RETURN_IF_ERROR(
        Unary([&](grpc::ClientContext& context) { return chunks_->Pin(&context, request, &response); }));
    return ChangeResult{.changed = response.changed(),
                        .missing_keys = {response.missing_keys().begin(), response.missing_keys().end()}};
  }

  absl::StatusOr<Info> GetInfo() override {
    v1::GetInfoResponse response;
    KVBLEND_RETURN_IF_ERROR(Unary([&](grpc::ClientContext& context) {
      return admin_->GetInfo(&context, v1::GetInfoRequest(), &response);
    }));
    return ToInfo(response);
  }

  // The messages of grpc.health.v1 are not packaged for C++; on the wire an empty request asks about the
  // whole server, and the response is a message whose field 1 is an enumeration.
  absl::Status CheckHealth() override {
    constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
    constexpr int kServing = 1;
    const google::protobuf::Empty request;
    google::protobuf::Int32Value response;
    grpc::TemplatedGenericStub<google::protobuf::Empty, google::protobuf::Int32Value> health(channel_);
    KVBLEND_RETURN_IF_ERROR(Unary([&](grpc::ClientContext& context) {
      grpc::Status result;
      absl::Notification done;
      health.UnaryCall(&context, kMethod, grpc::StubOptions(), &request, &response, [&](grpc::Status status) {
        result = std::move(status);
        done.Notify();
      });
      done.WaitForNotification();
      return result;
    }));
    if (response.value() == kServing) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("server ", address_, " is not serving: starting or shutting down"));
  }

 private:
  static std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // distributions over a large vocabulary take megabytes
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  // Ctrl-C ends streams only: what is looked up or cleaned up after it must still go through.
  template <typename Message, typename Start, typename OnMessage>
  absl::Status Stream(const Caller& caller, Start start, OnMessage on_message) {
    grpc::ClientContext context;
    if (caller.deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(caller.deadline));
    const Cancellation::Listener listener(cancellation_, [&] { context.TryCancel(); });
    const auto reader = start(context);
    Message message;
    while (reader->Read(&message)) on_message(message);
    return Explain(reader->Finish());
  }

  template <typename Call>
  absl::Status Unary(Call call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kUnaryTimeout);
    return Explain(call(context));
  }

  absl::StatusOr<ChangeResult> Delete(const v1::DeleteChunksRequest& request) {
    v1::DeleteChunksResponse response;
    KVBLEND_RETURN_IF_ERROR(
        Unary([&](grpc::ClientContext& context) { return chunks_->Delete(&context, request, &response); }));
    return ChangeResult{.changed = response.deleted(),
                        .missing_keys = {response.missing_keys().begin(), response.missing_keys().end()}};
  }

  absl::Status Explain(const grpc::Status& status) const {
    const absl::Status converted = FromGrpc(status);
    if (!absl::IsUnavailable(converted)) return converted;
    return absl::UnavailableError(absl::StrCat("server ", address_, ": ", converted.message()));
  }

  const std::string address_;
  Cancellation& cancellation_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> inference_ = v1::Inference::NewStub(channel_);
  const std::unique_ptr<v1::Chunks::Stub> chunks_ = v1::Chunks::NewStub(channel_);
  const std::unique_ptr<v1::Admin::Stub> admin_ = v1::Admin::NewStub(channel_);
};

}  // namespace

std::unique_ptr<EngineClient> CreateGrpcClient(const std::string& address, Cancellation& cancellation) {
  return std::make_unique<GrpcClient>(address, cancellation);
}

}  // namespace kvblend::server::cli
