#include "server/cli/load/load_driver.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/retry_delay.h"
#include "server/cli/content_hash.h"

namespace kvblend::server::cli {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(200);  // at the progress, and at the bound

/// A conversation on its way.
struct HeldConversation {
  int number = 0;  // of all of this measurement
  int turn = 0;    // the next one
  std::vector<std::string> answers = {};
};

/// Requests that have ended, told by any thread. Shared, since a sink may outlive the driver.
struct LoadInbox {
  absl::Mutex mutex;
  absl::CondVar changed;
  std::deque<int64_t> ended ABSL_GUARDED_BY(mutex);

  void Put(int64_t id) {
    absl::MutexLock lock(&mutex);
    ended.push_back(id);
    changed.SignalAll();
  }
};

/// One request under way: notes what arrives and when.
class LoadFlight : public EventSink<v1::GenerateEvent> {
 public:
  LoadFlight(int64_t id, schedule::Clock& clock, absl::Time start, LoadRecord record, HeldConversation held,
             std::shared_ptr<LoadInbox> inbox)
      : record(std::move(record)),
        held(std::move(held)),
        id_(id),
        clock_(clock),
        start_(start),
        inbox_(std::move(inbox)) {}

  void OnEvent(const v1::GenerateEvent& event) override {
    if (event.has_prompt()) NotePrompt(event.prompt());
    if (!event.has_text() || event.text().token_ids().empty()) return;
    const double now = absl::ToDoubleSeconds(clock_.Now() - start_);
    if (record.output_tokens == 0) {
      absl::MutexLock lock(&mutex_);
      record.first_token = now;
    } else {
      record.gaps.push_back(now - last_text_);
    }
    last_text_ = now;
    record.output_tokens += event.text().token_ids_size();
    text += event.text().text();
    for (const int32_t id : event.text().token_ids()) absl::StrAppend(&tokens_, id, ",");
  }
  void OnDone(const absl::Status& status) override {
    record.ended = absl::ToDoubleSeconds(clock_.Now() - start_);
    record.status = status;
    record.answer_hash = ContentHash(tokens_);
    inbox_->Put(id_);
  }
  /// For any thread while the request is under way.
  double first_token() {
    absl::MutexLock lock(&mutex_);
    return record.first_token;
  }

  LoadRecord record;  // to be read after OnDone
  HeldConversation held;
  std::string text;

 private:
  void NotePrompt(const v1::PromptReport& report) {
    record.prompt_tokens = report.prompt_tokens();
    record.exact_tokens = report.exact_tokens();
    record.reused_tokens = report.reused_tokens();
    record.recomputed_tokens = report.recomputed_tokens();
    if (report.reuse() == v1::REUSE_NOTHING) return;  // nothing was looked up
    record.chunks = report.chunks_size();
    for (const v1::ChunkReport& chunk : report.chunks()) {
      record.chunk_hits += chunk.source() != v1::CHUNK_SOURCE_MISS ? 1 : 0;
      record.other_anchor += chunk.source() == v1::CHUNK_SOURCE_OTHER_ANCHOR ? 1 : 0;
    }
  }

  const int64_t id_;
  schedule::Clock& clock_;
  const absl::Time start_;
  const std::shared_ptr<LoadInbox> inbox_;
  absl::Mutex mutex_;  // guards record.first_token while it is under way
  std::string tokens_;
  double last_text_ = 0;
};

class LoadDriver {
 public:
  LoadDriver(Calls& calls, schedule::Clock& clock, const LoadScript& script, const LoadStep& step)
      : calls_(calls), clock_(clock), script_(script), step_(step), start_(clock.Now()) {
    if (step_.clients == 0) {
      for (const double arrival : step_.arrivals) Begin(arrival);
    } else {
      for (int i = 0; i < step_.clients; ++i) BeginIfTime(0);
    }
  }

  LoadResult Run(Cancellation& cancellation, const LoadProgress& progress) {
    while (true) {
      for (const int64_t id : TakeEnded()) NoteEnd(id);
      if (due_.empty() && flying_.empty()) break;
      if (!stopping_ && (cancellation.requested() || OverBound())) {
        Stop(cancellation);
        continue;
      }
      if (progress) progress(static_cast<int64_t>(result_.records.size()), flying_.size(), Seconds());
      if (!due_.empty() && TimeOf(due_.begin()->first) <= clock_.Now()) {
        auto next = due_.extract(due_.begin());
        Send(next.key(), std::move(next.mapped()));
      } else {
        Wait();
      }
    }
    result_.seconds = Seconds();
    result_.planned = planned_requests_;
    return std::move(result_);
  }

 private:
  struct Flying {
    std::shared_ptr<LoadFlight> flight;
    std::shared_ptr<RequestHandle> handle;  // not the flight's: the handle may own the flight
  };

  double Seconds() { return absl::ToDoubleSeconds(clock_.Now() - start_); }
  absl::Time TimeOf(double seconds) const { return start_ + absl::Seconds(seconds); }

  void Begin(double planned) {
    due_.emplace(planned, HeldConversation{.number = begun_++});
    ++planned_requests_;
  }
  /// Whether one more request belongs to this measurement. An open loop's conversations go on to their ends.
  bool MayPlan(double planned) const {
    if (stopping_ || planned_requests_ >= step_.requests) return false;
    return step_.clients == 0 || planned < step_.seconds;
  }
  /// Begins the closed loop's next conversation, unless the measurement is over.
  void BeginIfTime(double planned) {
    if (MayPlan(planned)) Begin(planned);
  }

  void Wait() {
    absl::Time until = clock_.Now() + kLookInterval;
    if (!due_.empty()) until = std::min(until, TimeOf(due_.begin()->first));
    absl::MutexLock lock(&inbox_->mutex);
    if (inbox_->ended.empty()) clock_.Wait(inbox_->changed, inbox_->mutex, until);
  }

  int ModeOf(const HeldConversation& held) const {
    return script_.mode_indices[held.number % static_cast<int>(script_.mode_indices.size())];
  }

  void Send(double planned, HeldConversation held) {
    const auto num_modes = static_cast<int>(script_.mode_indices.size());
    LoadRecord record{.mode = ModeOf(held)};
    record.conversation = held.number / num_modes % static_cast<int>(script_.conversations.size());
    record.turn = held.turn;
    record.planned = planned;
    record.sent = Seconds();
    const Conversation& conversation = script_.conversations[record.conversation];
    v1::GenerateRequest request =
        conversation.Request(held.turn, held.answers, script_.modes[record.mode], script_.tenant_namespace);
    const int64_t id = next_id_++;
    const auto flight =
        std::make_shared<LoadFlight>(id, clock_, start_, std::move(record), std::move(held), inbox_);
    // A deadline is a date by the machine's clock, which may be set while this runs: by our own it is so far.
    const absl::Time deadline = absl::Now() + (TimeOf(planned) + script_.timeout - clock_.Now());
    auto started = calls_.Generate(std::move(request), {.client = "", .deadline = deadline}, flight);
    if (!started.ok()) flight->OnDone(started.status());
    flying_.emplace(id, Flying{flight, started.ok() ? *std::move(started) : nullptr});
  }

  std::deque<int64_t> TakeEnded() {
    absl::MutexLock lock(&inbox_->mutex);
    return std::exchange(inbox_->ended, {});
  }

  void NoteEnd(int64_t id) {
    const std::shared_ptr<LoadFlight> flight = flying_.extract(id).mapped().flight;
    if (stopping_ && absl::IsCancelled(flight->record.status)) {  // by us
      ++result_.unfinished[flight->record.mode];
      return;
    }
    const LoadRecord& record = result_.records.emplace_back(std::move(flight->record));
    if (step_.bound && !(record.ok() && record.ttft() <= step_.bound->seconds)) ++late_;
    HeldConversation& held = flight->held;
    const double now = Seconds();
    const bool goes_on = record.ok() && held.turn + 1 < script_.conversations[record.conversation].turns();
    const double next_turn = now + script_.think_seconds;
    if (goes_on && MayPlan(next_turn)) {
      ++held.turn;
      held.answers.push_back(std::move(flight->text));
      due_.emplace(next_turn, std::move(held));
      ++planned_requests_;
    } else if (step_.clients > 0) {
      const absl::Duration pause = RetryDelayOf(record.status).value_or(absl::Seconds(kPauseSeconds));
      BeginIfTime(record.ok() ? now : now + absl::ToDoubleSeconds(pause));
    }
  }

  bool OverBound() {
    if (!step_.bound) return false;
    const double now = Seconds();
    int64_t late = late_;
    for (const auto& [id, flying] : flying_) {
      const bool waits = flying.flight->first_token() == LoadRecord::kNever;
      if (waits && now - flying.flight->record.planned > step_.bound->seconds) ++late;
    }
    return late > step_.bound->allowed;
  }

  void Stop(const Cancellation& cancellation) {
    stopping_ = true;
    result_.interrupted = cancellation.requested();
    result_.stopped_early = !result_.interrupted;
    for (const auto& [planned, held] : due_) ++result_.unfinished[ModeOf(held)];
    due_.clear();
    for (const auto& [id, flying] : flying_) {
      if (flying.handle != nullptr) flying.handle->Cancel();
    }
  }

  Calls& calls_;
  schedule::Clock& clock_;
  const LoadScript& script_;
  const LoadStep& step_;
  const absl::Time start_;

  // Used by the calling thread alone.
  LoadResult result_;
  std::multimap<double, HeldConversation> due_;  // by planned time
  std::map<int64_t, Flying> flying_;
  int64_t next_id_ = 0;
  int begun_ = 0;
  int64_t planned_requests_ = 0;
  int64_t late_ = 0;  // of those that have ended
  bool stopping_ = false;

  const std::shared_ptr<LoadInbox> inbox_ = std::make_shared<LoadInbox>();
};

}  // namespace

LoadResult RunLoad(Calls& calls, schedule::Clock& clock, Cancellation& cancellation, const LoadScript& script,
                   const LoadStep& step, const LoadProgress& progress) {
  return LoadDriver(calls, clock, script, step).Run(cancellation, progress);
}

}  // namespace kvblend::server::cli
