#include "server/cli/precompute/corpus_progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblend::server::cli {
namespace {

constexpr int kCorpusBarWidth = 16;  // leaves room for the rest in 80 columns

}  // namespace

CorpusProgress::CorpusProgress(Terminal& terminal, int64_t total_input_bytes, Clock now)
    : terminal_(terminal),
      total_input_bytes_(total_input_bytes),
      now_(std::move(now)),
      start_(now_()),
      last_shown_(terminal.err_is_terminal ? absl::InfinitePast() : start_) {}

CorpusProgress::~CorpusProgress() {
  absl::MutexLock lock(&mutex_);
  Clear();
}

void CorpusProgress::Update(const std::function<void(CorpusCounts&)>& change) {
  absl::MutexLock lock(&mutex_);
  change(counts_);
  const absl::Time now = now_();
  if (now - last_shown_ < (terminal_.err_is_terminal ? kRedrawInterval : kLineInterval)) return;
  last_shown_ = now;
  if (!terminal_.err_is_terminal) {
    terminal_.err << Describe(now) << std::endl;
    return;
  }
  const int filled = static_cast<int>(std::lround(Share() * kCorpusBarWidth));
  terminal_.Redraw(absl::StrCat("[", std::string(filled, '#'), std::string(kCorpusBarWidth - filled, '-'),
                                "] ", Describe(now)));
  drawn_ = true;
}

void CorpusProgress::Warn(std::string_view message) {
  absl::MutexLock lock(&mutex_);
  Clear();
  terminal_.PrintWarning(message);
}

CorpusCounts CorpusProgress::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

double CorpusProgress::seconds() const { return absl::ToDoubleSeconds(now_() - start_); }

double CorpusProgress::Share() const {
  if (total_input_bytes_ <= 0) return 0;
  return std::clamp(static_cast<double>(counts_.input_bytes) / static_cast<double>(total_input_bytes_), 0.0,
                    1.0);
}

std::string CorpusProgress::Describe(absl::Time now) const {
  const double seconds = std::max(absl::ToDoubleSeconds(now - start_), 1e-3);
  std::string line = absl::StrFormat("%.0f%%  %s", 100 * Share(), Counted(counts_.chunks, "chunk"));
  if (counts_.present_chunks() > 0) absl::StrAppend(&line, " (", counts_.present_chunks(), " there)");
  absl::StrAppendFormat(
      &line, "  %.1f chunks/s  %.0f tokens/s  %s", static_cast<double>(counts_.computed_chunks) / seconds,
      static_cast<double>(counts_.computed_tokens) / seconds, HumanBytes(counts_.stored_bytes));
  // Chunks that were present took no time, and tell nothing about the time of those to come.
  const int64_t worked_bytes = counts_.input_bytes - counts_.present_input_bytes;
  const int64_t left_bytes = total_input_bytes_ - counts_.input_bytes;
  if (counts_.computed_chunks > 0 && worked_bytes > 0 && left_bytes > 0) {
    absl::StrAppend(
        &line, "  ",
        HumanSeconds(seconds * static_cast<double>(left_bytes) / static_cast<double>(worked_bytes)), " left");
  }
  return line;
}

void CorpusProgress::Clear() {
  if (std::exchange(drawn_, false)) terminal_.err << "\r\033[K" << std::flush;
}

}  // namespace kvblend::server::cli
