// Errors as OpenAI's API writes them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace kvblend::server::openai {

struct Error {
  int http_status = 500;
  std::string message;
  std::string type;   // "invalid_request_error"
  std::string param;  // the field; empty: none
  std::string code;   // "model_not_found", "context_length_exceeded", "rate_limit_exceeded"; empty: none
};

/// The error that stands for a call's status, which is not OK. A cancelled call gives 499, the code that
/// proxies log for answers that nobody reads.
Error ErrorOf(const absl::Status& status);

/// The error for what went wrong before a call began: 404, 413 and their like.
Error ErrorOf(int http_status, const std::string& message);

/// {"error": {...}}
std::string ToJson(const Error& error);

/// kNotFound for a model that is not served here.
absl::Status ModelNotFound(const std::string& asked, const std::string& served);

}  // namespace kvblend::server::openai
