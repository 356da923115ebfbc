// A request's timeline in the form that ui.perfetto.dev and chrome://tracing open: JSON of the Trace Event
// Format ("Trace Event Format", Google, 2016), complete events ("ph": "X") on one thread per track.
#pragma once

#include <string>

#include "engine/api/request_trace.h"

namespace kvblend::server {

/// What a timeline is of. Texts are of characters that JSON takes as they are: names of ours and digits.
struct TraceLabels {
  std::string trace_id;
  std::string span_id;
  std::string method;  // "Generate"
  std::string code;    // "OK"
  // As CallLog::RequestIds has them; an empty one is left out.
  std::string request_id = {};
  std::string client_request_id = {};
};

/// Spans in the order of their beginnings, outer ones first; microseconds since the trace began, to the
/// nanosecond. "otherData" has the labels, when it began, and how many spans had no room.
std::string TraceJson(const RequestTrace& trace, const TraceLabels& labels);

}  // namespace kvblend::server
