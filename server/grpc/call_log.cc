#include "server/grpc/call_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/grpc/status.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

spdlog::level::level_enum LevelOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::NOT_FOUND:
      return spdlog::level::info;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::UNAVAILABLE:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

}  // namespace

CallLog::CallLog(Metrics* metrics, const char* service, const char* method, std::string peer)
    : metrics_(metrics), service_(service), method_(method), peer_(std::move(peer)), start_(absl::Now()) {}

void CallLog::End(const grpc::Status& status) {
  const std::string code = CodeName(status.error_code());
  metrics_->CountCall(service_, method_, code);
  const spdlog::level::level_enum level = LevelOf(status.error_code());
  if (!spdlog::should_log(level)) return;
  std::string line = absl::StrFormat("%s/%s %s in %.3f s from %s", service_, method_, code,
                                     absl::ToDoubleSeconds(absl::Now() - start_), peer_);
  if (prompt_tokens > 0) absl::StrAppendFormat(&line, ", %d prompt tokens", prompt_tokens);
  if (recomputed_tokens > 0) absl::StrAppendFormat(&line, " (%d recomputed)", recomputed_tokens);
  if (completion_tokens > 0) absl::StrAppendFormat(&line, ", %d completion tokens", completion_tokens);
  if (time_to_first_token_seconds >= 0) {
    absl::StrAppendFormat(&line, ", first token after %.3f s", time_to_first_token_seconds);
  }
  if (!status.ok()) absl::StrAppend(&line, ": ", status.error_message());
  spdlog::log(level, "{}", line);
}

}  // namespace kvblend::server
