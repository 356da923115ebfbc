#include "server/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblend::server::cli {
namespace {

constexpr std::string_view kReset = "\033[0m";
constexpr std::string_view kRed = "\033[1;31m";
constexpr std::string_view kYellow = "\033[1;33m";
constexpr std::string_view kDim = "\033[2m";
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(50);
constexpr int kBarWidth = 24;  // leaves room for counts and a note in 80 columns

std::string Coloured(bool colour, std::string_view code, std::string_view text) {
  std::string result;
  if (colour) result += code;
  result += text;
  if (colour) result += kReset;
  return result;
}

int ColumnsOfStandardError() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool IsInsideCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }  // of UTF-8

/// Of the character that `text`, which is not empty, begins with; 0: that is no UTF-8.
size_t CharacterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsInsideCharacter(text[i])) return 0;
  }
  return length;
}

}  // namespace

Terminal Terminal::Standard() {
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  const bool colour = is_terminal && !dumb && (no_colour == nullptr || *no_colour == '\0');
  return Terminal{.out = std::cout,
                  .err = std::cerr,
                  .err_is_terminal = is_terminal && !dumb,
                  .colour = colour,
                  .columns = ColumnsOfStandardError};
}

void Terminal::Redraw(std::string line) {
  // The last column stays free: some terminals go on in the next line once it is filled.
  const auto width = static_cast<size_t>(std::max(columns == nullptr ? 0 : columns(), 0));
  size_t seen = 0, bytes = 0;
  for (; bytes < line.size(); ++bytes) {
    if (!IsInsideCharacter(line[bytes]) && ++seen == width) break;
  }
  line.resize(bytes);
  err << "\r\033[K" << line << std::flush;
}

void Terminal::PrintLine(std::string_view line) { out << line << std::endl; }

std::string JsonLine(const OrderedJson& object) {
  return object.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                     OrderedJson::error_handler_t::replace);
}

void Terminal::PrintJson(const OrderedJson& object) { PrintLine(JsonLine(object)); }

void Terminal::PrintError(const absl::Status& status) {
  err << Coloured(colour, kRed, "error:") << " " << status.message() << " ("
      << absl::StatusCodeToString(status.code()) << ")" << std::endl;
  if (absl::IsUnauthenticated(status)) PrintNote("The key is read from the environment: KVBLEND_API_KEY.");
}

void Terminal::PrintWarning(std::string_view message) {
  err << Coloured(colour, kYellow, "warning:") << " " << message << std::endl;
}

void Terminal::PrintNote(std::string_view line) { err << Coloured(colour, kDim, line) << std::endl; }

ProgressBar::ProgressBar(Terminal& terminal, std::string label, absl::Duration line_every,
                         std::function<absl::Time()> now)
    : terminal_(terminal),
      label_(std::move(label)),
      line_every_(line_every),
      now_(std::move(now)),
      start_(now_()) {}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Clear() {
  if (std::exchange(drawn_, false)) terminal_.err << "\r\033[K" << std::flush;
}

void ProgressBar::Update(int64_t done, int64_t total, std::string_view note) {
  const bool is_other_work = done < last_done_ || total < last_total_;
  last_done_ = done;
  last_total_ = total;
  if (begun_at_ < 0) begun_at_ = done;
  if (is_other_work) {
    begun_at_ = done;
    start_ = now_();
  }
  const bool draws = terminal_.err_is_terminal;
  if (!draws && line_every_ == absl::InfiniteDuration()) return;
  const absl::Time now = now_();
  if (draws ? drawn_ && done < total && now - last_drawn_ < kRedrawInterval : now - last_drawn_ < line_every_)
    return;
  last_drawn_ = now;
  std::string line = label_;
  if (draws) {
    const double share =
        total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
    const auto filled = static_cast<size_t>(std::lround(share * kBarWidth));
    absl::StrAppend(&line, " [", std::string(filled, '#'), std::string(kBarWidth - filled, '-'), "]");
  }
  absl::StrAppend(&line, " ", done, "/", total);
  const double elapsed = absl::ToDoubleSeconds(now - start_);
  if (done > begun_at_ && done < total && elapsed > 1) {
    const double left = elapsed * static_cast<double>(total - done) / static_cast<double>(done - begun_at_);
    absl::StrAppend(&line, ", ", HumanSeconds(left), " left");
  }
  if (!note.empty()) line.append("  ").append(note);
  drawn_ = draws;
  if (draws) {
    terminal_.Redraw(std::move(line));
  } else {
    terminal_.err << line << std::endl;
  }
}

std::string OnOneLine(std::string_view text) {
  std::string line;
  for (size_t i = 0; i < text.size();) {
    const size_t length = CharacterBytes(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(length == 2 ? text[i + 1] : 0);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else if (byte == 0xC2 && next < 0xA0) {  // U+0080 to U+009F, which terminals obey too
      absl::StrAppendFormat(&line, "\\x%02x", next);
    } else {
      line.append(text.substr(i, length));
    }
    i += std::max<size_t>(length, 1);
  }
  return line;
}

std::string Counted(int64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", std::string(noun), count == 1 ? "" : "s");
}

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : 1;
  return absl::StrFormat("%.*f %s", decimals, value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 0.0995) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 99.95) return absl::StrFormat("%.2f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %d min", whole / 3600, whole % 3600 / 60);
}

std::string HumanNumber(double value) {
  if (value == 0 || !std::isfinite(value)) return absl::StrFormat("%g", value);
  const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
  std::string text = absl::StrFormat("%.*f", std::clamp(2 - magnitude, 0, 12), value);
  if (absl::StrContains(text, '.')) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace kvblend::server::cli
