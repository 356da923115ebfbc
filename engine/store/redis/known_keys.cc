#include "engine/store/redis/known_keys.h"

namespace kvblend::store::redis {

void KnownKeys::Insert(const ChunkKey& key, absl::Time until) {
  if (until_.insert_or_assign(key, until).second) order_.push_back(key);
  // A key that was erased and came again stands there twice: then the later one goes early, which costs
  // nothing but a question.
  while (order_.size() > max_keys_) {
    until_.erase(order_.front());
    order_.pop_front();
  }
}

void PendingErasures::Insert(const ChunkKey& key, std::optional<std::string> tenant_namespace) {
  if (keys_.insert_or_assign(key, std::move(tenant_namespace)).second) order_.push_back(key);
  while (order_.size() > max_keys_) {
    keys_.erase(order_.front());
    order_.pop_front();
  }
}

bool PendingErasures::IsOf(const ChunkKey& key, const std::string& tenant_namespace) const {
  const auto found = keys_.find(key);
  return found != keys_.end() && (!found->second.has_value() || *found->second == tenant_namespace);
}

}  // namespace kvblend::store::redis
