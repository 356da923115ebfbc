// Bodies of POST /v1/chat/completions and /v1/completions -> requests of kvblend.v1. docs/http-api.md
// documents the fields, and how messages and documents become the parts of a prompt. Stateless, thread-safe,
// never throws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblend/v1/inference.pb.h"
#include "server/json/json.h"

namespace kvblend::server::openai {

/// How the answer is to be written.
struct AnswerForm {
  bool chat = true;  // else a text completion
  bool stream = false;
  bool include_usage = false;  // streams only
  bool logprobs = false;
  int top_logprobs = 0;
};

struct GenerationRequest {
  v1::GenerateRequest request;
  AnswerForm form;
  std::string model;  // as asked for; empty: whatever is served
};

/// kInvalidArgument naming field, value and what is allowed. Fields that would change the answer and are not
/// known are errors; ranges are the engine's business.
absl::StatusOr<GenerationRequest> ParseChatRequest(std::string_view body);
absl::StatusOr<GenerationRequest> ParseCompletionRequest(std::string_view body);

/// The engine's seed: 0, by which it is asked to choose one, is a seed like any other here.
uint64_t SeedOf(uint64_t seed);

/// Reads the member "kvblend": what other servers do not have.
void ReadExtension(FieldReader& fields, v1::GenerateRequest* request);

}  // namespace kvblend::server::openai
