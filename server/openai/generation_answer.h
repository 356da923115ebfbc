// Events of kvblend.v1 -> what /v1/chat/completions and /v1/completions answer: one JSON object, or a stream
// of them as server-sent events.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvblend/v1/inference.pb.h"
#include "server/json/json.h"
#include "server/openai/error.h"
#include "server/openai/generation_request.h"

namespace kvblend::server::openai {

/// What all objects of one answer say of it.
struct AnswerHead {
  std::string id;           // "chatcmpl-5f2c"
  int64_t created = 0;      // seconds since 1970
  std::string model;        // as served
  std::string fingerprint;  // of the model
};

/// Headers that tell what was done with the prompt, for clients that throw the body's extension away.
std::vector<std::pair<std::string, std::string>> ReportHeaders(const v1::PromptReport& report);

/// The member "kvblend" of answers: what gRPC reports.
Json ReportExtension(const v1::PromptReport& report, const v1::GenerateFinished& finished);

/// How many tokens of the prompt were not computed: kept of an earlier turn, reused exactly, or blended and
/// not recomputed.
int64_t CachedTokens(const v1::PromptReport& report);

/// Takes the events of one answer in their order. Not thread-safe.
class GenerationAnswer {
 public:
  GenerationAnswer(AnswerForm form, AnswerHead head);

  /// For streams: the server-sent events that `event` becomes. Without a stream it is kept for Body, and
  /// nothing is returned.
  std::string Add(const v1::GenerateEvent& event);

  /// The whole answer, when there is no stream and the last event was added.
  std::string Body() const;

 private:
  Json Object() const;
  Json StreamChoice(const Json& piece, const Json& logprobs, const Json& finish_reason) const;
  std::string Event(Json object, const Json& choices) const;
  Json Logprobs(const v1::TextDelta& delta);
  void KeepLogprobs(const Json& logprobs);
  Json Usage() const;

  const AnswerForm form_;
  const AnswerHead head_;
  v1::PromptReport report_;
  v1::GenerateFinished finished_;
  std::string text_;  // without a stream
  Json logprobs_;     // without a stream
};

/// One event of a stream, with a JSON as its data.
std::string ServerSentEvent(const std::string& data);
/// What ends a stream.
inline constexpr char kStreamEnd[] = "data: [DONE]\n\n";

}  // namespace kvblend::server::openai
