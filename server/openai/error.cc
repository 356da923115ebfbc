#include "server/openai/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "server/openai/json.h"

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
  const auto code = status.GetPayload(kCodePayload);
  if (code.has_value()) error.code = std::string(*code);
  if (absl::IsResourceExhausted(status)) error.code = "rate_limit_exceeded";
  return error;
}

Error ErrorOf(int http_status, const std::string& message) {
  return {.http_status = http_status, .message = message, .type = TypeOf(http_status), .param = {}, .code = {}};
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
  absl::Status status = absl::NotFoundError(absl::StrCat("model is '", asked, "'; allowed: '", served, "'"));
  status.SetPayload(kCodePayload, absl::Cord("model_not_found"));
  return status;
}

}  // namespace kvblend::server::openai
