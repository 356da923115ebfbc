#include "engine/model/files/json_text.h"

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr size_t kMaxJsonDepth = 16;
constexpr size_t kMaxShownError = 200;

// Leaves the parser, which knows no other way of being stopped by what it calls.
class Refused final : public std::exception {
 public:
  explicit Refused(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  const std::string why_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::Span<const std::byte> bytes, std::string_view name,
                                               size_t max_bytes) {
  if (bytes.size() > max_bytes) {
    return absl::InvalidArgumentError(
        Concat(name, ": ", bytes.size(), " bytes of JSON; allowed: up to ", max_bytes));
  }
  std::vector<absl::flat_hash_set<std::string>> keys;  // of the objects that are open; arrays have none
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (keys.size() == kMaxJsonDepth) throw Refused(Concat("nested more than ", kMaxJsonDepth, " deep"));
      keys.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
    } else if (event == Event::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw Refused(Concat("the key ", Quote(parsed.get_ref<const std::string&>()), " appears twice"));
    }
    return true;
  };
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  std::string why;
  try {
    nlohmann::json value = nlohmann::json::parse(text, text + bytes.size(), watch);
    if (value.is_object()) return value;
    why = "it is no object";
  } catch (const std::exception& error) {
    why = std::string_view(error.what())
              .substr(0, kMaxShownError);  // the parser's has all of a text that is wrong
  }
  return absl::InvalidArgumentError(Concat(name, ": not the JSON that is expected: ", why));
}

std::string ShowJson(const nlohmann::json& value) {
  constexpr size_t kMaxShownJson = 80;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kMaxShownJson) return text;
  text.resize(kMaxShownJson);
  return text + "...";
}

}  // namespace kvblend::model
