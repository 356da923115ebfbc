#include "server/main/load_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

constexpr absl::Duration kBetweenLines = absl::Seconds(5);

}  // namespace

LoadLog::LoadLog(std::string model, std::function<absl::Time()> now,
                 std::function<void(const std::string&)> write)
    : model_(std::move(model)), now_(std::move(now)), write_(std::move(write)), last_line_(now_()) {}

void LoadLog::Update(int64_t done_bytes, int64_t total_bytes) {
  const bool at_end = done_bytes >= total_bytes;
  const absl::Time now = now_();
  const bool is_due = at_end ? wrote_ && !ended_ : now - last_line_ >= kBetweenLines;
  if (!is_due) return;
  last_line_ = now;
  wrote_ = true;
  ended_ = at_end;
  write_(absl::StrCat("loading ", model_, ": ", done_bytes >> 20, " of ", total_bytes >> 20, " MiB"));
}

}  // namespace kvblend::server
