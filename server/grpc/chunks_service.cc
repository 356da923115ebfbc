// kvblend.v1.Chunks.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/chunk_catalog.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "server/convert/enums.h"
#include "server/convert/reports.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

constexpr char kService[] = "Chunks";

class PutToStream : public PutChunksObserver {
 public:
  explicit PutToStream(StreamCall call) : call_(std::move(call)) {}

  void OnProgress(const PutChunkProgress& progress) override {
    call_.metrics->ObservePutChunk(progress);
    call_.log->prompt_tokens += progress.num_tokens;
    call_.stream->Push(ToByteBuffer(ToProto(progress)));
  }

  void OnDone(const absl::Status& status) override { call_.stream->Close(ToGrpcStatus(status)); }

 private:
  const StreamCall call_;
};

// The keys of a request; kInvalidArgument names the first that is none.
absl::StatusOr<std::vector<ChunkKey>> ParseKeys(const google::protobuf::RepeatedPtrField<std::string>& keys) {
  std::vector<ChunkKey> parsed;
  parsed.reserve(keys.size());
  for (int i = 0; i < keys.size(); ++i) {
    absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(keys[i]);
    if (!key.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("keys[", i, "]: ", key.status().message()));
    }
    parsed.push_back(*key);
  }
  return parsed;
}

absl::StatusOr<v1::StatChunksResponse> Stat(ChunkCatalog& chunk_store, const v1::StatChunksRequest& request) {
  if (absl::Status status = CheckKeyCount(request.keys_size(), false); !status.ok()) return status;
  const auto keys = ParseKeys(request.keys());
  if (!keys.ok()) return keys.status();
  v1::StatChunksResponse response;
  for (const ChunkKey& key : *keys) {
    const absl::StatusOr<ChunkInfo> info = chunk_store.Stat(request.namespace_(), key);
    if (info.ok()) {
      *response.add_chunks() = ToProto(*info);
    } else if (absl::IsNotFound(info.status())) {
      response.add_missing_keys(key.ToHex());
    } else {
      return info.status();
    }
  }
  return response;
}

absl::StatusOr<v1::ListChunksResponse> List(ChunkCatalog& chunk_store, const v1::ListChunksRequest& request) {
  const absl::StatusOr<int> page_size = PageSize(request);
  if (!page_size.ok()) return page_size.status();
  const absl::StatusOr<ChunkPage> page =
      chunk_store.List(request.namespace_(), request.page_token(), *page_size);
  if (!page.ok()) return page.status();
  v1::ListChunksResponse response;
  for (const ChunkInfo& info : page->chunks) *response.add_chunks() = ToProto(info);
  response.set_next_page_token(page->next_page_token);
  return response;
}

absl::StatusOr<v1::DeleteChunksResponse> Delete(ChunkCatalog& chunk_store,
                                                const v1::DeleteChunksRequest& request) {
  if (absl::Status status = CheckKeyCount(request.keys_size(), request.all()); !status.ok()) return status;
  const auto keys = ParseKeys(request.keys());
  if (!keys.ok()) return keys.status();
  v1::DeleteChunksResponse response;
  if (request.all()) {
    response.set_deleted(chunk_store.Clear(request.namespace_()));
    return response;
  }
  for (const ChunkKey& key : *keys) {
    if (chunk_store.Erase(request.namespace_(), key)) {
      response.set_deleted(response.deleted() + 1);
    } else {
      response.add_missing_keys(key.ToHex());
    }
  }
  return response;
}

absl::StatusOr<v1::PinChunksResponse> Pin(ChunkCatalog& chunk_store, const v1::PinChunksRequest& request) {
  if (absl::Status status = CheckKeyCount(request.keys_size(), false); !status.ok()) return status;
  const auto keys = ParseKeys(request.keys());
  if (!keys.ok()) return keys.status();
  const bool pinned = request.has_pinned() ? request.pinned() : true;
  v1::PinChunksResponse response;
  for (const ChunkKey& key : *keys) {
    const absl::Status status =
        pinned ? chunk_store.Pin(request.namespace_(), key) : chunk_store.Unpin(request.namespace_(), key);
    if (status.ok()) {
      response.set_changed(response.changed() + 1);
    } else if (absl::IsNotFound(status)) {
      response.add_missing_keys(key.ToHex());
    } else {
      return status;
    }
  }
  return response;
}

absl::StatusOr<v1::SplitDocumentResponse> Split(Engine& engine, v1::SplitDocumentRequest&& wire) {
  const absl::StatusOr<SplitDocumentRequest> request = FromProto(std::move(wire));
  if (!request.ok()) return request.status();
  const absl::StatusOr<DocumentChunks> chunks = engine.SplitDocument(*request);
  if (!chunks.ok()) return chunks.status();
  return ToProto(*chunks);
}

absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(Engine& engine, v1::PrefetchChunksRequest&& wire) {
  absl::StatusOr<PrefetchChunksRequest> request = FromProto(std::move(wire));
  if (!request.ok()) return request.status();
  const auto chunks = engine.PrefetchChunks(*std::move(request));
  if (!chunks.ok()) return chunks.status();
  v1::PrefetchChunksResponse response;
  for (const PrefetchedChunk& chunk : *chunks) {
    v1::PrefetchedChunk& message = *response.add_chunks();
    message.set_key(chunk.key);
    message.set_tier(ToProto(chunk.tier));
    message.set_num_tokens(chunk.num_tokens);
  }
  return response;
}

using ServiceBase = v1::Chunks::WithRawCallbackMethod_Put<v1::Chunks::WithRawCallbackMethod_Split<
    v1::Chunks::WithRawCallbackMethod_Stat<v1::Chunks::WithRawCallbackMethod_List<
        v1::Chunks::WithRawCallbackMethod_Delete<v1::Chunks::WithRawCallbackMethod_Pin<
            v1::Chunks::WithRawCallbackMethod_Prefetch<v1::Chunks::Service>>>>>>>;

class ChunksService : public ServiceBase {
 public:
  explicit ChunksService(const ServiceContext& context) : context_(context) {}

  ByteWriteReactor* Put(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override {
    return ServeStream<v1::PutChunksRequest>(
        context_, context, bytes, kService, "Put",
        [](Engine& engine, PutChunksRequest request, const StreamCall& call) {
          return engine.PutChunks(std::move(request), std::make_shared<PutToStream>(call));
        });
  }

  grpc::ServerUnaryReactor* Split(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override {
    return ServeUnary<v1::SplitDocumentRequest>(context_, context, bytes, response, kService, "Split",
                                                [](Engine& engine, v1::SplitDocumentRequest& request) {
                                                  return server::Split(engine, std::move(request));
                                                });
  }

  grpc::ServerUnaryReactor* Prefetch(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override {
    return ServeUnary<v1::PrefetchChunksRequest>(context_, context, bytes, response, kService, "Prefetch",
                                                 [](Engine& engine, v1::PrefetchChunksRequest& request) {
                                                   return server::Prefetch(engine, std::move(request));
                                                 });
  }

  grpc::ServerUnaryReactor* Stat(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return ServeStoreCall<v1::StatChunksRequest>(context, bytes, response, "Stat", server::Stat);
  }
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return ServeStoreCall<v1::ListChunksRequest>(context, bytes, response, "List", server::List);
  }
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return ServeStoreCall<v1::DeleteChunksRequest>(context, bytes, response, "Delete", server::Delete);
  }
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                grpc::ByteBuffer* response) override {
    return ServeStoreCall<v1::PinChunksRequest>(context, bytes, response, "Pin", server::Pin);
  }

 private:
  template <typename WireRequest, typename Operation>
  grpc::ServerUnaryReactor* ServeStoreCall(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                           const char* method, Operation operation) {
    return ServeUnary<WireRequest>(context_, context, bytes, response, kService, method,
                                   [operation](Engine& engine, const WireRequest& request) {
                                     return operation(engine.chunks(), request);
                                   });
  }

  const ServiceContext context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeChunksService(const ServiceContext& context) {
  return std::make_shared<ChunksService>(context);
}

}  // namespace kvblend::server
