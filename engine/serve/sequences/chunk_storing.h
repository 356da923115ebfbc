// A chunk on its way into the store: looked up, computed where it is missing, stored; step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/blend/chunk_precompute.h"
#include "engine/kv/sequence_pages.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_prefill.h"
#include "engine/store/chunk_store.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend {

/// Where a stored chunk came from.
struct StoredChunk {
  ChunkKey key;
  std::optional<store::ChunkHandle> entry = std::nullopt;  // keeps it in the store while this lives
  int32_t num_tokens = 0;
  bool already_present = false;
  int32_t computed_tokens = 0;  // its own, and its anchor's where that was missing
  double compute_seconds = 0;   // without the anchor's
};

/// What shows in lists of chunks that an entry is an anchor.
inline constexpr char kAnchorLabel[] = "anchor";

struct StoreEntryOptions {
  std::string label;
  bool pinned = false;
  bool on_purpose = false;  // as store::InsertOptions means it
};

/// For the engine thread only. Of several that store the same chunk at the same time one computes it, and the
/// others work on that when they have their turn.
class ChunkStoring {
 public:
  /// Those that compute, by what they compute.
  using InProgress = absl::flat_hash_map<ChunkKey, ChunkStoring*>;

  /// What it needs of the engine, which must outlive it.
  struct Engine {
    ModelRuntime& runtime;
    store::ChunkStore& chunk_store;
    ScratchPool& scratch;
    InProgress& in_progress;
  };

  /// The tokens must outlive it.
  ChunkStoring(const Engine& engine, std::string_view tenant_namespace, absl::Span<const int32_t> anchor_ids,
               absl::Span<const int32_t> token_ids, const StoreEntryOptions& options);
  ~ChunkStoring();
  ChunkStoring(const ChunkStoring&) = delete;
  ChunkStoring& operator=(const ChunkStoring&) = delete;

  /// Does a unit of work: a layer. Returns whether the chunk is stored.
  /// Errors: kResourceExhausted, of pages or the store; kFailedPrecondition: the store is too small;
  /// keep_going's; the backend's.
  absl::StatusOr<bool> Step(blend::KeepGoing keep_going);

  /// Whether it waits for a stored chunk that is on its way.
  bool is_waiting() const;

  /// So far, the anchor's included.
  double compute_seconds() const {
    return anchor_seconds_ + compute_seconds_ + (anchor_ == nullptr ? 0 : anchor_->compute_seconds());
  }

  /// REQUIRES: Step has returned true.
  StoredChunk TakeStored() { return std::move(stored_); }

 private:
  enum class Stage : uint8_t { kLookUp, kArrive, kJoin, kAnchor, kCompute, kDone };

  absl::StatusOr<bool> RunStage(blend::KeepGoing keep_going);
  absl::Status LookUp();
  /// Does a unit of the work of whoever computes the chunk.
  void Join(blend::KeepGoing keep_going);
  absl::StatusOr<bool> AwaitLayer(blend::KeepGoing keep_going);
  absl::Status StoreAnchor(blend::KeepGoing keep_going);
  absl::Status BeginComputing();
  absl::StatusOr<bool> Compute(blend::KeepGoing keep_going);
  absl::Status Commit();

  const Engine engine_;
  const std::string tenant_namespace_;
  const absl::Span<const int32_t> anchor_ids_, token_ids_;
  const StoreEntryOptions options_;
  const store::ChunkAddress address_;
  Stage stage_ = Stage::kLookUp;
  StoredChunk stored_;
  int32_t layer_ = 0;                              // kArrive: the next to wait for
  std::optional<store::Reservation> reservation_;  // the duty to compute it, unless somebody else has it
  absl::Status failed_;                            // what went wrong while somebody else worked on it
  std::unique_ptr<ChunkStoring> anchor_;           // kAnchor
  std::optional<store::ChunkHandle> anchor_entry_;
  double anchor_seconds_ = 0;   // once the anchor is done
  double compute_seconds_ = 0;  // of the chunk
  ScratchPool::Lease scratch_;  // kCompute, as what follows
  std::unique_ptr<kv::SequencePages> pages_;
  std::unique_ptr<blend::ChunkPrecompute> precompute_;
};

}  // namespace kvblend
