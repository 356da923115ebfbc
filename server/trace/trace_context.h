// Which trace a call belongs to: W3C Trace Context (https://www.w3.org/TR/trace-context/), of which the
// header `traceparent` is read and, as the later draft has it, `traceresponse` written. `tracestate` is for
// vendors, and this server adds nothing to it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvblend::server {

inline constexpr char kTraceParent[] = "traceparent";
inline constexpr char kTraceResponse[] = "traceresponse";

struct TraceContext {
  std::string trace_id;  // 32 digits, 0 to 9 and a to f, not all 0
  std::string
      span_id;  // 16 of them: of the caller's span in what was parsed, of this call in what NewCall gives
  bool sampled = false;  // the caller keeps a trace of this
};

/// nullopt unless it is valid: version-trace-parent-flags in lower case, of version 00 exactly so, of a later
/// one with nothing or '-' behind it; version ff and ids of nothing but 0 are not allowed.
std::optional<TraceContext> ParseTraceParent(std::string_view header);

/// The context of a call that came with this header (empty: none): a new span of the caller's trace, or of a
/// new one where the header is not valid.
TraceContext NewCall(std::string_view header);

/// As the headers have it: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".
std::string ToHeader(const TraceContext& context);

}  // namespace kvblend::server
