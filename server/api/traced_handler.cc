#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "server/api/answers.h"

namespace kvblend::server {
namespace {

/// Adds a header to the answer, whatever it is.
class TracedResponder : public HttpResponder {
 public:
  TracedResponder(std::shared_ptr<HttpResponder> responder, std::string trace)
      : responder_(std::move(responder)), trace_(std::move(trace)) {}

  void Send(HttpResponse response) override {
    response.headers.emplace_back(kTraceResponse, trace_);
    responder_->Send(std::move(response));
  }
  void Begin(HttpResponse head) override {
    head.headers.emplace_back(kTraceResponse, trace_);
    responder_->Begin(std::move(head));
  }
  void Write(std::string piece) override { responder_->Write(std::move(piece)); }
  void Finish() override { responder_->Finish(); }
  void Abort() override { responder_->Abort(); }
  void OnGone(std::function<void()> callback) override { responder_->OnGone(std::move(callback)); }
  void KeepUntilSent(std::shared_ptr<void> kept) override { responder_->KeepUntilSent(std::move(kept)); }

 private:
  const std::shared_ptr<HttpResponder> responder_;
  const std::string trace_;
};

bool IsTraceParent(const std::pair<std::string, std::string>& header) { return header.first == kTraceParent; }

}  // namespace

HttpHandler Traced(const Tracer* tracer, HttpHandler handler) {
  return
      [tracer, handler = std::move(handler)](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        // More than one parent counts as none.
        const auto parents = std::count_if(request.headers.begin(), request.headers.end(), IsTraceParent);
        const std::string* parent = request.FindHeader(kTraceParent);
        const std::string trace = ToHeader(BeginCall(tracer, parents == 1 ? *parent : std::string()));
        // The handler finds this call's trace in place of what the client sent.
        std::erase_if(request.headers, IsTraceParent);
        request.headers.emplace_back(kTraceParent, trace);
        handler(std::move(request), std::make_shared<TracedResponder>(std::move(responder), trace));
      };
}

TraceContext TraceOf(const HttpRequest& request) {
  const std::string* header = request.FindHeader(kTraceParent);
  return ParseTraceParent(header == nullptr ? "" : *header).value_or(TraceContext());
}

}  // namespace kvblend::server
