#include "server/trace/trace_context.h"

#include <algorithm>
#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblend::server {
namespace {

constexpr size_t kVersionDigits = 2, kTraceDigits = 32, kSpanDigits = 16, kFlagDigits = 2;
constexpr size_t kHeaderLength = kVersionDigits + 1 + kTraceDigits + 1 + kSpanDigits + 1 + kFlagDigits;

bool IsLowerHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsLowerHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

/// At least one bit is set, as ids must have.
uint64_t RandomBits() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, ~uint64_t{0});
}

}  // namespace

std::optional<TraceContext> ParseTraceParent(std::string_view header) {
  if (header.size() < kHeaderLength) return std::nullopt;
  const std::string_view version = header.substr(0, kVersionDigits);
  const std::string_view trace = header.substr(kVersionDigits + 1, kTraceDigits);
  const std::string_view span = header.substr(kVersionDigits + 1 + kTraceDigits + 1, kSpanDigits);
  const std::string_view flags = header.substr(kHeaderLength - kFlagDigits, kFlagDigits);
  for (const size_t dash :
       {kVersionDigits, kVersionDigits + 1 + kTraceDigits, kHeaderLength - kFlagDigits - 1}) {
    if (header[dash] != '-') return std::nullopt;
  }
  if (!IsLowerHex(version) || version == "ff" || !IsId(trace) || !IsId(span) || !IsLowerHex(flags)) {
    return std::nullopt;
  }
  if (header.size() > kHeaderLength && (version == "00" || header[kHeaderLength] != '-')) return std::nullopt;
  const char last = flags.back();
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceContext{
      .trace_id = std::string(trace), .span_id = std::string(span), .sampled = (digit & 1) != 0};
}

TraceContext NewCall(std::string_view header) {
  TraceContext context;
  if (const std::optional<TraceContext> parent = ParseTraceParent(header); parent.has_value()) {
    context = *parent;
  } else {
    context.trace_id = absl::StrFormat("%016x%016x", RandomBits(), RandomBits());
  }
  context.span_id = absl::StrFormat("%016x", RandomBits());
  return context;
}

std::string ToHeader(const TraceContext& context) {
  return absl::StrCat("00-", context.trace_id, "-", context.span_id, context.sampled ? "-01" : "-00");
}

}  // namespace kvblend::server
