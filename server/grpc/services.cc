#include "server/grpc/services.h"

#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

using Context = grpc::CallbackServerContext;
using Bytes = grpc::ByteBuffer;
using Unary = grpc::ServerUnaryReactor;
using Kind = ServerThreads::Kind;

using InferenceBase = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Score<v1::Inference::Service>>;

class InferenceService : public InferenceBase {
 public:
  InferenceService(const ServiceContext& context, ServerThreads* threads,
                   const std::shared_ptr<OpenStreams>& streams)
      : handler_(context, threads, streams, "Inference") {}

  ByteWriteReactor* Generate(Context* context, const Bytes* bytes) override {
    return handler_.Stream(context, bytes, "Generate", &Calls::Generate);
  }
  ByteWriteReactor* Score(Context* context, const Bytes* bytes) override {
    return handler_.Stream(context, bytes, "Score", &Calls::Score);
  }

 private:
  const CallHandler handler_;
};

using ChunksBase = v1::Chunks::WithRawCallbackMethod_Put<v1::Chunks::WithRawCallbackMethod_Split<
    v1::Chunks::WithRawCallbackMethod_Stat<v1::Chunks::WithRawCallbackMethod_List<
        v1::Chunks::WithRawCallbackMethod_Delete<v1::Chunks::WithRawCallbackMethod_Pin<
            v1::Chunks::WithRawCallbackMethod_Prefetch<v1::Chunks::Service>>>>>>>;

class ChunksService : public ChunksBase {
 public:
  ChunksService(const ServiceContext& context, ServerThreads* threads,
                const std::shared_ptr<OpenStreams>& streams)
      : handler_(context, threads, streams, "Chunks") {}

  ByteWriteReactor* Put(Context* context, const Bytes* bytes) override {
    return handler_.Stream(context, bytes, "Put", &Calls::Put);
  }
  Unary* Split(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "Split", &Calls::Split, Kind::kLong);
  }
  Unary* Prefetch(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "Prefetch", &Calls::Prefetch, Kind::kTiers);
  }
  Unary* Stat(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "Stat", &Calls::Stat);
  }
  Unary* List(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "List", &Calls::List);
  }
  Unary* Delete(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "Delete", &Calls::Delete, Kind::kTiers);
  }
  Unary* Pin(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "Pin", &Calls::Pin, Kind::kTiers);
  }

 private:
  const CallHandler handler_;
};

using AdminBase = v1::Admin::WithRawCallbackMethod_GetInfo<
    v1::Admin::WithRawCallbackMethod_UpdateCorrection<v1::Admin::Service>>;

class AdminService : public AdminBase {
 public:
  AdminService(const ServiceContext& context, ServerThreads* threads,
               const std::shared_ptr<OpenStreams>& streams)
      : handler_(context, threads, streams, "Admin") {}

  Unary* GetInfo(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "GetInfo", &Calls::GetInfo);
  }
  Unary* UpdateCorrection(Context* context, const Bytes* bytes, Bytes* response) override {
    return handler_.Answer(context, bytes, response, "UpdateCorrection", &Calls::UpdateCorrection);
  }

 private:
  const CallHandler handler_;
};

}  // namespace

std::vector<std::shared_ptr<grpc::Service>> MakeServices(const ServiceContext& context,
                                                         ServerThreads* threads,
                                                         const std::shared_ptr<OpenStreams>& streams) {
  return {std::make_shared<InferenceService>(context, threads, streams),
          std::make_shared<ChunksService>(context, threads, streams),
          std::make_shared<AdminService>(context, threads, streams)};
}

}  // namespace kvblend::server
