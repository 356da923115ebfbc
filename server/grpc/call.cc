#include "server/grpc/call.h"

#include <chrono>
#include <iterator>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/retry_delay.h"

namespace kvblend::server {

std::string PeerHost(const std::string& peer) {
  const bool is_ip = peer.compare(0, 5, "ipv4:") == 0 || peer.compare(0, 5, "ipv6:") == 0;
  const size_t colon = peer.rfind(':');
  // Not the first one, and not one inside of an IPv6 address, whose end is a bracket, or "%5D".
  const bool has_port = is_ip && colon > 4 && peer.find_first_of("]D", colon) == std::string::npos;
  return has_port ? peer.substr(0, colon) : peer;
}

std::string PeerOf(const grpc::CallbackServerContext& context, const TrustedProxies& proxies) {
  std::string peer = context.peer();
  if (proxies.empty()) return peer;
  const auto [begin, end] = context.client_metadata().equal_range("x-forwarded-for");
  std::vector<absl::string_view> values;
  for (auto one = begin; one != end; ++one) values.emplace_back(one->second.data(), one->second.size());
  const std::string host = PeerHost(peer);
  std::string client = proxies.ClientOf(host, absl::StrJoin(values, ","));
  return client == host ? peer : client;
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::StatusOr<std::string> AuthorizationOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  if (begin == end) return "";
  if (const auto entries = std::distance(begin, end); entries > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the call has ", entries, " entries of the metadata 'authorization'; allowed: one"));
  }
  return std::string(begin->second.data(), begin->second.size());
}

TraceContext TraceOf(const Tracer* tracer, grpc::CallbackServerContext* context) {
  // A call with more than one parent has none.
  const auto [begin, end] = context->client_metadata().equal_range(kTraceParent);
  const bool has_one = begin != end && std::next(begin) == end;
  const TraceContext trace = BeginCall(
      tracer, has_one ? std::string_view(begin->second.data(), begin->second.size()) : std::string_view());
  context->AddTrailingMetadata(kTraceResponse, ToHeader(trace));
  return trace;
}

CallLog::RequestIds RequestIdsOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find(kRequestIdHeader);
  if (found == context.client_metadata().end()) return {};
  return {.answer = "", .client = LoggableId({found->second.data(), found->second.size()})};
}

void AddRetryHint(const absl::Status& status, grpc::CallbackServerContext* context) {
  const absl::Duration delay = RetryDelayOf(status).value_or(kDefaultRetryDelay);
  context->AddTrailingMetadata("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(delay)));
}

}  // namespace kvblend::server
