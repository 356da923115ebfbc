// JSON from outside, read with bounds, and looked into by path. Internal to engine/text.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace kvblend::text {

/// Parses `bytes`. kInvalidArgument naming `name` when they are no JSON object, are nested too deeply or hold
/// too many values: memory is bounded by the two limits, whatever the bytes say.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view bytes, std::string_view name);

/// A value in a document, which must outlive it. A member that is missing is null, as in files of Hugging
/// Face tokenizers. Wrong types are kInvalidArgument naming the document and the path of the value.
class JsonValue {
 public:
  JsonValue(std::string_view document, const nlohmann::json& json) : document_(document), json_(&json) {}

  bool is_null() const { return json_->is_null(); }
  bool is_string() const { return json_->is_string(); }
  const nlohmann::json& json() const { return *json_; }

  /// Null when this is no object, or has no such member.
  JsonValue operator[](std::string_view member) const;
  /// REQUIRES: an array with more than `index` elements.
  JsonValue Element(size_t index) const;

  /// The number of elements; 0 for null.
  absl::StatusOr<size_t> ArraySize() const;
  absl::StatusOr<std::string> String() const;
  /// `fallback` for null.
  absl::StatusOr<bool> Bool(bool fallback) const;
  /// From 0 to the largest token id.
  absl::StatusOr<int32_t> Id() const;
  /// The string in "type".
  absl::StatusOr<std::string> Type() const { return (*this)["type"].String(); }

  absl::Status Invalid(std::string_view what) const;
  absl::Status Unimplemented(std::string_view what) const;

 private:
  JsonValue(std::string_view document, std::string path, const nlohmann::json& json)
      : document_(document), path_(std::move(path)), json_(&json) {}

  std::string_view document_;
  std::string path_;
  const nlohmann::json* json_;
};

}  // namespace kvblend::text
