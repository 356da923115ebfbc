// Finds known texts within another text: the texts of chunks, in prompts into which a client has pasted them.
//
// A table holds one run of bytes of every known text, with its place in the text. A search hashes every run
// of the text that it looks through. Where the table has a run, the whole known text is compared by its hash,
// and in the end by a second one. Both hashes have random bases (text_hash.h): a text of n bytes is mistaken
// for another one once in (2^61 / n)^2 comparisons, whoever makes the texts, and a mistake would cost a cut
// in the wrong place.
//
// The run that stands for a text has kWindow bytes and is chosen by hash from all over the text, so that few
// texts have the same run: chunks often begin with the same title or path. Texts that share most of their
// wording, like product cards, share such runs too. If each of those stands for another text already, a long
// run is taken, of more than half of the text: its beginning or its end. Whatever two texts differ in is in
// one of these. A run stands for at most kMaxTextsPerRun texts, which bounds the comparisons at each place of
// a search; where that is not enough, the oldest one is forgotten. Long runs have a power of two of bytes, so
// that a search looks for few lengths.
//
// The texts themselves are not kept, only about a hundred bytes for each. Each namespace has known texts of
// its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace kvblend::prompt {

/// A part of a text, in bytes.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;

  bool operator==(const TextRange&) const = default;
};

/// Thread-safe.
class KnownTexts {
 public:
  static constexpr size_t kWindow = 32;
  static constexpr size_t kMinBytes = 64;         // shorter texts are not worth a place
  static constexpr int64_t kMaxChecks = 1 << 16;  // of a prompt; what lies behind is not found
  static constexpr size_t kMaxTextsPerRun = 16;
  static constexpr int64_t kDefaultTexts = 1 << 18;  // of all namespaces together

  /// Beyond `max_texts`, the namespace with the most texts forgets the one used longest ago.
  explicit KnownTexts(int64_t max_texts = kDefaultTexts);

  /// Makes the text known in this namespace. No effect if it is too short or blank.
  void Add(std::string_view tenant_namespace, std::string_view text);

  /// Where `text` has known texts of any of the namespaces: the one that begins first (of several the
  /// longest), then the first one after its end, and so on; ascending, without overlaps. Time: some
  /// nanoseconds per byte, namespace and length of runs, of which there are few, and less than a microsecond
  /// for each of kMaxChecks comparisons.
  std::vector<TextRange> Find(absl::Span<const std::string> namespaces, std::string_view text) const {
    int64_t checks_left = kMaxChecks;
    return Find(namespaces, text, &checks_left);
  }
  /// The same with a bound that several searches share: `*checks_left` comparisons, less those made.
  std::vector<TextRange> Find(absl::Span<const std::string> namespaces, std::string_view text,
                              int64_t* checks_left) const;

  int64_t size() const;

 private:
  using Hashes = std::pair<uint64_t, uint64_t>;  // of the two bases
  struct Run {
    uint64_t hash = 0;  // by the first base
    uint32_t begin = 0;
    uint32_t bytes = 0;
    bool operator<(const Run& other) const {
      return hash != other.hash ? hash < other.hash : begin < other.begin;
    }
  };
  struct Text {
    Hashes hashes;  // of all of it
    Run run;        // that stands for it
    uint32_t bytes = 0;
  };
  using Texts = std::list<Text>;
  struct Namespace {
    Texts texts;  // the one used longest ago first
    absl::flat_hash_map<Hashes, Texts::iterator> by_hashes;
    absl::flat_hash_map<uint64_t, std::vector<Texts::iterator>> by_run;
    std::map<size_t, int64_t> windows;  // the runs' lengths, and how many texts have them
  };
  struct Found {
    TextRange range;
    const Text* text;
  };

  static constexpr size_t kRunChoices = 8;

  Hashes HashesOf(std::string_view text) const;
  /// The runs of kWindow bytes with the least hashes.
  std::vector<Run> RunChoices(std::string_view text) const;
  /// The beginning and the end of the text.
  std::vector<Run> LongRuns(std::string_view text) const;
  static size_t NumTexts(const Namespace& of, const Run& run);
  void Forget(Namespace& of, Texts::iterator text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Resize(const std::string& name, size_t before, size_t after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_texts_;
  const uint64_t base_, second_base_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Namespace> namespaces_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<size_t, std::string>> by_size_ ABSL_GUARDED_BY(mutex_);  // none of them empty
  int64_t num_texts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvblend::prompt
