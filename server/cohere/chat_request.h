// Bodies of POST /v2/chat -> requests of kvblend.v1. docs/http-api.md documents the fields. Stateless,
// thread-safe, never throws.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblend/v1/inference.pb.h"
#include "server/json/json.h"

namespace kvblend::server::cohere {

/// What a citation names: one of the body's documents.
struct Source {
  std::string id;
  Json data;  // as given
};

struct ChatRequest {
  v1::GenerateRequest request;
  std::vector<Source> sources;  // one per chunk of the prompt
  std::string model;            // as asked for; empty: whatever is served
  bool stream = false;
  bool citations = true;
  bool only_copied = false;  // citations: what was copied, not what was attended to
  bool attribution = false;  // was asked for; citations have it measured as well
  bool logprobs = false;
};

/// kInvalidArgument naming field, value and what is allowed. Fields that would change the answer and are not
/// known are errors.
absl::StatusOr<ChatRequest> ParseChatRequest(std::string_view body);

}  // namespace kvblend::server::cohere
