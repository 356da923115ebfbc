#include "server/access/keyed_access.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "server/access/tenant_calls.h"
#include "server/files/open_file.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;
constexpr char kScheme[] = "bearer ";

}  // namespace

absl::StatusOr<std::unique_ptr<KeyedAccess>> KeyedAccess::Open(const std::string& path, Calls* calls,
                                                               StoreLimits store_limits) {
  std::unique_ptr<KeyedAccess> access(new KeyedAccess(path, calls));
  std::vector<FileState> seen = LookAt({path});
  KVBLEND_ASSIGN_OR_RETURN(const StoreLimitsThread::Bytes bytes, access->Load());
  if (store_limits != nullptr) {
    store_limits(bytes);
    access->store_limits_ = std::make_unique<StoreLimitsThread>(std::move(store_limits));
  }
  access->watcher_ = std::make_unique<FileWatcher>(std::vector<std::string>{path}, std::move(seen),
                                                   [raw = access.get()] { raw->LoadAgain(); });
  return access;
}

absl::StatusOr<StoreLimitsThread::Bytes> KeyedAccess::Load() {
  const absl::StatusOr<std::string> text = ReadNamed(path_, Allowed::kFile, kMaxFileBytes);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--api-keys: ", text.status().message()));
  auto keys = ParseKeyFile(*text);
  if (!keys.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--api-keys ", path_, ": ", keys.status().message()));
  }
  StoreLimitsThread::Bytes store_bytes;
  for (const KeyEntry& entry : *keys) {
    if (entry.tenant.store_bytes > 0) store_bytes[entry.tenant.chunk_namespace] = entry.tenant.store_bytes;
  }
  absl::MutexLock lock(&mutex_);
  keys_.clear();
  for (const KeyEntry& entry : *keys) {
    keys_[entry.hash] = entry.tenant;
    std::shared_ptr<Quota>& quota = quotas_[entry.tenant.name];
    if (quota == nullptr) {
      quota = std::make_shared<Quota>(entry.tenant);
    } else {
      quota->SetLimits(entry.tenant);
    }
  }
  return store_bytes;
}

void KeyedAccess::LoadAgain() {
  absl::StatusOr<StoreLimitsThread::Bytes> bytes = Load();
  if (!bytes.ok()) {
    spdlog::error("the keys stay as they were: {}", std::string(bytes.status().message()));
    return;
  }
  spdlog::info("read the keys of {} again", path_);
  if (store_limits_ != nullptr) store_limits_->Set(*std::move(bytes));
}

absl::StatusOr<KeyedAccess::Owner> KeyedAccess::OwnerOf(std::string_view authorization) const {
  const absl::string_view header(authorization.data(), authorization.size());
  if (!absl::StartsWithIgnoreCase(header, kScheme)) {
    return absl::UnauthenticatedError("the call has no API key; allowed: 'authorization: Bearer KEY'");
  }
  const absl::string_view key = absl::StripAsciiWhitespace(header.substr(sizeof(kScheme) - 1));
  const KeyHash hash = HashKey({key.data(), key.size()});
  absl::ReaderMutexLock lock(&mutex_);
  // Time may tell how much of a hash is right. That is of no use without a key that has this hash.
  const auto found = keys_.find(hash);
  if (found == keys_.end()) return absl::UnauthenticatedError("the API key is not known here");
  return Owner{.tenant = found->second, .quota = quotas_.at(found->second.name)};
}

absl::StatusOr<std::shared_ptr<Calls>> KeyedAccess::Admit(std::string_view authorization) {
  KVBLEND_ASSIGN_OR_RETURN(Owner owner, OwnerOf(authorization));
  KVBLEND_RETURN_IF_ERROR(owner.quota->TakeRequest(SteadyNow()));
  return MakeTenantCalls(&calls_, owner.tenant, std::move(owner.quota));
}

absl::StatusOr<std::string> KeyedAccess::TenantOf(std::string_view authorization) const {
  KVBLEND_ASSIGN_OR_RETURN(Owner owner, OwnerOf(authorization));
  return std::move(owner.tenant.name);
}

std::map<std::string, TenantUse> KeyedAccess::Use() const {
  std::map<std::string, std::shared_ptr<Quota>> quotas;
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [hash, tenant] : keys_) quotas.emplace(tenant.name, quotas_.at(tenant.name));
  }
  std::map<std::string, TenantUse> use;
  for (const auto& [name, quota] : quotas) use[name] = quota->use();
  return use;
}

}  // namespace kvblend::server
