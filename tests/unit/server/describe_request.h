// Requests of the engine as text, to compare and to print them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/api/names.h"
#include "engine/api/request.h"

namespace kvblend::server {

/// A field that is not named here is refused by the compiler.
struct Describe {
  static std::string Text(const std::string& value) { return value; }
  static std::string Text(absl::Time value) { return absl::FormatTime(value); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  static std::string Text(T value) { return absl::StrCat(value); }
  template <HasNames Enum>
  static std::string Text(Enum value) {
    return std::string(Name(value));
  }
  template <typename T>
  static std::string Text(const std::optional<T>& value) {
    return value.has_value() ? Text(*value) : "unset";
  }
  template <typename T>
  static std::string Text(const std::vector<T>& values) {
    std::string text = "[";
    for (const T& value : values) absl::StrAppend(&text, Text(value), ",");
    return text + "]";
  }
  template <typename K, typename T>
  static std::string Text(const std::map<K, T>& values) {
    std::string text = "[";
    for (const auto& [key, value] : values) absl::StrAppend(&text, Text(key), ":", Text(value), ",");
    return text + "]";
  }
  template <typename... T>
  static std::string All(const T&... values) {
    std::string text = "{";
    (absl::StrAppend(&text, Text(values), ";"), ...);
    return text + "}";
  }
  static std::string Text(const Turn& turn) {
    const auto& [role, text, lead_in, chunks] = turn;
    return All(role, text, lead_in, chunks);
  }
  static std::string Text(const Caller& caller) {
    const auto& [tenant_namespace, fairness_key, deadline, priority, trace, on_dequeued] =
        caller;  // the last two: the call's, not the message's
    return All(tenant_namespace, fairness_key, deadline, priority);
  }
  static std::string Text(const Prompt& prompt) {
    const auto& [system_text, lead_in, chunks, question, history, split] = prompt;
    return All(system_text, lead_in, chunks, question, history, split);
  }
  static std::string Text(const BlendOptions& options) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = options;
    return All(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r);
  }
  static std::string Text(const SamplingOptions& options) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = options;
    return All(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
  static std::string Text(const GenerateRequest& request) {
    const auto& [caller, prompt, blend, sampling] = request;
    return All(caller, prompt, blend, sampling);
  }
  static std::string Text(const ScoreRequest& request) {
    const auto& [a, b, c, d, e, f] = request;
    return All(a, b, c, d, e, f);
  }
  static std::string Text(const PutChunksRequest& request) {
    const auto& [a, b, c, d, e, f, g, h] = request;
    return All(a, b, c, d, e, f, g, h);
  }
  static std::string Text(const PrefetchChunksRequest& request) {
    const auto& [a, b, c, d, e, f] = request;
    return All(a, b, c, d, e, f);
  }
  static std::string Text(const SplitDocumentRequest& request) {
    const auto& [a, b, c, d, e, f, g, h, gone] = request;  // the last is no field of the message
    return All(a, b, c, d, e, f, g, h);
  }
};

}  // namespace kvblend::server
