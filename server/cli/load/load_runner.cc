#include "server/cli/load/load_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/load/rate_search.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {
namespace {

// A try of a search. What a server takes in without answering it must show in the times to the first token
// before the try is over: a burst that fits into its queue tells nothing.
constexpr double kLimitsPerTry = 10;  // seconds that it lasts at least, per second of the limit
constexpr double kKeepsUp = 0.9;      // answers per request that arrives, of a server that bears the rate
constexpr int kMaxLengthened = 3;  // so often it is made twice as long, where its end alone says too little

struct TryTimes {
  double arrivals = 0;  // until the last conversation began
  double answers = 0;   // until the last answer ended
};

/// Whether what the longer try has beyond the shorter one was answered as fast as it arrived. Compared with
/// nothing, the last answers' own time counts as well.
bool KeepsUp(const TryTimes& shorter, const TryTimes& longer) {
  return longer.arrivals - shorter.arrivals >= kKeepsUp * (longer.answers - shorter.answers);
}

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

}  // namespace

LoadRunner::LoadRunner(Client& client, schedule::Clock& clock, Cancellation& cancellation,
                       const std::vector<Conversation>& conversations, const LoadOptions& options,
                       Progress progress, OnRecord on_record)
    : client_(client),
      clock_(clock),
      cancellation_(cancellation),
      conversations_(conversations),
      options_(options),
      progress_(std::move(progress)),
      on_record_(std::move(on_record)),
      chunks_(client, clock, options.tenant_namespace, options.keep_chunks) {}

absl::Status LoadRunner::Run(LoadRun& run) {
  const absl::Cleanup remove_chunks = [this] { chunks_.Remove(); };
  for (const Conversation& conversation : conversations_)
    run.turns = std::max(run.turns, conversation.turns());
  if (options_.warm) KVBLEND_RETURN_IF_ERROR(chunks_.Put(conversations_, options_.modes, progress_));
  if (options_.unloaded_requests > 0) {
    for (const int mode : AllModes()) KVBLEND_RETURN_IF_ERROR(MeasureUnloaded(mode, run));
  }
  return options_.search_factor ? Search(run) : RunLoads(run);
}

std::vector<int> LoadRunner::AllModes() const {
  std::vector<int> modes(options_.modes.size());
  std::iota(modes.begin(), modes.end(), 0);
  return modes;
}

LoadScript LoadRunner::ScriptFor(const std::vector<int>& modes) const {
  return {.conversations = conversations_,
          .modes = options_.modes,
          .mode_indices = modes,
          .tenant_namespace = options_.tenant_namespace,
          .think_seconds = options_.think_seconds,
          .timeout = options_.timeout};
}

absl::Status LoadRunner::MeasureUnloaded(int mode, LoadRun& run) {
  LoadStep step{.clients = 1, .seconds = LoadRecord::kNever, .requests = 1};
  const LoadScript script = ScriptFor({mode});
  // Not counted: what happens only once, at a mode's first request, is no part of the figures.
  RunLoad(client_.calls(), clock_, cancellation_, script, step);
  if (cancellation_.requested()) return Interrupted();
  step.requests = options_.unloaded_requests;
  const std::string what = absl::StrCat(options_.modes[mode].RowName(), " without load");
  const auto progress = [&](int64_t ended, int64_t, double) {
    if (progress_) progress_(ended, step.requests, what);
  };
  const LoadResult result = RunLoad(client_.calls(), clock_, cancellation_, script, step, progress);
  if (cancellation_.requested()) return Interrupted();
  for (const LoadRecord& record : result.records) {
    if (!record.ok()) {
      return absl::Status(record.status.code(),
                          absl::StrCat("a request without load failed: ", record.status.message()));
    }
    if (options_.check_answers) references_.emplace(std::pair(mode, record.conversation), record.answer_hash);
  }
  LoadPoint point{.kind = LoadKind::kUnloaded, .mode = mode, .clients = 1, .seconds = result.seconds};
  point.summary = SummarizeLoad(result.records, mode, result.seconds, options_.level);
  if (on_record_) {
    for (const LoadRecord& record : result.records) on_record_(point, record);
  }
  run.points.push_back(std::move(point));
  return absl::OkStatus();
}

LoadStep LoadRunner::StepAt(double rate, const ArrivalLimits& limits) const {
  // One seed for all: every mode gets the same arrivals, and another rate the same ones closer together.
  std::mt19937_64 random(options_.seed);
  return {.arrivals = options_.poisson ? PoissonArrivals(rate, limits, random) : FixedArrivals(rate, limits),
          .seconds = limits.seconds};
}

int64_t LoadRunner::RequestsOf(int64_t conversations) const {
  int64_t requests = 0;
  for (int64_t i = 0; i < conversations; ++i) requests += conversations_[i % conversations_.size()].turns();
  return requests;
}

absl::Status LoadRunner::Measure(LoadPoint point, LoadStep step, const std::vector<int>& modes,
                                 std::string_view what, LoadRun& run, bool* within) {
  // A closed loop goes on until there were so many requests, or, without such a number, for so long.
  const bool by_time = step.clients > 0 && step.requests == kMaxLoadRequests && std::isfinite(step.seconds);
  const int64_t total =
      step.clients > 0 ? step.requests : RequestsOf(static_cast<int64_t>(step.arrivals.size()));
  const auto progress = [&](int64_t ended, int64_t in_flight, double seconds) {
    if (!progress_) return;
    const std::string note = absl::StrFormat("%s, %d in flight", what, in_flight);
    if (!by_time) {
      progress_(std::min(ended, total), total, note);
    } else {
      progress_(static_cast<int64_t>(seconds), static_cast<int64_t>(std::ceil(step.seconds)), note);
    }
  };
  LoadResult result = RunLoad(client_.calls(), clock_, cancellation_, ScriptFor(modes), step, progress);
  for (LoadRecord& record : result.records) {
    const auto reference = references_.find({record.mode, record.conversation});
    if (record.ok() && reference != references_.end())
      record.matches = record.answer_hash == reference->second;
  }
  // Figures per second are of the time in which requests arrived, which an answer may outlast or end before;
  // where their number was given and not the time, until the last one ended.
  const bool by_count = step.clients > 0
                            ? result.planned >= step.requests
                            : static_cast<int64_t>(step.arrivals.size()) >= options_.limits.requests;
  point.stopped_early = result.stopped_early;
  point.interrupted = result.interrupted;
  point.seconds = point.cut_off() || by_count ? std::min(result.seconds, step.seconds) : step.seconds;
  if (!std::isfinite(point.seconds)) point.seconds = result.seconds;
  for (const int mode : modes) {
    point.mode = mode;
    point.summary =
        SummarizeLoad(result.records, mode, point.seconds, options_.level, result.unfinished[mode]);
    if (on_record_) {
      for (const LoadRecord& record : result.records) {
        if (record.mode == mode) on_record_(point, record);
      }
    }
    run.points.push_back(point);
  }
  if (within != nullptr) {
    *within = !result.stopped_early && TtftWithin(result.records, modes.front(), step.bound->seconds);
  }
  return cancellation_.requested() ? Interrupted() : absl::OkStatus();
}

absl::Status LoadRunner::RunLoads(LoadRun& run) {
  std::vector<std::vector<int>> groups;  // that are measured together
  for (const int mode : AllModes()) {
    if (groups.empty() || !options_.side_by_side) groups.emplace_back();
    groups.back().push_back(mode);
  }
  const auto measure_all = [&](const LoadPoint& point, const LoadStep& step, const std::string& load) {
    for (const std::vector<int>& group : groups) {
      LoadPoint shared = point;
      shared.rate /= static_cast<double>(group.size());
      const std::string what =
          absl::StrCat(group.size() > 1 ? "all modes" : options_.modes[group.front()].RowName(), " ", load);
      KVBLEND_RETURN_IF_ERROR(Measure(shared, step, group, what, run));
    }
    return absl::OkStatus();
  };
  // Modes take turns, so that a machine that slows down meanwhile hits all alike.
  for (const double rate : options_.rates) {
    KVBLEND_RETURN_IF_ERROR(measure_all({.kind = LoadKind::kRate, .rate = rate},
                                        StepAt(rate, options_.limits),
                                        absl::StrCat("at ", HumanNumber(rate), "/s")));
  }
  for (const int clients : options_.clients) {
    const LoadStep step{
        .clients = clients, .seconds = options_.limits.seconds, .requests = options_.limits.requests};
    KVBLEND_RETURN_IF_ERROR(measure_all({.kind = LoadKind::kClients, .clients = clients}, step,
                                        absl::StrCat("with ", clients, " clients")));
  }
  if (!options_.trace.empty()) {
    const double seconds = std::max(options_.trace.back(), 1e-3);
    const LoadPoint point{.kind = LoadKind::kTrace,
                          .rate = static_cast<double>(options_.trace.size()) / seconds};
    KVBLEND_RETURN_IF_ERROR(
        measure_all(point, {.arrivals = options_.trace, .seconds = LoadRecord::kNever}, "on the trace"));
  }
  return absl::OkStatus();
}

absl::Status LoadRunner::Search(LoadRun& run) {
  struct Searched {
    HighestRate found;
    RateSearch search;
  };
  std::vector<Searched> searches;
  for (const LoadPoint& unloaded : run.points) {
    const LatencyQuantiles& ttft = unloaded.summary.ttft;
    for (const double seconds : {ttft.mean, ttft.p95}) {
      if (std::isfinite(seconds) && seconds > 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("the time to the first token of ", options_.modes[unloaded.mode].RowName(), " is ",
                       seconds, " s without load; a search needs one above 0"));
    }
    const HighestRate found{.mode = unloaded.mode, .limit = *options_.search_factor * ttft.p95};
    // At half the rate of one request after the other a server is about half busy.
    searches.push_back({found, RateSearch(0.5 / std::max(ttft.mean, 1e-4))});
  }
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (Searched& searched : searches) {
      const std::optional<double> rate = searched.search.Next();
      if (!rate) continue;
      goes_on = true;
      KVBLEND_ASSIGN_OR_RETURN(const bool borne,
                               Bears(searched.found.mode, *rate, searched.found.limit, run));
      searched.search.Tell(borne);
    }
  }
  for (Searched& searched : searches) {
    searched.found.highest = searched.search.highest();
    searched.found.refused = searched.search.refused();
    run.highest.push_back(searched.found);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LoadRunner::Bears(int mode, double rate, double limit, LoadRun& run) {
  double seconds = kLimitsPerTry * limit;
  if (std::isfinite(options_.limits.seconds)) seconds = std::max(seconds, options_.limits.seconds);
  double requests = std::max(static_cast<double>(options_.limits.requests), std::ceil(rate * seconds));
  const std::string what = absl::StrCat(options_.modes[mode].RowName(), " at ", HumanNumber(rate), "/s");
  TryTimes before;
  for (int lengthened = 0;; ++lengthened) {
    requests = std::min(requests, static_cast<double>(kMaxLoadRequests));
    LoadStep step = StepAt(rate, {.seconds = LoadRecord::kNever, .requests = static_cast<int64_t>(requests)});
    step.bound = {.seconds = limit,
                  .allowed = AllowedLate(RequestsOf(static_cast<int64_t>(step.arrivals.size())))};
    TryTimes times{.arrivals = step.arrivals.back()};
    bool within = false;
    KVBLEND_RETURN_IF_ERROR(
        Measure({.kind = LoadKind::kRate, .rate = rate}, std::move(step), {mode}, what, run, &within));
    times.answers = run.points.back().seconds;
    if (!within) return false;
    if (KeepsUp({}, times) || KeepsUp(before, times)) return true;
    if (lengthened == kMaxLengthened || requests >= static_cast<double>(kMaxLoadRequests)) return false;
    run.points.pop_back();  // in favour of the longer one, which begins with the same requests
    before = times;
    requests *= 2;
  }
}

}  // namespace kvblend::server::cli
