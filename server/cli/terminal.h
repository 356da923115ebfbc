// Where a command writes: results on `out`, everything else (progress, reports, errors) on `err`.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "nlohmann/json.hpp"

namespace kvblend::server::cli {

/// Keys keep the order in which they are set, so that lines read the same everywhere.
using OrderedJson = nlohmann::ordered_json;

/// On one line, without its end. Bytes that are no UTF-8 become U+FFFD.
std::string JsonLine(const OrderedJson& object);

struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;  // progress bars only then
  bool colour = false;           // on `err`; never when NO_COLOR is set
  int (*columns)() = nullptr;    // of `err` now, which a person may make narrower; 0 or null: not known

  /// The process's own streams.
  static Terminal Standard();

  /// Flushed.
  void PrintLine(std::string_view line);
  /// One JSON object on a line of its own.
  void PrintJson(const OrderedJson& object);
  /// "error: ..." on err; `code` is named for machines that read logs.
  void PrintError(const absl::Status& status);
  void PrintWarning(std::string_view message);
  /// Draws `line` in the place of the one that was drawn before. Its end is left out where it would break
  /// into two, of which the next would replace only one.
  void Redraw(std::string line);
  /// A line that a person may skip, dimmed where colours are on.
  void PrintNote(std::string_view line);
};

/// One line that is redrawn as work goes on. Erases itself at the end.
class ProgressBar {
 public:
  /// `line_every`: where `err` is no terminal, a line of its own so often at most; infinite: none.
  /// `now` is a clock that nobody sets.
  ProgressBar(Terminal& terminal, std::string label, absl::Duration line_every = absl::InfiniteDuration(),
              std::function<absl::Time()> now = SteadyNow);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `note` is shown behind the counts, and may be empty. Cheap: draws no more often than people can read.
  /// Less done or less to do than before is other work, whose time left is its own.
  void Update(int64_t done, int64_t total, std::string_view note);
  /// Makes way for other output; the next Update draws the bar again.
  void Clear();

 private:
  Terminal& terminal_;
  const std::string label_;
  const absl::Duration line_every_;
  const std::function<absl::Time()> now_;
  absl::Time start_;       // of the work that is shown
  int64_t begun_at_ = -1;  // what was done then, perhaps by an earlier run; -1: there was none
  int64_t last_done_ = 0;
  int64_t last_total_ = 0;
  bool drawn_ = false;
  absl::Time last_drawn_ = absl::InfinitePast();
};

/// For a cell of a table: control characters and bytes that are no UTF-8, which others may have put into a
/// name, as "\x1b"; the rest as it is.
std::string OnOneLine(std::string_view text);
/// "1 chunk", "2 chunks".
std::string Counted(int64_t count, std::string_view noun);
/// "532 KiB", "1.4 GiB".
std::string HumanBytes(int64_t bytes);
/// "0.8 ms", "132 ms", "2.41 s", "3 min 20 s".
std::string HumanSeconds(double seconds);
/// "0.025", "7.58", "65100": three digits that say something, more only before the point, and never an
/// exponent.
std::string HumanNumber(double value);

}  // namespace kvblend::server::cli
