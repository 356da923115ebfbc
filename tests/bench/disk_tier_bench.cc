// What the disk tier costs: memory per entry and Stat with a million of them, opening a folder, and reading
// layers through it (checksums compared) against bare O_DIRECT reads of the same bytes in the same run.
//
// FOLDER is made, filled and removed: it must not be there.
#include <liburing.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/format/host_memory.h"
#include "tests/bench/arguments.h"
#include "tests/bench/samples.h"
#include "tests/bench/synthetic_file_system.h"

namespace kvblend::store {
namespace {

struct Flags {
  std::string folder;
  std::string what = "all";
  int64_t entries = 100000;
  int32_t chunks = 24;
  int32_t tokens = 512;
  int32_t depth = 32;
  int rounds = 5;
};

/// What the program has allocated, as the allocator rounds it.
int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

void Require(const absl::Status& status) {
  if (!status.ok()) std::exit(ExitCode(status));
}

std::unique_ptr<DiskTier> Open(DiskTier::Options options) {
  options.quota_bytes = INT64_MAX / 2;
  auto tier = DiskTier::Open(std::move(options));
  Require(tier.status());
  return *std::move(tier);
}

// --- a million entries

void MeasureIndex(size_t label_bytes) {
  constexpr int64_t kEntries = 1'000'000;
  SyntheticFileSystem fs(kEntries, label_bytes);
  const int64_t before = HeapBytes();
  const double start = Now();
  const auto tier = Open({.path = "/synthetic",
                          .min_free_bytes = 0,
                          .reads = {.num_threads = 1, .allow_io_uring = false},
                          .fs = &fs});
  const double seconds = Now() - start;
  std::printf("index: %lld entries with labels of %zu bytes: %.0f bytes each, rebuilt in %.1f s\n",
              static_cast<long long>(tier->Stats().entries), label_bytes,
              static_cast<double>(HeapBytes() - before) / kEntries, seconds);
  std::mt19937_64 random(1);
  constexpr int kLookups = 200000;
  std::vector<double> micros;
  micros.reserve(kLookups);
  int64_t found = 0;
  for (int i = 0; i < kLookups; ++i) {
    const ChunkKey key =
        i % 2 == 0 ? fs.keys()[random() % kEntries] : ChunkKey(Sha256("absent " + std::to_string(i)));
    const double begin = Now();
    found += tier->Stat(kAllNamespaces, key).has_value();
    micros.push_back(1e6 * (Now() - begin));
  }
  std::sort(micros.begin(), micros.end());
  std::printf("stat:  median %.2f us, 99.9%% %.2f us, largest %.1f us (%lld of %d found)\n",
              micros[kLookups / 2], micros[kLookups - kLookups / 1000], micros.back(),
              static_cast<long long>(found), kLookups);
}

// --- opening a folder

void MeasureOpen(const Flags& flags) {
  SyntheticFileSystem source(flags.entries, 16);
  source.WriteTo(flags.folder);
  for (int round = 0; round < 2; ++round) {  // the first one warms the page cache
    const double start = Now();
    const auto tier = Open({.path = flags.folder, .min_free_bytes = 0});
    std::printf("open:  %lld entries in %.2f s\n", static_cast<long long>(tier->Stats().entries),
                Now() - start);
  }
  std::filesystem::remove_all(flags.folder);
}

// --- reading

ChunkAddress ChunkOf(const Flags& flags, int32_t number) {
  std::vector<int32_t> token_ids(static_cast<size_t>(flags.tokens), number);
  return AddressOf({.format = {.encoding = kernels::KvEncoding::kInt8,
                               .num_layers = 24,
                               .num_kv_heads = 8,
                               .head_dim = 128},
                    .token_ids = token_ids});
}

/// Buffers for reads that are under way.
class Buffers {
 public:
  Buffers(int64_t count, int64_t bytes) : bytes_(bytes), size_(count * bytes), data_(Heap().Allocate(size_)) {
    for (int64_t i = 0; i < count; ++i) free_.push_back(static_cast<std::byte*>(data_) + i * bytes);
  }
  ~Buffers() { Heap().Free(data_, size_); }
  absl::Span<std::byte> Take() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::vector<std::byte*>* free) { return !free->empty(); }, &free_));
    std::byte* data = free_.back();
    free_.pop_back();
    return {data, static_cast<size_t>(bytes_)};
  }
  void Give(absl::Span<std::byte> buffer) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(buffer.data());
  }
  void WaitForAll(size_t count) {
    for (std::vector<absl::Span<std::byte>> taken; taken.size() < count;) taken.push_back(Take());
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < count; ++i)
      free_.push_back(static_cast<std::byte*>(data_) + static_cast<int64_t>(i) * bytes_);
  }

 private:
  const int64_t bytes_;
  const int64_t size_;
  void* const data_;
  absl::Mutex mutex_;
  std::vector<std::byte*> free_;
};

struct Extent {
  int fd;
  int64_t offset;
};

/// One thread, one ring, `depth` reads of `bytes` at the device, nothing done with what is read.
double BareReadSeconds(const std::vector<Extent>& extents, int64_t bytes, int32_t depth, Buffers& buffers) {
  io_uring ring;
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return -1;
  const double start = Now();
  size_t next = 0;
  size_t in_flight = 0;
  // As many buffers as the tier goes through: fewer would stay in the cache, which shows in virtual machines.
  std::vector<absl::Span<std::byte>> slots;
  for (int32_t i = 0; i < 2 * depth; ++i) slots.push_back(buffers.Take());
  std::deque<size_t> idle;
  for (size_t i = 0; i < slots.size(); ++i) idle.push_back(i);
  while (next < extents.size() || in_flight > 0) {
    while (next < extents.size() && in_flight < static_cast<size_t>(depth)) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      const size_t slot = idle.front();
      idle.pop_front();
      io_uring_prep_read(sqe, extents[next].fd, slots[slot].data(), static_cast<unsigned>(bytes),
                         static_cast<uint64_t>(extents[next].offset));
      io_uring_sqe_set_data64(sqe, slot);
      ++next;
      ++in_flight;
    }
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      if (cqe->res != bytes) Require(absl::InternalError("a bare read was short"));
      idle.push_back(io_uring_cqe_get_data64(cqe));
      --in_flight;
      io_uring_cqe_seen(&ring, cqe);
    }
  }
  const double seconds = Now() - start;
  for (const auto& slot : slots) buffers.Give(slot);
  io_uring_queue_exit(&ring);
  return seconds;
}

/// Layer 0 of all chunks, then layer 1: as a pipeline does.
double TierReadSeconds(DiskTier& tier, const std::vector<ChunkAddress>& chunks, Buffers& buffers,
                       size_t num_buffers) {
  const double start = Now();
  std::vector<std::shared_ptr<LowerTierEntry>> entries;
  for (const ChunkAddress& chunk : chunks) {
    auto entry = std::move(tier.OpenEntries({chunk.key}, absl::InfiniteFuture()).front());
    Require(entry.status());
    entries.push_back(*std::move(entry));
  }
  for (int32_t layer = 0; layer < chunks[0].format.num_layers; ++layer) {
    for (const auto& entry : entries) {
      const absl::Span<std::byte> out = buffers.Take();
      Require(entry
                  ->ReadLayer(layer, out, {{}, layer},
                              [&buffers, out](const absl::Status& status) {
                                Require(status);
                                buffers.Give(out);
                              })
                  .status());
    }
  }
  buffers.WaitForAll(num_buffers);
  return Now() - start;
}

void MeasureRead(const Flags& flags) {
  std::vector<ChunkAddress> chunks;
  for (int32_t i = 0; i < flags.chunks; ++i) chunks.push_back(ChunkOf(flags, i));
  auto kv = *ChunkKv::Allocate(chunks[0].format, flags.tokens);
  std::mt19937_64 random(1);
  for (int32_t layer = 0; layer < kv->format().num_layers; ++layer) {
    for (std::byte& byte : kv->MutableLayerBytes(layer)) byte = static_cast<std::byte>(random() >> 32);
  }
  const int64_t layer_bytes = kv->layer_bytes();
  const auto num_buffers = static_cast<size_t>(2 * flags.depth);
  Buffers buffers(static_cast<int64_t>(num_buffers), layer_bytes);
  auto tier = Open({.path = flags.folder, .reads = {.depth = flags.depth}});
  double put_seconds = -Now();
  for (const ChunkAddress& chunk : chunks) Require(tier->Put(chunk, *kv, {}));
  put_seconds += Now();
  const double total = static_cast<double>(layer_bytes) * kv->format().num_layers * flags.chunks;
  std::printf("read:  %d chunks of %d tokens, %d layers of %.0f KiB each, %.2f GB; depth %d, reader %s\n",
              flags.chunks, flags.tokens, kv->format().num_layers, static_cast<double>(layer_bytes) / 1024,
              1e-9 * total, flags.depth, std::string(tier->Stats().reader).c_str());
  std::printf("       written durably at %.0f MB/s\n", 1e-6 * total / put_seconds);

  std::vector<std::unique_ptr<File>> files;
  std::vector<Extent> extents;
  const internal::DiskPaths paths{flags.folder};
  for (const ChunkAddress& chunk : chunks) {
    files.push_back(*PosixFileSystem().Open(paths.Entry(chunk.key), OpenMode::kReadDirect));
    if (!files.back()->direct()) std::printf("       (this file system refuses O_DIRECT)\n");
  }
  for (int32_t layer = 0; layer < kv->format().num_layers; ++layer) {
    for (const auto& file : files)
      extents.push_back({file->descriptor(), kEntryPageBytes + layer * layer_bytes});
  }
  Samples bare, through;
  for (int round = 0; round < flags.rounds; ++round) {
    // Who comes first differs from round to round: many disks give more to who comes after a pause.
    for (const bool is_bare : {round % 2 == 0, round % 2 != 0}) {
      if (is_bare) {
        bare.Add(1e-6 * total / BareReadSeconds(extents, layer_bytes, flags.depth, buffers));
      } else {
        through.Add(1e-6 * total / TierReadSeconds(*tier, chunks, buffers, num_buffers));
      }
    }
  }
  std::printf("       bare O_DIRECT %.0f MB/s, through the tier %.0f MB/s (medians of %d): %.1f%%\n",
              bare.Median(), through.Median(), flags.rounds, 100 * through.Median() / bare.Median());
  tier.reset();
  std::filesystem::remove_all(flags.folder);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What the disk tier costs.");
  app.add_option("FOLDER", flags.folder)->required()->check(CLI::NonexistentPath);
  app.add_option("--what", flags.what)->check(CLI::IsMember({"all", "index", "open", "read"}));
  app.add_option("--entries", flags.entries, "files that are opened (100000)");
  app.add_option("--chunks", flags.chunks,
                 "what is read: so many (24), of 24 layers of 8 heads of 128 in int8");
  app.add_option("--tokens", flags.tokens, "of each (512)");
  app.add_option("--depth", flags.depth, "reads at the device (32)");
  app.add_option("--rounds", flags.rounds, "measured rounds (5)")->check(Count());
  ParseOrExit(app, argc, argv);
  const bool all = flags.what == "all";
  if (all || flags.what == "index") {
    MeasureIndex(16);
    MeasureIndex(256);
  }
  if (all || flags.what == "open") MeasureOpen(flags);
  if (all || flags.what == "read") MeasureRead(flags);
  return 0;
}

}  // namespace
}  // namespace kvblend::store

int main(int argc, char** argv) { return kvblend::store::Main(argc, argv); }
