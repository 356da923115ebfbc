#include "server/cli/load/stored_chunks.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace kvblend::server::cli {
namespace {

constexpr int kChunksPerPut = 32;
constexpr int kChunksPerPage = 1000;

/// Shared, since it may outlive who waits for it.
struct EndOfPut : EventSink<v1::PutChunkProgress> {
  void OnEvent(const v1::PutChunkProgress&) override {}
  void OnDone(const absl::Status&) override {
    absl::MutexLock lock(&mutex);
    done = true;
    changed.SignalAll();
  }
  absl::Mutex mutex;
  absl::CondVar changed;
  bool done ABSL_GUARDED_BY(mutex) = false;
};

/// Tells the chunks of one run from those of another.
std::string NewLabel() {
  absl::BitGen random;
  return absl::StrFormat("kvblend bench serve %08x", absl::Uniform<uint32_t>(random));
}

/// Requests for all chunks behind what they stand behind; a label and a namespace are missing.
std::vector<v1::PutChunksRequest> Puts(const std::vector<Conversation>& conversations,
                                       const std::vector<v1::Anchoring>& anchorings) {
  std::vector<v1::PutChunksRequest> puts;
  for (const v1::Anchoring anchoring : anchorings) {
    for (const ChunkGroup& group : GroupChunks(conversations, anchoring == v1::ANCHORING_ISOLATED)) {
      for (size_t i = 0; i < group.chunks.size(); ++i) {
        if (i % kChunksPerPut == 0) {
          v1::PutChunksRequest& put = puts.emplace_back();
          put.set_system_text(group.system_text);
          put.set_lead_in(group.lead_in);
          put.set_anchoring(anchoring);
        }
        puts.back().add_chunks(group.chunks[i]);
      }
    }
  }
  return puts;
}

}  // namespace

StoredChunks::StoredChunks(Client& client, schedule::Clock& clock, std::string tenant_namespace, bool keep)
    : client_(client),
      clock_(clock),
      namespace_(std::move(tenant_namespace)),
      keep_(keep),
      label_(NewLabel()) {}

absl::Status StoredChunks::Put(const std::vector<Conversation>& conversations,
                               const std::vector<BenchVariant>& modes, const Progress& progress) {
  std::vector<v1::Anchoring> anchorings;
  for (const BenchVariant& mode : modes) {
    const bool known = std::find(anchorings.begin(), anchorings.end(), mode.anchoring) != anchorings.end();
    if (mode.mode != BenchMode::kFull && !known) anchorings.push_back(mode.anchoring);
  }
  std::vector<v1::PutChunksRequest> puts = Puts(conversations, anchorings);
  int64_t done = 0, total = 0;
  for (const v1::PutChunksRequest& put : puts) total += put.chunks_size();
  for (v1::PutChunksRequest& put : puts) {
    put.set_namespace_(namespace_);
    put.set_label(label_);
    const absl::Status status =
        client_.Put(put, absl::InfiniteFuture(), [&](const v1::PutChunkProgress& chunk) {
          if (!chunk.already_present()) new_keys_.push_back(chunk.key());
          if (progress) progress(++done, total, "storing chunks");
        });
    if (status.ok()) continue;
    if (keep_ || FindUnreported(std::move(put))) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; the server has not told what it stored: chunks of label '", label_,
                     "' may be left in namespace '", namespace_, "'"));
  }
  return absl::OkStatus();
}

bool StoredChunks::PutEnds(v1::PutChunksRequest request) {
  const auto sink = std::make_shared<EndOfPut>();
  const absl::Time until = clock_.Now() + kPatience;
  const auto started =
      client_.calls().Put(std::move(request), {.client = "", .deadline = absl::Now() + kPatience}, sink);
  if (!started.ok()) return true;  // not taken: nothing to wait for
  {
    absl::MutexLock lock(&sink->mutex);
    while (!sink->done && clock_.Now() < until) clock_.Wait(sink->changed, sink->mutex, until);
    if (sink->done) return true;
  }
  (*started)->Cancel();
  return false;
}

bool StoredChunks::FindUnreported(v1::PutChunksRequest interrupted) {
  // Puts of one client follow each other, so that the interrupted one is over behind this one. Its first
  // chunk is there, or is what was being computed.
  interrupted.mutable_chunks()->DeleteSubrange(1, interrupted.chunks_size() - 1);
  const bool is_over = PutEnds(std::move(interrupted));
  v1::ListChunksRequest request;
  request.set_namespace_(namespace_);
  request.set_page_size(kChunksPerPage);
  while (true) {
    const absl::StatusOr<v1::ListChunksResponse> page = client_.calls().List(request);
    if (!page.ok()) return false;
    for (const v1::ChunkInfo& chunk : page->chunks()) {
      if (chunk.label() == label_) new_keys_.push_back(chunk.key());
    }
    if (page->next_page_token().empty()) break;
    request.set_page_token(page->next_page_token());
  }
  std::sort(new_keys_.begin(), new_keys_.end());
  new_keys_.erase(std::unique(new_keys_.begin(), new_keys_.end()), new_keys_.end());
  return is_over;
}

void StoredChunks::Remove() {
  if (keep_ || new_keys_.empty()) return;
  v1::DeleteChunksRequest request;
  request.set_namespace_(namespace_);
  request.mutable_keys()->Assign(new_keys_.begin(), new_keys_.end());
  client_.calls().Delete(request).IgnoreError();
}

}  // namespace kvblend::server::cli
