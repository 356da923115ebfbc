#include "engine/prompt/split/known_texts.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "engine/prompt/split/text_hash.h"
#include "engine/prompt/text_boundary.h"

namespace kvblend::prompt {

KnownTexts::KnownTexts(int64_t max_texts)
    : max_texts_(max_texts), base_(TextHash::RandomBase()), second_base_(TextHash::RandomBase()) {}

KnownTexts::Hashes KnownTexts::HashesOf(std::string_view text) const {
  Hashes hashes = {0, 0};
  for (const char byte : text) {
    hashes.first = TextHash::Append(hashes.first, base_, byte);
    hashes.second = TextHash::Append(hashes.second, second_base_, byte);
  }
  return hashes;
}

std::vector<KnownTexts::Run> KnownTexts::RunChoices(std::string_view text) const {
  std::vector<Run> least;  // a heap, the largest on top
  RollingHash rolling(text, kWindow, base_);
  do {
    const Run run{rolling.value(), static_cast<uint32_t>(rolling.begin()), kWindow};
    if (least.size() == kRunChoices && !(run < least.front())) continue;
    // Of equal runs only the first counts.
    if (std::any_of(least.begin(), least.end(), [&](const auto& one) { return one.hash == run.hash; })) {
      continue;
    }
    if (least.size() == kRunChoices) {
      std::pop_heap(least.begin(), least.end());
      least.pop_back();
    }
    least.push_back(run);
    std::push_heap(least.begin(), least.end());
  } while (rolling.Next());
  std::sort(least.begin(), least.end());
  return least;
}

std::vector<KnownTexts::Run> KnownTexts::LongRuns(std::string_view text) const {
  const size_t bytes = std::bit_floor(text.size());
  std::vector<Run> runs;
  for (const size_t begin : {size_t{0}, text.size() - bytes}) {
    runs.push_back({HashesOf(text.substr(begin, bytes)).first, static_cast<uint32_t>(begin),
                    static_cast<uint32_t>(bytes)});
  }
  return runs;
}

size_t KnownTexts::NumTexts(const Namespace& of, const Run& run) {
  const auto found = of.by_run.find(run.hash);
  return found == of.by_run.end() ? 0 : found->second.size();
}

void KnownTexts::Add(std::string_view tenant_namespace, std::string_view text) {
  if (text.size() < kMinBytes || text.size() > std::numeric_limits<uint32_t>::max()) return;
  if (EndOfContent(text) == 0) return;
  const Hashes hashes = HashesOf(text);
  const std::string name(tenant_namespace);
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = namespaces_.find(name); found != namespaces_.end()) {
      Namespace& of = found->second;
      if (const auto known = of.by_hashes.find(hashes); known != of.by_hashes.end()) {
        of.texts.splice(of.texts.end(), of.texts, known->second);
        return;
      }
    }
  }
  const std::vector<Run> choices = RunChoices(text), long_runs = LongRuns(text);
  absl::MutexLock lock(&mutex_);
  Namespace& of = namespaces_[name];
  if (of.by_hashes.contains(hashes)) return;  // another thread was faster
  const size_t before = of.texts.size();
  const auto rarest = [&](const std::vector<Run>& runs) {
    return *std::min_element(runs.begin(), runs.end(),
                             [&](const Run& a, const Run& b) { return NumTexts(of, a) < NumTexts(of, b); });
  };
  Run run = rarest(choices);
  if (NumTexts(of, run) > 0) run = rarest(long_runs);
  if (NumTexts(of, run) >= kMaxTextsPerRun) Forget(of, of.by_run[run.hash].front());
  of.texts.push_back({.hashes = hashes, .run = run, .bytes = static_cast<uint32_t>(text.size())});
  const auto added = std::prev(of.texts.end());
  of.by_hashes.emplace(hashes, added);
  of.by_run[run.hash].push_back(added);
  ++of.windows[run.bytes];
  Resize(name, before, of.texts.size());
  while (num_texts_ > max_texts_) {
    const auto [size, largest] = *by_size_.rbegin();
    Namespace& from = namespaces_.find(largest)->second;
    Forget(from, from.texts.begin());
    Resize(largest, size, size - 1);
  }
}

void KnownTexts::Forget(Namespace& of, Texts::iterator text) {
  const auto run = of.by_run.find(text->run.hash);
  std::erase(run->second, text);
  if (run->second.empty()) of.by_run.erase(run);
  const auto window = of.windows.find(text->run.bytes);
  if (--window->second == 0) of.windows.erase(window);
  of.by_hashes.erase(text->hashes);
  of.texts.erase(text);
}

void KnownTexts::Resize(const std::string& name, size_t before, size_t after) {
  if (before == after) return;
  num_texts_ += static_cast<int64_t>(after) - static_cast<int64_t>(before);
  if (before > 0) by_size_.erase({before, name});
  if (after > 0) {
    by_size_.emplace(after, name);
  } else {
    namespaces_.erase(name);
  }
}

std::vector<TextRange> KnownTexts::Find(absl::Span<const std::string> namespaces, std::string_view text,
                                        int64_t* checks_left) const {
  std::vector<TextRange> ranges;
  if (text.size() < kMinBytes || *checks_left <= 0) return ranges;
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<const Namespace*> searched;
  for (const std::string& name : namespaces) {
    if (const auto found = namespaces_.find(name); found != namespaces_.end())
      searched.push_back(&found->second);
  }
  if (searched.empty()) return ranges;
  const TextHash hashes(text, base_);
  std::set<size_t> windows;
  for (const Namespace* of : searched) {
    for (const auto& [window, texts] : of->windows) {
      if (window <= text.size()) windows.insert(window);
    }
  }
  std::vector<RollingHash> runs;
  runs.reserve(windows.size());
  for (const size_t window : windows) runs.emplace_back(text, window, base_);
  std::vector<Found> found;
  const auto look = [&](const RollingHash& run) {
    for (const Namespace* of : searched) {
      const auto same_run = of->by_run.find(run.value());
      if (same_run == of->by_run.end()) continue;
      for (const Texts::iterator& known : same_run->second) {
        --*checks_left;
        if (run.begin() < known->run.begin) continue;
        const size_t begin = run.begin() - known->run.begin;
        if (known->bytes > text.size() - begin ||
            hashes.Of(begin, begin + known->bytes) != known->hashes.first)
          continue;
        found.push_back({{begin, begin + known->bytes}, &*known});
      }
    }
  };
  while (!runs.empty() && *checks_left > 0) {
    for (const RollingHash& run : runs) look(run);
    // The longest ones, which are the last, end first.
    size_t going_on = 0;
    while (going_on < runs.size() && runs[going_on].Next()) ++going_on;
    while (runs.size() > going_on) runs.pop_back();
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.range.begin != b.range.begin ? a.range.begin < b.range.begin : a.range.end > b.range.end;
  });
  size_t behind = 0;
  for (const Found& one : found) {
    if (one.range.begin < behind) continue;
    if (HashesOf(text.substr(one.range.begin, one.range.end - one.range.begin)) != one.text->hashes) continue;
    ranges.push_back(one.range);
    behind = one.range.end;
  }
  return ranges;
}

int64_t KnownTexts::size() const {
  absl::ReaderMutexLock lock(&mutex_);
  return num_texts_;
}

}  // namespace kvblend::prompt
