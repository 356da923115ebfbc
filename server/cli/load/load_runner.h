// A whole run of kvblend bench serve: warm the store, measure without load, then every load with every mode.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/schedule/clock.h"
#include "server/cli/client.h"
#include "server/cli/load/conversations.h"
#include "server/cli/load/load_driver.h"
#include "server/cli/load/load_summary.h"
#include "server/cli/load/stored_chunks.h"

namespace kvblend::server::cli {

struct LoadOptions {
  std::vector<BenchVariant> modes;
  // What load; one of these.
  std::vector<double> rates;            // conversations begun per second
  std::vector<double> trace;            // when conversations begin, seconds
  std::vector<int> clients;             // that hold one conversation after the other
  std::optional<double> search_factor;  // of the unloaded p95 of TTFT, that p95 may reach
  bool poisson = true;                  // intervals of `rates` and of the search; else equal ones

  ArrivalLimits limits;  // of a search: what a try has at least
  double think_seconds = 0;
  absl::Duration timeout = absl::InfiniteDuration();
  bool side_by_side = false;  // all modes in one stream, in turn; else one measurement for each
  int unloaded_requests = 0;  // of each mode, one at a time, before any load
  bool check_answers = false;
  ServiceLevel level;
  uint64_t seed = 1;
  std::string tenant_namespace;
  bool warm = true;          // put all chunks before
  bool keep_chunks = false;  // leave what was put
};

enum class LoadKind : uint8_t { kUnloaded, kRate, kTrace, kClients };

/// One line of the table: a mode under a load.
struct LoadPoint {
  LoadKind kind = LoadKind::kUnloaded;
  int mode = 0;
  double rate = 0;  // conversations begun per second, of this mode alone; kClients, kUnloaded: 0
  int clients = 0;
  double seconds = 0;
  bool stopped_early = false;  // of a search: too many were late already
  bool interrupted = false;    // by Ctrl-C
  /// Its figures are of the requests that had ended by then, and good since those that took longest are
  /// missing.
  bool cut_off() const { return stopped_early || interrupted; }
  LoadSummary summary = {};
};

/// The end of a search.
struct HighestRate {
  int mode = 0;
  double limit = 0;  // of p95 of TTFT, seconds
  double highest = 0;
  std::optional<double> refused = std::nullopt;  // the lowest that was not borne
};

struct LoadRun {
  std::vector<LoadPoint> points;
  std::vector<HighestRate> highest;
  int turns = 1;  // questions of a conversation: what a rate begins is a request, or more than one
};

/// Not thread-safe. All that is given must outlive it.
class LoadRunner {
 public:
  using Progress = StoredChunks::Progress;
  using OnRecord = std::function<void(const LoadPoint&, const LoadRecord&)>;

  LoadRunner(Client& client, schedule::Clock& clock, Cancellation& cancellation,
             const std::vector<Conversation>& conversations, const LoadOptions& options, Progress progress,
             OnRecord on_record);

  /// Measures into `run`, which holds after an error what was measured before it. Errors: of chunk puts, of
  /// an unloaded request (nothing under load could be trusted), kFailedPrecondition where a search has no
  /// time without load to go by, kCancelled after Ctrl-C.
  absl::Status Run(LoadRun& run);

 private:
  absl::Status MeasureUnloaded(int mode, LoadRun& run);
  absl::Status RunLoads(LoadRun& run);
  absl::Status Search(LoadRun& run);
  /// Whether `mode` bears `rate` with TTFT within `limit`.
  absl::StatusOr<bool> Bears(int mode, double rate, double limit, LoadRun& run);
  /// One measurement of some modes together. `within`: whether the step's bound was kept.
  absl::Status Measure(LoadPoint point, LoadStep step, const std::vector<int>& modes, std::string_view what,
                       LoadRun& run, bool* within = nullptr);
  LoadStep StepAt(double rate, const ArrivalLimits& limits) const;
  /// Requests of so many conversations, from the first on.
  int64_t RequestsOf(int64_t conversations) const;
  LoadScript ScriptFor(const std::vector<int>& modes) const;
  std::vector<int> AllModes() const;

  Client& client_;
  schedule::Clock& clock_;
  Cancellation& cancellation_;
  const std::vector<Conversation>& conversations_;
  const LoadOptions& options_;
  const Progress progress_;
  const OnRecord on_record_;
  StoredChunks chunks_;
  std::map<std::pair<int, int>, std::string> references_;  // by mode and conversation
};

}  // namespace kvblend::server::cli
