#include "engine/model/files/json_text.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/json_events.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr size_t kMaxJsonDepth = 16;
constexpr size_t kMaxShownError = 200;

// Checks a text before memory is taken for its values.
class Checks final : public JsonEvents<nlohmann::json> {
 public:
  const std::string& why() const { return why_; }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    // The parser's message may quote all of a wrong text.
    return Refuse(std::string(std::string_view(error.what()).substr(0, kMaxShownError)));
  }

 private:
  bool Value() override { return true; }
  bool Key(const std::string& name) override {
    return keys_.back().insert(name).second || Refuse(Concat("the key ", Quote(name), " appears twice"));
  }
  bool Open() override {
    if (keys_.size() == kMaxJsonDepth) return Refuse(Concat("nested more than ", kMaxJsonDepth, " deep"));
    keys_.emplace_back();
    return true;
  }
  bool Close() override {
    keys_.pop_back();
    return true;
  }
  bool Refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }

  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the objects that are open; arrays have none
  std::string why_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::Span<const std::byte> bytes, std::string_view name,
                                               size_t max_bytes) {
  if (bytes.size() > max_bytes) {
    return absl::InvalidArgumentError(
        Concat(name, ": ", bytes.size(), " bytes of JSON; allowed: up to ", max_bytes));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  Checks checks;
  std::string why;
  if (nlohmann::json::sax_parse(text, text + bytes.size(), &checks)) {
    nlohmann::json value =
        nlohmann::json::parse(text, text + bytes.size(), /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (value.is_object()) return value;
    why = "it is no object";
  } else {
    why = checks.why();
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
