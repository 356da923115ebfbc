// Reads metadata keys into fields and keeps the first error, so that a list of keys reads as a list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {

/// Keys are given without the architecture's prefix, which is `prefix` with its dot, or "". Not thread-safe;
/// the file must outlive it. Values that could not be read are 0 or empty: look at status().
class KeyReader {
 public:
  KeyReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return file_.HasKey(Key(key)); }

  int32_t Integer(std::string_view key, int64_t min, int64_t max) {
    return static_cast<int32_t>(Keep(file_.GetInteger(Key(key), min, max)));
  }
  int32_t IntegerOr(std::string_view key, int64_t min, int64_t max, int32_t fallback) {
    return Has(key) ? Integer(key, min, max) : fallback;
  }
  /// A number strictly between the bounds.
  double Float(std::string_view key, double above, double below) {
    auto value = file_.GetFloat(Key(key));
    const auto is_within = [&](double x) { return x > above && x < below; };
    // As a float too, which it becomes: there too small a number is 0.
    if (value.ok() && !(is_within(*value) && is_within(static_cast<float>(*value)))) {
      value =
          absl::InvalidArgumentError(Concat(file_.name(), ": key '", Key(key), "' is ", *value,
                                            "; allowed: above ", above, ", below ", below, " as a float32"));
    }
    return Keep(std::move(value));
  }
  double FloatOr(std::string_view key, double above, double below, double fallback) {
    return Has(key) ? Float(key, above, below) : fallback;
  }
  std::string StringOr(std::string_view key, std::string_view fallback) {
    return std::string(Has(key) ? Keep(file_.GetString(Key(key))) : fallback);
  }

  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  T Keep(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    if (status_.ok()) status_ = value.status();
    return T{};
  }

  const GgufFile& file_;
  const std::string prefix_;
  absl::Status status_;
};

}  // namespace kvblend::model
