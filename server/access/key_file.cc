#include "server/access/key_file.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/api/names.h"
#include "server/convert/parse_message.h"
#include "server/json/json.h"

namespace kvblend::server {
namespace {

constexpr size_t kMaxNameBytes = 128;  // as namespaces
constexpr size_t kMaxKeys = 10'000;
constexpr char kKeyPrefix[] = "kvb_";  // for people and for scanners that look for keys in what is published

absl::Status CheckName(const std::string& field, const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", name.size(), " bytes; allowed: 1 to ", kMaxNameBytes));
  }
  const std::string problem = Utf8Problem(field, name);  // JSON would hold another name
  return problem.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problem);
}

/// Lower is sooner.
int PlaceOf(Priority priority) {
  return priority == Priority::kHigh ? 0 : priority == Priority::kNormal ? 1 : 2;
}

std::optional<Priority> ReadPriority(FieldReader& fields, const std::string& name) {
  const std::optional<std::string> text = fields.String(name);
  if (!text.has_value()) return std::nullopt;
  const absl::StatusOr<Priority> priority = ParseName<Priority>(name, *text);
  fields.Note(priority.status());
  return priority.ok() ? std::optional(*priority) : std::nullopt;
}

/// An array of names of namespaces.
std::vector<std::string> ReadNamespaces(FieldReader& fields, const std::string& name) {
  std::vector<std::string> names;
  const Json* json = fields.Value(name);
  if (json == nullptr) return names;
  bool good = json->is_array() && json->size() <= kMaxReadNamespaces;
  for (size_t i = 0; good && i < json->size(); ++i) {
    good = (*json)[i].is_string();
    if (good) names.push_back((*json)[i].get<std::string>());
  }
  if (!good) {
    fields.Note(absl::InvalidArgumentError(
        absl::StrCat(name, " is no list of namespaces; allowed: up to ", kMaxReadNamespaces, " strings")));
  }
  for (const std::string& one : names) fields.Note(CheckName(name, one));
  return names;
}

absl::StatusOr<KeyHash> ParseHash(const std::string& text) {
  KeyHash hash;
  const bool is_hex = std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (!is_hex || text.size() != 2 * hash.size()) {
    return absl::InvalidArgumentError("key_sha256 is no hash; allowed: 64 hexadecimal digits");
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

absl::Status CheckPriorities(const Tenant& tenant) {
  if (!IsAbove(tenant.priority, tenant.max_priority)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("max_priority is '", std::string(Name(tenant.max_priority)),
                                                 "'; allowed: not below priority, '",
                                                 std::string(Name(tenant.priority)), "'"));
}

absl::StatusOr<KeyEntry> ParseLine(absl::string_view line) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject({line.data(), line.size()}));
  FieldReader fields(json, "");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  KeyEntry entry;
  Tenant& tenant = entry.tenant;
  tenant.name = fields.String("tenant").value_or("");
  tenant.chunk_namespace = fields.String("namespace").value_or(tenant.name);
  tenant.admin = fields.Bool("admin").value_or(false);
  tenant.requests_per_minute = fields.Integer("requests_per_minute", 0, kMax).value_or(0);
  tenant.computed_tokens_per_minute = fields.Integer("computed_tokens_per_minute", 0, kMax).value_or(0);
  tenant.concurrent_requests = fields.Integer("concurrent_requests", 0, kMax).value_or(0);
  tenant.store_bytes = fields.Integer("store_bytes", 0, kMax).value_or(0);
  tenant.priority = ReadPriority(fields, "priority").value_or(Priority::kNormal);
  tenant.max_priority = ReadPriority(fields, "max_priority").value_or(tenant.priority);
  tenant.read = ReadNamespaces(fields, "read");
  const std::string hash = fields.String("key_sha256").value_or("");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  KVBLEND_RETURN_IF_ERROR(CheckName("tenant", tenant.name));
  KVBLEND_RETURN_IF_ERROR(CheckName("namespace", tenant.chunk_namespace));
  KVBLEND_RETURN_IF_ERROR(CheckPriorities(tenant));
  KVBLEND_ASSIGN_OR_RETURN(entry.hash, ParseHash(hash));
  return entry;
}

}  // namespace

bool IsAbove(Priority a, Priority b) { return PlaceOf(a) < PlaceOf(b); }

KeyHash HashKey(std::string_view key) {
  KeyHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(std::string_view text) {
  std::vector<KeyEntry> entries;
  std::map<KeyHash, int> line_of_key;
  std::map<std::string, std::pair<Tenant, int>> tenants;
  std::map<std::string, std::string> tenant_of_namespace;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    auto entry = ParseLine(line);
    if (!entry.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", entry.status().message()));
    }
    const Tenant& tenant = entry->tenant;
    const auto [key, is_new_key] = line_of_key.try_emplace(entry->hash, number);
    if (!is_new_key) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": the key of line ", key->second, " again"));
    }
    const auto [known, is_new_tenant] = tenants.try_emplace(tenant.name, tenant, number);
    if (!is_new_tenant && !(known->second.first == tenant)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": tenant '", tenant.name,
                                                     "' has other settings than in line ",
                                                     known->second.second));
    }
    const auto [owner, is_new_namespace] =
        tenant_of_namespace.try_emplace(tenant.chunk_namespace, tenant.name);
    if (!is_new_namespace && owner->second != tenant.name) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": namespace '", tenant.chunk_namespace,
                                                     "' is that of tenant '", owner->second, "'"));
    }
    entries.push_back(*std::move(entry));
    if (entries.size() > kMaxKeys) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": more than ", kMaxKeys, " keys"));
    }
  }
  if (entries.empty()) return absl::InvalidArgumentError("there is no key; see kvblend key new");
  return entries;
}

absl::StatusOr<NewKey> MakeKey(const Tenant& tenant) {
  KVBLEND_RETURN_IF_ERROR(CheckName("tenant", tenant.name));
  KVBLEND_RETURN_IF_ERROR(CheckName("namespace", tenant.chunk_namespace));
  KVBLEND_RETURN_IF_ERROR(CheckPriorities(tenant));
  for (const std::string& name : tenant.read) KVBLEND_RETURN_IF_ERROR(CheckName("read", name));
  if (tenant.read.size() > kMaxReadNamespaces) {
    return absl::InvalidArgumentError(
        absl::StrCat("read has ", tenant.read.size(), " entries; allowed: at most ", kMaxReadNamespaces));
  }
  std::string random(32, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), static_cast<int>(random.size())) != 1) {
    return absl::InternalError("the system gave no random numbers");
  }
  NewKey made;
  made.key = absl::StrCat(kKeyPrefix, absl::WebSafeBase64Escape(random));
  const KeyHash hash = HashKey(made.key);
  Json line = {
      {"tenant", tenant.name},
      {"namespace", tenant.chunk_namespace},
      {"key_sha256", absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), hash.size()})}};
  if (tenant.admin) line["admin"] = true;
  if (tenant.requests_per_minute > 0) line["requests_per_minute"] = tenant.requests_per_minute;
  if (tenant.computed_tokens_per_minute > 0) {
    line["computed_tokens_per_minute"] = tenant.computed_tokens_per_minute;
  }
  if (tenant.concurrent_requests > 0) line["concurrent_requests"] = tenant.concurrent_requests;
  if (tenant.store_bytes > 0) line["store_bytes"] = tenant.store_bytes;
  if (tenant.priority != Priority::kNormal) line["priority"] = std::string(Name(tenant.priority));
  if (tenant.max_priority != tenant.priority) line["max_priority"] = std::string(Name(tenant.max_priority));
  if (!tenant.read.empty()) line["read"] = tenant.read;
  made.line = ToText(line);
  return made;
}

}  // namespace kvblend::server
