#include "server/cli/bench/run_settings.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {
namespace {

constexpr const char* kFormat = "kvblend_bench";
constexpr int kFormatVersion = 1;

constexpr std::pair<const char*, bool BenchMeasures::*> kMeasures[] = {{"ttft", &BenchMeasures::ttft},
                                                                       {"kl", &BenchMeasures::kl},
                                                                       {"nll", &BenchMeasures::nll},
                                                                       {"f1", &BenchMeasures::f1}};
constexpr std::pair<const char*, int32_t BenchOptions::*> kCounts[] = {
    {"passages", &BenchOptions::max_passages},
    {"repeats", &BenchOptions::repeats},
    {"kl_tokens", &BenchOptions::kl_tokens},
    {"answer_tokens", &BenchOptions::answer_tokens}};

absl::Status BadSetting(const std::string& key, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("'", key, "' must be ", what));
}

absl::StatusOr<std::vector<std::string>> StringsAt(const OrderedJson& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array()) return BadSetting(key, "a list of strings");
  std::vector<std::string> strings;
  for (const OrderedJson& value : *it) {
    if (!value.is_string()) return BadSetting(key, "a list of strings");
    strings.push_back(value.get<std::string>());
  }
  return strings;
}

absl::Status CheckSame(const OrderedJson& ours, const OrderedJson& theirs) {
  for (const auto& [key, value] : ours.items()) {
    const OrderedJson other = theirs.value(key, OrderedJson());
    if (value == other) continue;
    if (value.is_object() && other.is_object()) return CheckSame(value, other);
    return absl::FailedPreconditionError(absl::StrCat("results of other settings: ", key, " is ",
                                                      JsonLine(other), " there and ", JsonLine(value),
                                                      " here"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RunSettings::Title() const {
  return absl::StrCat(engine.value("name", ""), " on ", engine.value("backend", ""));
}

OrderedJson FullPrefillEngine(const v1::GetInfoResponse& info) {
  return {{"version", info.version()},
          {"name", info.model().name()},
          {"fingerprint", info.model().fingerprint()},
          {"backend", info.backend()},
          {"kv_dtype", info.kv_format().dtype()}};
}

RunSettings MakeRunSettings(const v1::GetInfoResponse& info, const BenchOptions& options) {
  RunSettings settings{.engine = FullPrefillEngine(info), .options = options};
  settings.engine["chunk_format"] = info.kv_format().chunk_format();
  settings.engine["correction"] = info.kv_format().correction();
  return settings;
}

OrderedJson ToJson(const RunSettings& settings) {
  const BenchOptions& options = settings.options;
  OrderedJson rows = OrderedJson::array();
  for (const BenchVariant& variant : options.variants) rows.push_back(variant.RowName());
  OrderedJson measures = OrderedJson::array();
  for (const auto& [name, measure] : kMeasures) {
    if (options.measures.*measure) measures.push_back(name);
  }
  OrderedJson json = {
      {kFormat, kFormatVersion}, {"engine", settings.engine}, {"rows", rows}, {"measures", measures}};
  for (const auto& [key, count] : kCounts) json[key] = options.*count;
  return json;
}

absl::StatusOr<RunSettings> RunSettingsFromJson(const OrderedJson& json) {
  if (!json.is_object() || json.value(kFormat, OrderedJson()) != kFormatVersion) {
    return absl::InvalidArgumentError("not results of kvblend bench in a format that this version reads");
  }
  RunSettings settings{.engine = json.value("engine", OrderedJson()), .options = {}};
  if (!settings.engine.is_object()) return BadSetting("engine", "an object");
  for (const auto& [key, value] : settings.engine.items()) {
    if (!value.is_string()) return BadSetting(absl::StrCat("engine.", key), "a string");
  }
  BenchOptions& options = settings.options;
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> rows, StringsAt(json, "rows"));
  if (rows.empty()) return BadSetting("rows", "a list of at least one row");
  for (const std::string& row : rows) {
    KVBLEND_ASSIGN_OR_RETURN(options.variants.emplace_back(), ParseRow(row));
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> measures, StringsAt(json, "measures"));
  KVBLEND_ASSIGN_OR_RETURN(options.measures, ParseMeasures(measures));
  for (const auto& [key, count] : kCounts) {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_number_integer()) return BadSetting(key, "an integer");
    options.*count = it->get<int32_t>();
  }
  return settings;
}

absl::Status CheckSameSettings(const RunSettings& ours, const RunSettings& theirs) {
  return CheckSame(ToJson(ours), ToJson(theirs));
}

}  // namespace kvblend::server::cli
