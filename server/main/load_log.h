// Progress in the log while a model is loaded, which takes minutes if it is large or its disk is slow.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace kvblend::server {

/// Used by one thread.
class LoadLog {
 public:
  /// `now` is the time, `write` takes a line.
  LoadLog(std::string model, std::function<absl::Time()> now, std::function<void(const std::string&)> write);

  /// To be called as an Engine::LoadObserver. Writes a line every few seconds, and one at the end if there
  /// was one before: models that load at once get no line.
  void Update(int64_t done_bytes, int64_t total_bytes);

 private:
  const std::string model_;
  const std::function<absl::Time()> now_;
  const std::function<void(const std::string&)> write_;
  absl::Time last_line_;
  bool wrote_ = false;
  bool ended_ = false;
};

}  // namespace kvblend::server
