// JSON from outside: parsed with bounds, and read field by field so that nothing in it is overlooked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace kvblend::server {

using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 32;
inline constexpr int kMaxJsonValues = 100'000;

/// The object that `bytes` are. kInvalidArgument when they are none, are nested more deeply than
/// kMaxJsonDepth, hold more than kMaxJsonValues values, or give one member twice. kResourceExhausted when
/// there is no memory for them. Never throws.
absl::StatusOr<Json> ParseObject(std::string_view bytes);

/// On one line; what is no UTF-8 is replaced. Throws nothing but std::bad_alloc.
std::string ToText(const Json& json);

/// The same JSON with U+0085, U+2028 and U+2029 escaped. JSON may have them in strings as they are, but some
/// readers of event streams take each for the end of a line.
std::string EscapeLineEnds(std::string_view json);

/// A kInvalidArgument that carries the name of its field, such as "stop[2]". `message` must contain nothing
/// that the client wrote.
absl::Status FieldError(const std::string& param, const std::string& message);
/// The same with the message "`param` is `value`; allowed: `allowed`". The log gets it without the value,
/// which may be a text of the client's.
absl::Status ValueError(const std::string& param, const std::string& value, const std::string& allowed);
/// The field of a FieldError or ValueError; else empty.
std::string ParamOf(const absl::Status& status);

/// `status`, of which the log gets `logged` instead of the message, which holds something that a client
/// wrote.
absl::Status LogAs(absl::Status status, const std::string& logged);
/// What the log gets: what LogAs has set, else the message.
std::string LoggedMessage(const absl::Status& status);

/// A text of a client's in quotes for a message, cut.
std::string Quoted(std::string_view text);

/// Reads an object's members. The first thing that is wrong is kept, and everything is absent from then on:
/// read all, then ask Finish. A member that is null is absent. Not thread-safe; `object` must outlive it.
class FieldReader {
 public:
  /// `path` is the object's in messages ("stream_options"); empty for the whole body.
  FieldReader(const Json& object, std::string path);

  /// Null when the member is absent.
  const Json* Value(const std::string& name);
  std::optional<std::string> String(const std::string& name);
  /// 1.0 is 1, as far as doubles are exact.
  std::optional<int64_t> Integer(const std::string& name, int64_t min, int64_t max);
  /// The bits of an integer of 64 bits that has a sign or has none: -1 is 2^64 - 1. As a string as well,
  /// which is what Protobuf's JSON writes.
  std::optional<uint64_t> Bits64(const std::string& name);
  std::optional<double> Number(const std::string& name);
  std::optional<bool> Bool(const std::string& name);

  /// Members that change nothing here.
  void Ignore(std::initializer_list<const char*> names);
  /// Members of features that do not exist here: refused unless absent, false, 0, or empty. `allowed` ends
  /// the message.
  void Refuse(std::initializer_list<const char*> names, const std::string& allowed);
  /// As Refuse, but for this value.
  void RefuseUnless(const std::string& name, const Json& allowed);

  /// Keeps the first error.
  void Note(absl::Status status);
  bool ok() const { return status_.ok(); }
  /// The first error; members that were not read are errors too.
  absl::Status Finish();

  std::string PathOf(const std::string& name) const;

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

}  // namespace kvblend::server
