// One line per call in the log, and its count in the metrics.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "server/metrics/metrics.h"

namespace kvblend::server {

/// Lives as long as one call; not thread-safe.
class CallLog {
 public:
  /// `service` and `method` must outlive this object. `metrics` as well.
  CallLog(Metrics* metrics, const char* service, const char* method, std::string peer);

  /// Facts to be logged at the end.
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t recomputed_tokens = 0;
  double time_to_first_token_seconds = -1;  // -1: there was none

  /// To be called once. OK and the client's own doing (its cancellation, its deadline) at info, what the
  /// server could not do at error, bad requests and overload at warning.
  void End(const grpc::Status& status);

 private:
  Metrics* const metrics_;
  const char* const service_;
  const char* const method_;
  const std::string peer_;
  const absl::Time start_;
};

}  // namespace kvblend::server
