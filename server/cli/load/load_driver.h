// Sends the requests of one measurement at their times and notes what comes back.
//
// One thread plans and sends; answers arrive on the threads of Calls, which only note the time. So a request
// that takes long holds up no other one's sending.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/schedule/clock.h"
#include "server/calls/calls.h"
#include "server/cli/cancellation.h"
#include "server/cli/load/arrivals.h"
#include "server/cli/load/conversations.h"
#include "server/cli/load/load_record.h"

namespace kvblend::server::cli {

/// Which conversations are held, how.
struct LoadScript {
  const std::vector<Conversation>& conversations;  // taken in order, around the end
  const std::vector<BenchVariant>& modes;
  std::vector<int> mode_indices;  // conversations take these modes in turn; each of them gets the same ones
  std::string tenant_namespace;
  double think_seconds = 0;                           // between an answer and the next turn's question
  absl::Duration timeout = absl::InfiniteDuration();  // of a request, from its planned time
};

/// More than this many first tokens later than so: the rest need not be waited for.
struct TtftBound {
  double seconds = 0;
  int64_t allowed = 0;
};

/// Open loop: conversations begin at `arrivals`, and all their turns are asked. Closed loop: `clients` hold
/// one after the other, until `seconds` have passed. Neither plans more than `requests`, later turns among
/// them.
struct LoadStep {
  std::vector<double> arrivals = {};  // seconds from the start, ascending; closed loop: empty
  int clients = 0;                    // closed loop: at least 1
  double seconds = 0;
  int64_t requests = kMaxLoadRequests;
  std::optional<TtftBound> bound = std::nullopt;
};

struct LoadResult {
  std::vector<LoadRecord> records;  // by the time at which they ended
  double seconds = 0;               // until the last one ended
  bool stopped_early = false;       // at the bound
  bool interrupted = false;         // by Ctrl-C
  // By mode, of what was planned: what was running or had not begun when it was stopped.
  std::map<int, int64_t> unfinished;
  int64_t planned = 0;  // requests of all modes, unfinished ones among them
};

/// Called now and then on the calling thread: requests ended, in flight, and the seconds since the start.
using LoadProgress = std::function<void(int64_t ended, int64_t in_flight, double seconds)>;

/// Returns when every request has ended. Ctrl-C and the bound cancel those that run, which are then not among
/// the records but unfinished. A client of the closed loop whose request failed pauses for as long as it was
/// told, else for kPauseSeconds.
LoadResult RunLoad(Calls& calls, schedule::Clock& clock, Cancellation& cancellation, const LoadScript& script,
                   const LoadStep& step, const LoadProgress& progress = nullptr);
inline constexpr double kPauseSeconds = 0.1;

}  // namespace kvblend::server::cli
