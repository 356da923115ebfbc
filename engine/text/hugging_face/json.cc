#include "engine/text/hugging_face/json.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/json_events.h"

namespace kvblend::text {
namespace {

// The largest published files have 35 MB and three million values, 8 deep.
constexpr size_t kMaxBytes = size_t{128} << 20;
constexpr size_t kMaxValues = size_t{12} << 20;
constexpr int kMaxDepth = 32;

// Checks a document before memory is taken for its values.
class Limits final : public JsonEvents<nlohmann::json> {
 public:
  bool too_many() const { return values_ > kMaxValues; }
  bool too_deep() const { return too_deep_; }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  bool Value() override { return Count(); }
  bool Key(const std::string&) override { return Count(); }
  bool Count() {
    ++values_;
    too_deep_ = depth_ > kMaxDepth;
    return !too_many() && !too_deep_;
  }
  bool Open() override {
    if (!Count()) return false;
    ++depth_;
    return true;
  }
  bool Close() override {
    --depth_;
    return true;
  }

  size_t values_ = 0;
  int depth_ = 0;
  bool too_deep_ = false;
};

const nlohmann::json& Null() {
  static const auto* const null = new nlohmann::json();
  return *null;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view bytes, std::string_view name) {
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " ", std::string(what)));
  };
  if (bytes.size() > kMaxBytes) {
    return refuse(absl::StrCat("has ", bytes.size(), " bytes; allowed: up to ", kMaxBytes));
  }
  Limits limits;
  const bool is_json = nlohmann::json::sax_parse(bytes.begin(), bytes.end(), &limits);
  if (limits.too_many()) return refuse(absl::StrCat("has too many values; allowed: up to ", kMaxValues));
  if (limits.too_deep()) return refuse(absl::StrCat("is nested too deeply; allowed: ", kMaxDepth, " levels"));
  if (!is_json) return refuse("is no JSON object");
  nlohmann::json json =
      nlohmann::json::parse(bytes.begin(), bytes.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return refuse("is no JSON object");
  return json;
}

JsonValue JsonValue::operator[](std::string_view member) const {
  std::string path = path_.empty() ? std::string(member) : absl::StrCat(path_, ".", std::string(member));
  if (!json_->is_object()) return {document_, std::move(path), Null()};
  const auto found = json_->find(std::string(member));
  return {document_, std::move(path), found == json_->end() ? Null() : *found};
}

JsonValue JsonValue::Element(size_t index) const {
  return {document_, absl::StrCat(path_, "[", index, "]"), (*json_)[index]};
}

absl::StatusOr<size_t> JsonValue::ArraySize() const {
  if (json_->is_null()) return size_t{0};
  if (!json_->is_array()) return Invalid("is no array");
  return json_->size();
}

absl::StatusOr<std::string> JsonValue::String() const {
  if (!json_->is_string()) return Invalid("is no string");
  return json_->get<std::string>();
}

absl::StatusOr<bool> JsonValue::Bool(bool fallback) const {
  if (json_->is_null()) return fallback;
  if (!json_->is_boolean()) return Invalid("is neither true nor false");
  return json_->get<bool>();
}

absl::StatusOr<int32_t> JsonValue::Id() const {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max() - 1;
  if (!json_->is_number_unsigned() || json_->get<uint64_t>() > static_cast<uint64_t>(kMax)) {
    return Invalid(absl::StrCat("is no token id; allowed: 0 to ", kMax));
  }
  return static_cast<int32_t>(json_->get<uint64_t>());
}

absl::Status JsonValue::Invalid(std::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(document_), ": ", path_, " ", std::string(what)));
}

absl::Status JsonValue::Unimplemented(std::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(std::string(document_), ": ", path_, " ", std::string(what)));
}

}  // namespace kvblend::text
