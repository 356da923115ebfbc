#include "server/api/answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/retry_delay.h"
#include "base/status_macros.h"
#include "server/convert/parse_message.h"
#include "server/json/json.h"
#include "server/openai/error.h"

namespace kvblend::server {
namespace {

constexpr size_t kFingerprintDigits = 12;

HttpResponse FromError(const openai::Error& error, absl::Duration retry_after = kDefaultRetryDelay) {
  HttpResponse response;
  response.status = error.http_status;
  response.content_type = "application/json";
  response.body = openai::ToJson(error);
  if (error.http_status == 429 || error.http_status == 503) {
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(retry_after, absl::Seconds(1)));
    response.headers = {{"Retry-After", absl::StrCat(seconds)},
                        {"retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(retry_after))}};
  }
  if (error.http_status == 401) response.headers = {{"WWW-Authenticate", "Bearer"}};
  return response;
}

}  // namespace

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

absl::Status CheckQuery(const HttpRequest& request, std::initializer_list<absl::string_view> names) {
  std::string problem = QueryProblem(request.query, names);
  // As Protobuf has it of the same fields in a body.
  for (auto name = names.begin(); problem.empty() && name != names.end(); ++name) {
    problem = Utf8Problem(std::string(*name), QueryValue(request.query, std::string(*name)));
  }
  if (problem.empty()) return absl::OkStatus();
  const std::string allowed = names.size() == 0 ? "none" : absl::StrJoin(names, ", ");
  return LogAs(absl::InvalidArgumentError(problem),
               absl::StrCat("the query is not as it has to be; known here, each once: ", allowed));
}

HttpResponse ErrorResponse(const absl::Status& status) {
  return FromError(openai::ErrorOf(status), RetryDelayOf(status).value_or(kDefaultRetryDelay));
}

HttpResponse ApiErrorPage(int status, const std::string& message) {
  return FromError(openai::ErrorOf(status, message));
}

absl::StatusOr<std::shared_ptr<Calls>> ApiState::Admit(const HttpRequest& request) const {
  if (context.access == nullptr)
    return std::shared_ptr<Calls>(std::shared_ptr<void>(), context.calls);  // not owned
  const std::string* authorization = request.FindHeader("authorization");
  return context.access->Admit(authorization == nullptr ? "" : *authorization);
}

absl::Status ApiState::CheckKey(HttpRequest& request) const {
  if (context.access == nullptr) return absl::OkStatus();
  const std::string* authorization = request.FindHeader("authorization");
  KVBLEND_ASSIGN_OR_RETURN(const std::string tenant,
                           context.access->TenantOf(authorization == nullptr ? "" : *authorization));
  request.turn = absl::StrCat("tenant ", tenant);
  return absl::OkStatus();
}

absl::StatusOr<ModelCard::Card> ModelCard::Get() {
  {
    absl::MutexLock lock(&mutex_);
    if (!card_.id.empty()) {
      KVBLEND_RETURN_IF_ERROR(context_.calls->CheckHealth());
      return card_;
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, context_.calls->GetInfo(v1::GetInfoRequest()));
  Card card;
  card.id = context_.model_id.empty() ? info.model().name() : context_.model_id;
  if (card.id.empty()) card.id = "model";
  card.fingerprint = absl::StrCat("fp_", info.model().fingerprint().substr(0, kFingerprintDigits));
  card.created = absl::ToUnixSeconds(absl::Now()) - static_cast<int64_t>(info.uptime_seconds());
  card.max_context_tokens = info.limits().max_context_tokens();
  absl::MutexLock lock(&mutex_);
  if (card_.id.empty()) card_ = card;
  return card_;
}

absl::StatusOr<ModelCard::Card> ModelCard::Find(const std::string& id) {
  KVBLEND_ASSIGN_OR_RETURN(Card card, Get());
  if (!id.empty() && id != card.id) return openai::ModelNotFound(id, card.id);
  return card;
}

}  // namespace kvblend::server
