#include "server/api/generation_sink.h"

#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "server/openai/generation_answer.h"

namespace kvblend::server {
namespace {

class GenerationSink : public EventSink<v1::GenerateEvent> {
 public:
  GenerationSink(std::unique_ptr<AnswerWriter> writer, bool stream, std::string id,
                 std::shared_ptr<HttpResponder> responder, std::shared_ptr<CallLog> log)
      : writer_(std::move(writer)),
        stream_(stream),
        id_(std::move(id)),
        responder_(std::move(responder)),
        log_(std::move(log)) {}

  void OnEvent(const v1::GenerateEvent& event) override {
    log_->Note(event);
    if (event.has_prompt()) headers_ = openai::ReportHeaders(event.prompt());
    std::string events = writer_->Add(event);
    if (!stream_) return;
    if (!begun_) {
      begun_ = true;
      HttpResponse head = Head("text/event-stream; charset=utf-8");
      head.headers.emplace_back("Cache-Control", "no-cache");
      head.headers.emplace_back("X-Accel-Buffering", "no");  // proxies are to pass on each event at once
      head.body = std::move(events);
      responder_->Begin(std::move(head));
    } else {
      responder_->Write(std::move(events));
    }
  }

  void OnDone(const absl::Status& status) override {
    log_->End(status);
    if (!status.ok() && begun_) {
      responder_->Write(writer_->Failed(status));
      responder_->Finish();
    } else if (!status.ok()) {
      responder_->Send(WithId(writer_->Error(status), id_));
    } else if (stream_) {
      responder_->Finish();
    } else {
      HttpResponse response = Head("application/json");
      response.body = writer_->Body();
      responder_->Send(std::move(response));
    }
  }

  void KeepUntilSent(std::shared_ptr<void> kept) override { responder_->KeepUntilSent(std::move(kept)); }

 private:
  HttpResponse Head(const char* content_type) const {
    HttpResponse head;
    head.content_type = content_type;
    head.headers = headers_;
    return WithId(std::move(head), id_);
  }

  const std::unique_ptr<AnswerWriter> writer_;
  const bool stream_;
  const std::string id_;
  const std::shared_ptr<HttpResponder> responder_;
  const std::shared_ptr<CallLog> log_;
  std::vector<std::pair<std::string, std::string>> headers_;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<EventSink<v1::GenerateEvent>> MakeGenerationSink(std::unique_ptr<AnswerWriter> writer,
                                                                 bool stream, std::string id,
                                                                 std::shared_ptr<HttpResponder> responder,
                                                                 std::shared_ptr<CallLog> log) {
  return std::make_shared<GenerationSink>(std::move(writer), stream, std::move(id), std::move(responder),
                                          std::move(log));
}

HttpResponse WithId(HttpResponse response, const std::string& id) {
  response.headers.emplace_back("x-request-id", id);
  return response;
}

std::string NewAnswerId(const char* prefix) {
  absl::BitGen random;
  return absl::StrFormat("%s-%016x%016x", prefix, absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

}  // namespace kvblend::server
