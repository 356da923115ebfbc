// kvblend.v1.Inference.
#include <utility>

#include "kvblend/v1/inference.grpc.pb.h"
#include "server/convert/reports.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

constexpr char kService[] = "Inference";

void NotePrompt(const PromptReport& report, const StreamCall& call) {
  call.metrics->ObservePrompt(report);
  call.log->prompt_tokens = report.prompt_tokens;
  call.log->recomputed_tokens = report.recomputed_tokens;
  call.log->time_to_first_token_seconds = report.time_to_first_token_seconds;
}

class GenerateToStream : public GenerateObserver {
 public:
  explicit GenerateToStream(StreamCall call) : call_(std::move(call)) {}

  void OnPrompt(const PromptReport& report) override {
    NotePrompt(report, call_);
    v1::GenerateEvent event;
    *event.mutable_prompt() = ToProto(report);
    call_.stream->Push(ToByteBuffer(event));
  }

  void OnText(const TextDelta& delta) override {
    call_.log->completion_tokens += static_cast<int64_t>(delta.token_ids.size());
    v1::GenerateEvent event;
    *event.mutable_text() = ToProto(delta);
    call_.stream->Push(ToByteBuffer(event));
  }

  void OnDone(const absl::Status& status, const GenerateResult& result) override {
    if (status.ok()) {
      call_.metrics->ObserveGenerate(result);
      v1::GenerateEvent event;
      *event.mutable_finished() = ToProto(result);
      call_.stream->Push(ToByteBuffer(event));
    }
    call_.stream->Close(ToGrpcStatus(status));
  }

 private:
  const StreamCall call_;
};

class ScoreToStream : public ScoreObserver {
 public:
  explicit ScoreToStream(StreamCall call) : call_(std::move(call)) {}

  void OnPrompt(const PromptReport& report) override {
    NotePrompt(report, call_);
    v1::ScoreEvent event;
    *event.mutable_prompt() = ToProto(report);
    call_.stream->Push(ToByteBuffer(event));
  }

  void OnToken(const ScoredToken& token) override {
    call_.metrics->CountScoredToken();
    ++call_.log->completion_tokens;
    v1::ScoreEvent event;
    *event.mutable_token() = ToProto(token);
    call_.stream->Push(ToByteBuffer(event));
  }

  void OnDone(const absl::Status& status) override { call_.stream->Close(ToGrpcStatus(status)); }

 private:
  const StreamCall call_;
};

using ServiceBase = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Score<v1::Inference::Service>>;

class InferenceService : public ServiceBase {
 public:
  explicit InferenceService(const ServiceContext& context) : context_(context) {}

  ByteWriteReactor* Generate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override {
    return ServeStream<v1::GenerateRequest>(
        context_, context, bytes, kService, "Generate",
        [](Engine& engine, GenerateRequest request, const StreamCall& call) {
          return engine.Generate(std::move(request), std::make_shared<GenerateToStream>(call));
        });
  }

  ByteWriteReactor* Score(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override {
    return ServeStream<v1::ScoreRequest>(context_, context, bytes, kService, "Score",
                                         [](Engine& engine, ScoreRequest request, const StreamCall& call) {
                                           return engine.Score(std::move(request),
                                                               std::make_shared<ScoreToStream>(call));
                                         });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeInferenceService(const ServiceContext& context) {
  return std::make_shared<InferenceService>(context);
}

}  // namespace kvblend::server
