// Writes an answer as its events come, whatever its form. For this room's sources only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/calls/call_log.h"
#include "server/calls/calls.h"
#include "server/http/responder.h"

namespace kvblend::server {

/// One answer in one API's form. Not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// What a stream sends of the event; nothing without a stream.
  virtual std::string Add(const v1::GenerateEvent& event) = 0;
  /// The end of a stream that fails.
  virtual std::string Failed(const absl::Status& status) const = 0;
  /// The whole answer, if it is not streamed.
  virtual std::string Body() const = 0;
  /// The answer to a call that fails before anything was sent.
  virtual HttpResponse Error(const absl::Status& status) const = 0;
};

/// `id` is the answer's, for the header x-request-id.
std::shared_ptr<EventSink<v1::GenerateEvent>> MakeGenerationSink(std::unique_ptr<AnswerWriter> writer,
                                                                 bool stream, std::string id,
                                                                 std::shared_ptr<HttpResponder> responder,
                                                                 std::shared_ptr<CallLog> log);

/// Adds the header x-request-id.
HttpResponse WithId(HttpResponse response, const std::string& id);

/// "chatcmpl-5f2c...": of one answer.
std::string NewAnswerId(const char* prefix);

}  // namespace kvblend::server
