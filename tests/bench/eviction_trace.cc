// What the eviction policy is worth: the share of lookups that find their chunk, on traces of requests for
// chunks of equal size and cost, for LRU, for GreedyDual-Size-Frequency alone, and for EvictionQueue with
// FrequencySketch as ChunkStore uses them.
//
// Popularity is Zipf's. "scan" traces read 8,000 chunks that nobody asks for again after every 20,000
// lookups; "shift" ones make a tenth of the chunks unpopular, and others popular, every 15,000. Scanned
// chunks are not counted as lookups: they are never there.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <list>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/api/chunk_key.h"
#include "engine/store/eviction.h"
#include "engine/store/frequency_sketch.h"
#include "tests/bench/arguments.h"

namespace kvblend::store {
namespace {

struct Request {
  uint64_t chunk;
  bool scanned;
};

struct TraceSpec {
  const char* name;
  double zipf;
  int64_t scan_every;   // lookups; 0: never
  int64_t shift_every;  // 0: never
};

std::vector<Request> MakeTrace(const TraceSpec& spec, uint64_t num_chunks, int64_t lookups, uint64_t seed) {
  constexpr int64_t kScanLength = 8000;
  constexpr uint64_t kScanned = uint64_t{1} << 40;
  std::vector<double> cumulative;
  double sum = 0;
  for (uint64_t rank = 1; rank <= num_chunks; ++rank) {
    cumulative.push_back(sum += std::pow(static_cast<double>(rank), -spec.zipf));
  }
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, sum);
  uint64_t shift = 0;
  uint64_t next_scanned = kScanned;
  std::vector<Request> trace;
  const auto look_up = [&] {
    const auto rank =
        std::lower_bound(cumulative.begin(), cumulative.end(), uniform(random)) - cumulative.begin();
    trace.push_back({(static_cast<uint64_t>(rank) + shift) % (2 * num_chunks), false});
  };
  for (int64_t i = 1; i <= lookups; ++i) {
    look_up();
    if (spec.shift_every > 0 && i % spec.shift_every == 0) shift += num_chunks / 10;
    if (spec.scan_every == 0 || i % spec.scan_every != 0) continue;
    for (int64_t k = 0; k < kScanLength; ++k) {
      trace.push_back({next_scanned++, true});
      if (k % 4 == 0) look_up();
    }
  }
  return trace;
}

class Policy {
 public:
  virtual ~Policy() = default;
  /// Whether it was there; it is afterwards.
  virtual bool Use(uint64_t chunk) = 0;
};

class Lru final : public Policy {
 public:
  explicit Lru(size_t capacity) : capacity_(capacity) {}
  bool Use(uint64_t chunk) override {
    if (const auto found = places_.find(chunk); found != places_.end()) {
      order_.splice(order_.end(), order_, found->second);
      return true;
    }
    if (order_.size() == capacity_) {
      places_.erase(order_.front());
      order_.pop_front();
    }
    places_[chunk] = order_.insert(order_.end(), chunk);
    return false;
  }

 private:
  const size_t capacity_;
  std::list<uint64_t> order_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

ChunkKey KeyOf(uint64_t chunk) {
  std::string hex = "0123456789abcdef";
  std::mt19937_64 random(chunk);
  std::string key;
  for (int i = 0; i < 64; ++i) key += hex[random() % 16];
  return *ChunkKey::FromHex(key);
}

/// As ChunkStore does it, and without probation and memory of what is gone: GreedyDual-Size-Frequency.
class QueuePolicy final : public Policy {
 public:
  QueuePolicy(size_t capacity, bool full) : capacity_(capacity), full_(full) {}
  bool Use(uint64_t chunk) override {
    const ChunkKey key = KeyOf(chunk);
    if (full_) sketch_.Record(key, static_cast<int64_t>(entries_.size()));
    const auto found = entries_.find(chunk);
    const bool hit = found != entries_.end();
    int64_t uses = 1;
    if (hit) {
      queue_.Remove(found->second.ticket);
      uses = ++found->second.uses;
    } else if (entries_.size() == capacity_) {
      entries_.erase(*queue_.Pop());
    }
    // A frequency of 2 at the least keeps everything off probation.
    const int64_t frequency =
        full_ ? std::max<int64_t>(sketch_.Estimate(key), std::min<int64_t>(uses, 2)) : 2 * uses;
    entries_[chunk] = {queue_.Add(chunk, frequency, 1.0, 1), uses};
    return hit;
  }

 private:
  struct Entry {
    EvictionQueue::Ticket ticket;
    int64_t uses = 0;
  };
  const size_t capacity_;
  const bool full_;
  FrequencySketch sketch_;
  EvictionQueue queue_;
  std::unordered_map<uint64_t, Entry> entries_;
};

double HitRate(const std::vector<Request>& trace, Policy& policy) {
  int64_t hits = 0;
  int64_t lookups = 0;
  for (const Request& request : trace) {
    const bool hit = policy.Use(request.chunk);
    if (request.scanned) continue;
    ++lookups;
    hits += hit ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(lookups);
}

int Main(int argc, char** argv) {
  uint64_t num_chunks = 5000;
  int64_t lookups = 150000;
  uint64_t seed = 1;
  CLI::App app("What the eviction policy is worth.");
  app.add_option("--chunks", num_chunks, "how many there are (5000)")->check(CLI::Range(10, 1 << 30));
  app.add_option("--lookups", lookups, "length of a trace (150000)")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed);
  ParseOrExit(app, argc, argv);
  const TraceSpec specs[] = {
      {"zipf 0.9", 0.9, 0, 0},
      {"zipf 0.9, scan", 0.9, 20000, 0},
      {"zipf 0.7, scan", 0.7, 20000, 0},
      {"zipf 1.1, scan", 1.1, 20000, 0},
      {"zipf 0.9, shift", 0.9, 0, 15000},
      {"zipf 0.9, shift, scan", 0.9, 20000, 15000},
  };
  std::printf("| trace | room | LRU | GDSF | kvblend |\n|---|---|---|---|---|\n");
  for (const TraceSpec& spec : specs) {
    const std::vector<Request> trace = MakeTrace(spec, num_chunks, lookups, seed);
    for (const double share : {0.05, 0.2}) {
      const auto capacity = static_cast<size_t>(share * static_cast<double>(num_chunks));
      Lru lru(capacity);
      QueuePolicy gdsf(capacity, false);
      QueuePolicy ours(capacity, true);
      std::printf("| %s | %.0f%% | %.3f | %.3f | %.3f |\n", spec.name, 100 * share, HitRate(trace, lru),
                  HitRate(trace, gdsf), HitRate(trace, ours));
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvblend::store

int main(int argc, char** argv) { return kvblend::store::Main(argc, argv); }
