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
  std::string code;   // "model_not_found"; empty: none
};

/// Of a call's status, which is not OK. 499 for a cancelled one, as proxies write what nobody reads.
Error ErrorOf(const absl::Status& status);

/// Of what went wrong before a call: 404, 413 and their like.
Error ErrorOf(int http_status, const std::string& message);

/// {"error": {...}}
std::string ToJson(const Error& error);

/// kNotFound for a model that is not served here.
absl::Status ModelNotFound(const std::string& asked, const std::string& served);

}  // namespace kvblend::server::openai
