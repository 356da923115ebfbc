#include "server/cli/request_json.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/api/engine.h"
#include "engine/api/status_macros.h"

namespace kvblend::server::cli {
namespace {

using Json = nlohmann::json;

absl::Status WrongType(const std::string& path, const char* expected, const Json& value) {
  return absl::InvalidArgumentError(absl::StrCat(path, " must be ", expected, ", not ", value.type_name()));
}

absl::Status Read(const Json& value, const std::string& path, std::string& out) {
  if (!value.is_string()) return WrongType(path, "a string", value);
  out = value.get<std::string>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, const std::string& path, bool& out) {
  if (!value.is_boolean()) return WrongType(path, "true or false", value);
  out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, const std::string& path, double& out) {
  if (!value.is_number()) return WrongType(path, "a number", value);
  out = value.get<double>();
  return absl::OkStatus();
}

template <typename Integer>
requires std::is_integral_v<Integer> absl::Status Read(const Json& value, const std::string& path,
                                                       Integer& out) {
  if (!value.is_number_integer()) return WrongType(path, "a whole number", value);
  const bool fits = value.is_number_unsigned() ? std::in_range<Integer>(value.get<uint64_t>())
                                               : std::in_range<Integer>(value.get<int64_t>());
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is ", value.dump(),
                                                   "; allowed: ", std::numeric_limits<Integer>::min(), " to ",
                                                   std::numeric_limits<Integer>::max()));
  }
  out = value.get<Integer>();
  return absl::OkStatus();
}

template <typename T>
absl::Status Read(const Json& value, const std::string& path, std::optional<T>& out) {
  return Read(value, path, out.emplace());
}

absl::Status Read(const Json& value, const std::string& path, std::vector<std::string>& out) {
  if (!value.is_array()) return WrongType(path, "a list of strings", value);
  out.clear();
  for (const Json& element : value) {
    const std::string element_path = absl::StrCat(path, "[", out.size(), "]");
    KVBLEND_RETURN_IF_ERROR(Read(element, element_path, out.emplace_back()));
  }
  return absl::OkStatus();
}

// "POLICY_QUERY" and "query" both read as "query".
template <typename Enum>
absl::Status ReadEnum(const Json& value, const std::string& path, std::string_view prefix,
                      absl::StatusOr<Enum> (*parse)(std::string_view), Enum& out) {
  std::string name;
  KVBLEND_RETURN_IF_ERROR(Read(value, path, name));
  if (name.starts_with(prefix)) name = absl::AsciiStrToLower(name.substr(prefix.size()));
  absl::StatusOr<Enum> parsed = parse(name);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", parsed.status().message()));
  out = *parsed;
  return absl::OkStatus();
}

// Calls read(key, value, path) for every field; `read` answers kNotFound for a key that it does not know.
template <typename Reader>
absl::Status ReadObject(const Json& object, const std::string& path, Reader read) {
  if (!object.is_object()) return WrongType(path, "an object", object);
  for (const auto& [key, value] : object.items()) {
    const std::string field_path = path == "request" ? key : absl::StrCat(path, ".", key);
    const absl::Status status = read(key, value, field_path);
    if (absl::IsNotFound(status))
      return absl::InvalidArgumentError(absl::StrCat("unknown field ", field_path));
    KVBLEND_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status UnknownField() { return absl::NotFoundError("unknown field"); }

absl::StatusOr<Role> ParseRole(std::string_view name) {
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown role '", std::string(name), "'; allowed: user, assistant"));
}

absl::Status ReadHistory(const Json& value, const std::string& path, std::vector<Turn>& out) {
  if (!value.is_array()) return WrongType(path, "a list of {role, text}", value);
  for (const Json& element : value) {
    Turn turn;
    KVBLEND_RETURN_IF_ERROR(
        ReadObject(element, absl::StrCat(path, "[", out.size(), "]"),
                   [&](const std::string& key, const Json& field, const std::string& field_path) {
                     if (key == "role")
                       return ReadEnum<Role>(field, field_path, "ROLE_", ParseRole, turn.role);
                     if (key == "text") return Read(field, field_path, turn.text);
                     return UnknownField();
                   }));
    out.push_back(std::move(turn));
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const Json& value, const std::string& path, Prompt& out) {
  return ReadObject(value, path,
                    [&](const std::string& key, const Json& field, const std::string& field_path) {
                      if (key == "system_text") return Read(field, field_path, out.system_text);
                      if (key == "lead_in") return Read(field, field_path, out.lead_in);
                      if (key == "chunks") return Read(field, field_path, out.chunks);
                      if (key == "question") return Read(field, field_path, out.question);
                      if (key == "history") return ReadHistory(field, field_path, out.history);
                      return UnknownField();
                    });
}

absl::Status ReadBlend(const Json& value, const std::string& path, BlendOptions& out) {
  return ReadObject(
      value, path, [&](const std::string& key, const Json& field, const std::string& field_path) {
        if (key == "reuse") return ReadEnum<Reuse>(field, field_path, "REUSE_", ParseReuse, out.reuse);
        if (key == "anchoring") {
          return ReadEnum<Anchoring>(field, field_path, "ANCHORING_", ParseAnchoring, out.anchoring);
        }
        if (key == "policy") return ReadEnum<Policy>(field, field_path, "POLICY_", ParsePolicy, out.policy);
        if (key == "ratio_mode") {
          return ReadEnum<RatioMode>(field, field_path, "RATIO_MODE_", ParseRatioMode,
                                     out.ratio_mode.emplace());
        }
        if (key == "ratio") return Read(field, field_path, out.ratio);
        if (key == "ratio_min") return Read(field, field_path, out.ratio_min);
        if (key == "ratio_max") return Read(field, field_path, out.ratio_max);
        if (key == "query_layers") return Read(field, field_path, out.query_layers);
        if (key == "hkvd_layer") return Read(field, field_path, out.hkvd_layer);
        if (key == "hkvd_source") {
          return ReadEnum<DeviationSource>(field, field_path, "DEVIATION_SOURCE_", ParseDeviationSource,
                                           out.hkvd_source);
        }
        if (key == "link_tokens") return Read(field, field_path, out.link_tokens);
        if (key == "random_seed") return Read(field, field_path, out.random_seed);
        if (key == "store_misses") return Read(field, field_path, out.store_misses);
        return UnknownField();
      });
}

absl::Status ReadSampling(const Json& value, const std::string& path, SamplingOptions& out) {
  return ReadObject(value, path,
                    [&](const std::string& key, const Json& field, const std::string& field_path) {
                      if (key == "max_tokens") return Read(field, field_path, out.max_tokens);
                      if (key == "temperature") return Read(field, field_path, out.temperature);
                      if (key == "top_k") return Read(field, field_path, out.top_k);
                      if (key == "top_p") return Read(field, field_path, out.top_p);
                      if (key == "min_p") return Read(field, field_path, out.min_p);
                      if (key == "repetition_penalty") return Read(field, field_path, out.repetition_penalty);
                      if (key == "seed") return Read(field, field_path, out.seed);
                      if (key == "stop") return Read(field, field_path, out.stop);
                      if (key == "top_logprobs") return Read(field, field_path, out.top_logprobs);
                      if (key == "ignore_eos") return Read(field, field_path, out.ignore_eos);
                      return UnknownField();
                    });
}

}  // namespace

absl::StatusOr<GenerateRequest> ParseGenerateRequest(std::string_view json) {
  const Json document = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("the request is not valid JSON");
  GenerateRequest request;
  KVBLEND_RETURN_IF_ERROR(ReadObject(
      document, "request", [&](const std::string& key, const Json& field, const std::string& field_path) {
        if (key == "namespace") return Read(field, field_path, request.caller.tenant_namespace);
        if (key == "prompt") return ReadPrompt(field, field_path, request.prompt);
        if (key == "blend") return ReadBlend(field, field_path, request.blend);
        if (key == "sampling") return ReadSampling(field, field_path, request.sampling);
        return UnknownField();
      }));
  return request;
}

}  // namespace kvblend::server::cli
