// kvblend.v1.Admin.
#include "absl/time/clock.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "server/convert/reports.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

class AdminService : public v1::Admin::WithRawCallbackMethod_GetInfo<v1::Admin::Service> {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetInfoRequest>(
        context_, context, bytes, response, "Admin", "GetInfo",
        [this](Engine& engine, const v1::GetInfoRequest&) -> absl::StatusOr<v1::GetInfoResponse> {
          v1::GetInfoResponse info = ToProto(engine.info(), engine.Stats(), context_.engine_options);
          info.mutable_limits()->set_max_message_bytes(context_.max_message_bytes);
          info.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - context_.started));
          return info;
        });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_shared<AdminService>(context);
}

}  // namespace kvblend::server
