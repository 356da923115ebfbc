// Random operations on the store against a model that is nothing but lists searched from end to end.
#include "tests/unit/store/chunk_store_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

class ModelRun {
 public:
  ModelRun(uint64_t seed, double namespace_share)
      : random_(seed), model_(kBudget, kPinLimit, static_cast<int64_t>(namespace_share * kBudget)) {
    store_ = *ChunkStore::Create({.byte_budget = kBudget,
                                  .pinned_byte_limit = kPinLimit,
                                  .namespace_quotas = {.default_share = namespace_share},
                                  .now = [this] { return now_; }});
    for (const char* tenant : {"", "a"}) {
      for (int32_t token = 0; token < 12; ++token) {
        for (const std::vector<int32_t>& anchor : {std::vector<int32_t>{}, {1}, {2}}) {
          addresses_.push_back(SmallAddress(token, (token * 7) % 40, anchor, tenant));
        }
      }
    }
  }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      now_ += absl::Seconds(1);
      Step();
      Check(step % 64 == 0);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(model_.evictions(), 0) << "the budget is too large to test anything";
    EXPECT_GT(model_.rejections(), 0) << "the budget is too large to test anything";
    while (!held_.empty()) Release(held_.size() - 1);
    Check(true);
  }

 private:
  static constexpr int64_t kBudget = 340000;
  static constexpr int64_t kPinLimit = 136000;
  struct Held {
    ChunkHandle handle;
    ModelEntry* entry;
  };

  uint64_t Pick(uint64_t n) { return random_() % n; }

  void Step() {
    const ChunkAddress& address = addresses_[Pick(addresses_.size())];
    const NamespaceFilter own = address.tenant_namespace;
    ModelEntry* entry = model_.Find(address.key);
    switch (Pick(16)) {
      case 0:
      case 1:
      case 2:
        model_.Ask(address.key);
        return ExpectHit(LookupOne(*store_, address.key), entry);
      case 3: {
        ModelEntry* any = model_.FindAnyAnchor(address.content_key);
        if (any != nullptr) model_.Ask(any->address.key);
        return ExpectHit(LookupOneAnyAnchor(*store_, address.content_key), any);
      }
      case 4:
      case 5:
      case 6:
        return Insert(address);
      case 7:
      case 8:
        return ReserveAndCommit(address, entry);
      case 9:
        ASSERT_EQ(*store_->Erase(Pick(2) == 0 ? own : kAllNamespaces, address.key), entry != nullptr);
        if (entry != nullptr) model_.Erase(address.key);
        return;
      case 10:
        if (Pick(32) == 0) Clear(address.tenant_namespace);
        return;
      case 11: {
        const absl::Status pinned = store_->Pin(own, address.key);
        if (entry == nullptr) {
          ASSERT_EQ(pinned.code(), absl::StatusCode::kNotFound);
        } else {
          ASSERT_EQ(pinned.code(),
                    model_.Pin(entry) ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
        }
        return;
      }
      case 12:
        ASSERT_EQ(store_->Unpin(own, address.key).ok(), entry != nullptr);
        if (entry != nullptr) model_.Unpin(entry);
        return;
      default:
        if (!held_.empty()) Release(Pick(held_.size()));
    }
  }

  void ExpectHit(std::optional<ChunkHandle> handle, ModelEntry* entry) {
    ASSERT_EQ(handle.has_value(), entry != nullptr);
    if (entry == nullptr) return;
    ASSERT_EQ(handle->key(), entry->address.key);
    model_.Hit(entry, now_);
    Hold(*std::move(handle), entry);
  }

  /// Keeps a handle that the model counts, or lets it go at once.
  void Hold(ChunkHandle handle, ModelEntry* entry) {
    held_.push_back({std::move(handle), entry});
    if (Pick(2) == 0 || held_.size() > 12) Release(held_.size() - 1);
  }

  void Release(size_t index) {
    ExpectFilled(held_[index].handle);
    std::swap(held_[index], held_.back());
    ModelEntry* entry = held_.back().entry;
    held_.pop_back();
    model_.Release(entry);
  }

  InsertOptions RandomOptions() {
    return {.compute_cost_seconds = static_cast<double>(Pick(4)), .pinned = Pick(8) == 0};
  }

  void ExpectInserted(absl::StatusOr<ChunkHandle> handle, const ChunkAddress& address,
                      const InsertOptions& options) {
    const bool expected = model_.Insert(address, options.compute_cost_seconds, options.pinned, now_);
    ASSERT_EQ(handle.status().code(), expected ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
        << handle.status();
    if (expected) Hold(*std::move(handle), model_.Find(address.key));
  }

  void Insert(const ChunkAddress& address) {
    const InsertOptions options = RandomOptions();
    ExpectInserted(store_->Insert(address, FilledKv(address), options), address, options);
  }

  void ReserveAndCommit(const ChunkAddress& address, ModelEntry* entry) {
    absl::StatusOr<ReserveResult> result = store_->LookupOrReserve(address);
    ASSERT_TRUE(result.ok()) << result.status();
    if (entry != nullptr) {
      ASSERT_TRUE(std::holds_alternative<ChunkHandle>(*result));
      return ExpectHit(std::get<ChunkHandle>(*std::move(result)), entry);
    }
    ASSERT_TRUE(std::holds_alternative<Reservation>(*result));
    auto& reservation = std::get<Reservation>(*result);
    if (Pick(4) == 0) return;  // gives up
    const InsertOptions options = RandomOptions();
    ExpectInserted(reservation.Commit(FilledKv(address), options), address, options);
  }

  void Clear(const std::string& tenant_namespace) {
    std::vector<ChunkKey> doomed;
    for (const auto& [key, entry] : model_.resident()) {
      if (entry->address.tenant_namespace == tenant_namespace) doomed.push_back(key);
    }
    ASSERT_EQ(store_->Clear(tenant_namespace).erased, static_cast<int64_t>(doomed.size()));
    for (const ChunkKey& key : doomed) model_.Erase(key);
  }

  void Check(bool thoroughly) {
    const StoreStats stats = store_->Stats();
    ASSERT_EQ(stats.entries, static_cast<int64_t>(model_.resident().size()));
    ASSERT_EQ(stats.bytes, model_.Bytes());
    ASSERT_LE(stats.bytes, kBudget);
    ASSERT_EQ(stats.idle_bytes, model_.IdleBytes());
    ASSERT_EQ(stats.pinned_bytes, model_.PinnedBytes());
    ASSERT_LE(stats.pinned_bytes, kPinLimit);
    ASSERT_EQ(stats.erased_held_bytes, model_.ErasedHeldBytes());
    ASSERT_EQ(stats.evictions, model_.evictions());
    ASSERT_EQ(stats.rejected_insertions, model_.rejections());
    ASSERT_EQ(stats.lookups, stats.hits + stats.misses);
    ASSERT_EQ(stats.reserve_lookups, stats.reserve_hits + stats.reservations_made + stats.waits);
    ASSERT_EQ(stats.insertions, stats.entries + stats.evictions + stats.erased);
    ASSERT_GE(stats.inserted_bytes - stats.evicted_bytes, model_.ResidentBytes());
    ASSERT_EQ(stats.reservations, 0);
    if (!thoroughly) return;
    for (const Held& held : held_) ExpectFilled(held.handle);
    const absl::StatusOr<ChunkPage> page = store_->List(kAllNamespaces, "", ChunkStore::kMaxPageSize);
    ASSERT_TRUE(page.ok());
    ASSERT_EQ(page->chunks.size(), model_.resident().size());
    for (const ChunkInfo& info : page->chunks) {
      const ModelEntry* entry = model_.Find(info.key);
      ASSERT_NE(entry, nullptr);
      ASSERT_EQ(info.bytes, entry->bytes);
      ASSERT_EQ(info.hits, entry->hits);
      ASSERT_EQ(info.pinned, entry->pinned);
      ASSERT_EQ(info.compute_cost_seconds, entry->cost);
      ASSERT_EQ(info.created, entry->created);
      ASSERT_EQ(info.last_used, entry->last_used);
      ASSERT_EQ(info.tenant_namespace, entry->address.tenant_namespace);
    }
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::UnixEpoch();
  Model model_;
  std::unique_ptr<ChunkStore> store_;
  std::vector<ChunkAddress> addresses_;
  std::vector<Held> held_;  // after store_, so that it goes first
};

TEST(ChunkStoreModelTest, RandomOperationsAgainstLists) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{std::random_device()()}}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (const double namespace_share : {1.0, 0.6}) {
      ModelRun(seed, namespace_share).Run(4000);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvblend::store
