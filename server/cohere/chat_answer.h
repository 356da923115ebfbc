// Events of kvblend.v1 -> what /v2/chat answers: one JSON object, or a stream of them as server-sent events
// with names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cohere/chat_request.h"
#include "server/cohere/citations.h"
#include "server/json/json.h"

namespace kvblend::server::cohere {

/// Most bytes of documents in the citations of an answer, each counted as often as it is cited. Sources after
/// that have only their id, so that an answer is not hundreds of times as long as the documents.
inline constexpr int64_t kMaxCitedBytes = int64_t{4} << 20;

/// {"id": .., "message": ..}
std::string ErrorBody(const std::string& id, const absl::Status& status);

/// Takes the events of one answer in their order. Not thread-safe.
class ChatAnswer {
 public:
  /// `request` is the one that is answered.
  ChatAnswer(std::string id, const ChatRequest& request);

  /// What citations are looked for in; null: nothing is cited. Its finder is to be made as soon as the
  /// request is accepted, and not before: what is refused may have a hundred times the words of what has room
  /// in a context. Events come on the engine's thread, which would have to make it otherwise.
  const std::shared_ptr<CitedDocuments>& documents() const { return documents_; }

  /// For streams: the server-sent events that `event` becomes. Without a stream it is kept for Body, and
  /// nothing is returned.
  std::string Add(const v1::GenerateEvent& event);

  /// What ends a stream that has begun and fails: a message-end with the reason ERROR.
  std::string Failed(const absl::Status& status) const;

  /// The whole answer, when there is no stream and the last event was added.
  std::string Body() const;

 private:
  Json Citations() const;
  Json Usage() const;
  void KeepLogprobs(const v1::TextDelta& delta);

  const std::string id_;
  const bool stream_;
  const bool with_logprobs_;
  const bool with_attribution_;
  const bool only_copied_;
  const std::vector<Source> sources_;
  const std::shared_ptr<CitedDocuments> documents_;
  std::string text_;
  Json logprobs_ = Json::array();
  v1::PromptReport report_;
  v1::GenerateFinished finished_;
  google::protobuf::RepeatedPtrField<v1::AttributedToken> attributions_;
};

}  // namespace kvblend::server::cohere
