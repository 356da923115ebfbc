#include "server/calls/call_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
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
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

}  // namespace

CallLog::CallLog(Metrics* metrics, Transport transport, const char* service, const char* method,
                 std::string peer)
    : metrics_(metrics),
      transport_(transport),
      service_(service),
      method_(method),
      peer_(std::move(peer)),
      start_(absl::Now()) {}

void CallLog::NotePrompt(const v1::PromptReport& report) {
  metrics_->ObservePrompt(report);
  prompt_tokens_ = report.prompt_tokens();
  recomputed_tokens_ = report.recomputed_tokens();
  time_to_first_token_seconds_ = report.time_to_first_token_seconds();
}

void CallLog::Note(const v1::GenerateEvent& event) {
  if (event.has_prompt()) NotePrompt(event.prompt());
  if (event.has_text() && !event.text().token_ids().empty()) {
    const absl::Time now = absl::Now();
    if (completion_tokens_ > 0) metrics_->ObserveInterToken(absl::ToDoubleSeconds(now - last_text_));
    last_text_ = now;
    completion_tokens_ += event.text().token_ids_size();
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
  const spdlog::level::level_enum level = LevelOf(status.code());
  if (!spdlog::should_log(level)) return;
  std::string line = absl::StrFormat("%s/%s %s in %.3f s from %s", service_, method_, code,
                                     absl::ToDoubleSeconds(absl::Now() - start_), peer_);
  if (prompt_tokens_ > 0) absl::StrAppendFormat(&line, ", %d prompt tokens", prompt_tokens_);
  if (recomputed_tokens_ > 0) absl::StrAppendFormat(&line, " (%d recomputed)", recomputed_tokens_);
  if (completion_tokens_ > 0) absl::StrAppendFormat(&line, ", %d completion tokens", completion_tokens_);
  if (time_to_first_token_seconds_ >= 0) {
    absl::StrAppendFormat(&line, ", first token after %.3f s", time_to_first_token_seconds_);
  }
  if (!status.ok()) absl::StrAppend(&line, ": ", status.message());
  spdlog::log(level, "{}", line);
}

}  // namespace kvblend::server
