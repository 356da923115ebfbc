#include "engine/model/files/json_text.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr size_t kMaxJsonDepth = 16;
constexpr size_t kMaxShownError = 200;

// What a text must be before memory is taken for it. Two readings in place of one with the library's callback, which for
// every object looks through all members of the one around it: 100,000 tensors took minutes.
class Checks final : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& why() const { return why_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool key(string_t& name) override {
    return keys_.back().insert(name).second || Refuse(Concat("the key ", Quote(name), " appears twice"));
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    // The parser's has all of a text that is wrong.
    return Refuse(std::string(std::string_view(error.what()).substr(0, kMaxShownError)));
  }

 private:
  bool Open() {
    if (keys_.size() == kMaxJsonDepth) return Refuse(Concat("nested more than ", kMaxJsonDepth, " deep"));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
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
