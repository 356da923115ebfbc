#include "server/calls/call_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/steady_time.h"
#include "server/json/json.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

spdlog::level::level_enum LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kNotFound:
      return spdlog::level::info;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

}  // namespace

std::string LoggableId(std::string_view id) {
  constexpr size_t kMaxBytes = 128;
  constexpr absl::string_view kAllowed = "-_.:/+=@~";
  const bool is_loggable =
      id.size() <= kMaxBytes && std::all_of(id.begin(), id.end(), [&](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(kAllowed, c);
      });
  return is_loggable ? std::string(id) : "";
}

CallLog::CallLog(Metrics* metrics, Tracer* tracer, Transport transport, const char* service,
                 const char* method, std::string peer, TraceContext context, RequestIds ids)
    : metrics_(metrics),
      tracer_(tracer),
      transport_(transport),
      service_(service),
      method_(method),
      peer_(std::move(peer)),
      context_(std::move(context)),
      ids_(std::move(ids)),
      trace_(tracer != nullptr && context_.sampled ? std::make_shared<RequestTrace>() : nullptr),
      start_(SteadyNow()) {}

void CallLog::NotePrompt(const v1::PromptReport& report) {
  metrics_->ObservePrompt(report);
  prompt_tokens_ = report.prompt_tokens();
  recomputed_tokens_ = report.recomputed_tokens();
  time_to_first_token_seconds_ = report.time_to_first_token_seconds();
}

void CallLog::Note(const v1::GenerateEvent& event) {
  if (event.has_prompt()) NotePrompt(event.prompt());
  if (event.has_text() && !event.text().token_ids().empty()) {
    const absl::Time now = SteadyNow();
    if (completion_tokens_ > 0) metrics_->ObserveInterToken(absl::ToDoubleSeconds(now - last_text_));
    last_text_ = now;
    completion_tokens_ += event.text().token_ids_size();
    metrics_->CountGeneratedTokens(event.text().token_ids_size());
  }
  if (event.has_finished()) metrics_->ObserveGenerate(event.finished());
}

void CallLog::Note(const v1::ScoreEvent& event) {
  if (event.has_prompt()) NotePrompt(event.prompt());
  if (!event.has_token()) return;
  metrics_->CountScoredToken();
  ++completion_tokens_;
}

void CallLog::Note(const v1::PutChunkProgress& progress) {
  metrics_->ObservePutChunk(progress);
  prompt_tokens_ += progress.num_tokens();
}

void CallLog::End(const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  if (transport_ == Transport::kHttp) {
    metrics_->CountHttpCall(method_, code);
  } else {
    metrics_->CountCall(service_, method_, code);
  }
  if (expects_first_token_ && time_to_first_token_seconds_ < 0 && !status.ok()) {
    metrics_->CountWithoutFirstToken(code);
  }
  if (tracer_ != nullptr) {
    tracer_->End(std::move(trace_), {.trace_id = context_.trace_id,
                                     .span_id = context_.span_id,
                                     .method = method_,
                                     .code = code,
                                     .request_id = ids_.answer,
                                     .client_request_id = ids_.client});
  }
  const spdlog::level::level_enum level = LevelOf(status.code());
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start_);
  if (!spdlog::should_log(level)) return;
  if (const auto structured = spdlog::get(kStructuredLog); structured != nullptr) {
    structured->log(level, "{}", Members(code, seconds, status));
  } else {
    spdlog::log(level, "{}", Line(code, seconds, status));
  }
}

std::string CallLog::Line(const std::string& code, double seconds, const absl::Status& status) const {
  std::string line = absl::StrFormat("%s/%s %s in %.3f s from %s", service_, method_, code, seconds, peer_);
  if (prompt_tokens_ > 0) absl::StrAppendFormat(&line, ", %d prompt tokens", prompt_tokens_);
  if (recomputed_tokens_ > 0) absl::StrAppendFormat(&line, " (%d recomputed)", recomputed_tokens_);
  if (completion_tokens_ > 0) absl::StrAppendFormat(&line, ", %d completion tokens", completion_tokens_);
  if (time_to_first_token_seconds_ >= 0) {
    absl::StrAppendFormat(&line, ", first token after %.3f s", time_to_first_token_seconds_);
  }
  if (!ids_.answer.empty()) absl::StrAppend(&line, ", request ", ids_.answer);
  if (!ids_.client.empty()) absl::StrAppend(&line, ", client's request ", ids_.client);
  absl::StrAppend(&line, ", trace ", context_.trace_id);
  if (!status.ok()) absl::StrAppend(&line, ": ", LoggedMessage(status));
  return line;
}

std::string CallLog::Members(const std::string& code, double seconds, const absl::Status& status) const {
  Json members = {{"service", service_},        {"method", method_}, {"code", code},
                  {"seconds", seconds},         {"peer", peer_},     {"trace_id", context_.trace_id},
                  {"span_id", context_.span_id}};
  if (!ids_.answer.empty()) members["request_id"] = ids_.answer;
  if (!ids_.client.empty()) members["client_request_id"] = ids_.client;
  if (prompt_tokens_ > 0) members["prompt_tokens"] = prompt_tokens_;
  if (recomputed_tokens_ > 0) members["recomputed_tokens"] = recomputed_tokens_;
  if (completion_tokens_ > 0) members["completion_tokens"] = completion_tokens_;
  if (time_to_first_token_seconds_ >= 0)
    members["time_to_first_token_seconds"] = time_to_first_token_seconds_;
  if (!status.ok()) members["error"] = LoggedMessage(status);
  const std::string object = ToText(members);
  return object.substr(1, object.size() - 2);
}

}  // namespace kvblend::server
