#include "server/openai/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/prompt_too_long.h"
#include "server/json/json.h"

namespace kvblend::server::openai {
namespace {

constexpr char kCodePayload[] = "kvblend/code";

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

// The engine names its fields as these bodies do, at the beginning of its messages.
std::string LeadingField(absl::string_view message) {
  for (const absl::string_view field :
       {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "max_tokens", "stop"}) {
    if (!absl::StartsWith(message, field)) continue;
    const absl::string_view rest = message.substr(field.size());
    if (absl::StartsWith(rest, " ") || absl::StartsWith(rest, "["))
      return std::string(message.substr(0, message.find(' ')));
  }
  return "";
}

std::string TypeOf(int http_status) {
  if (http_status == 401) return "authentication_error";
  if (http_status == 403) return "permission_error";
  if (http_status == 429) return "rate_limit_error";
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

Error ErrorOf(const absl::Status& status) {
  Error error = ErrorOf(HttpStatusOf(status.code()), std::string(status.message()));
  error.param = ParamOf(status);
  if (error.param.empty()) error.param = LeadingField(status.message());
  const auto code = status.GetPayload(kCodePayload);
  if (code.has_value()) error.code = std::string(*code);
  if (absl::IsResourceExhausted(status)) error.code = "rate_limit_exceeded";
  // OpenAI's code, by which clients tell that less of a conversation would do.
  if (IsPromptTooLong(status)) error.code = "context_length_exceeded";
  return error;
}

Error ErrorOf(int http_status, const std::string& message) {
  return {
      .http_status = http_status, .message = message, .type = TypeOf(http_status), .param = {}, .code = {}};
}

std::string ToJson(const Error& error) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return ToText({{"error",
                  {{"message", error.message},
                   {"type", error.type},
                   {"param", text_or_null(error.param)},
                   {"code", text_or_null(error.code)}}}});
}

absl::Status ModelNotFound(const std::string& asked, const std::string& served) {
  absl::Status status =
      absl::NotFoundError(absl::StrCat("model is ", Quoted(asked), "; allowed: '", served, "'"));
  status.SetPayload(kCodePayload, absl::Cord("model_not_found"));
  return LogAs(status, absl::StrCat("model is another; allowed: '", served, "'"));
}

}  // namespace kvblend::server::openai
