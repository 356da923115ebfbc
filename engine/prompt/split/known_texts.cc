#include "engine/prompt/split/known_texts.h"

#include <algorithm>
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

std::vector<std::pair<uint64_t, uint32_t>> KnownTexts::RunChoices(std::string_view text) const {
  std::vector<std::pair<uint64_t, uint32_t>> least;  // a heap, the largest on top
  RollingHash rolling(text, kWindow, base_);
  do {
    const std::pair run(rolling.value(), static_cast<uint32_t>(rolling.begin()));
    if (least.size() == kRunChoices && !(run < least.front())) continue;
    // Of equal runs only the first counts.
    if (std::any_of(least.begin(), least.end(), [&](const auto& one) { return one.first == run.first; })) {
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
  const std::vector<std::pair<uint64_t, uint32_t>> choices = RunChoices(text);
  absl::MutexLock lock(&mutex_);
  Namespace& of = namespaces_[name];
  if (of.by_hashes.contains(hashes)) return;  // another thread was faster
  const size_t before = of.texts.size();
  const auto others = [&](const std::pair<uint64_t, uint32_t>& run) {
    const auto found = of.by_run.find(run.first);
    return found == of.by_run.end() ? 0 : found->second.size();
  };
  const auto run = *std::min_element(choices.begin(), choices.end(),
                                     [&](const auto& a, const auto& b) { return others(a) < others(b); });
  if (others(run) >= kMaxTextsPerRun) Forget(of, of.by_run[run.first].front());
  of.texts.push_back({.hashes = hashes,
                      .run = run.first,
                      .run_begin = run.second,
                      .bytes = static_cast<uint32_t>(text.size())});
  const auto added = std::prev(of.texts.end());
  of.by_hashes.emplace(hashes, added);
  of.by_run[run.first].push_back(added);
  Resize(name, before, of.texts.size());
  while (num_texts_ > max_texts_) {
    const auto [size, largest] = *by_size_.rbegin();
    Namespace& from = namespaces_.find(largest)->second;
    Forget(from, from.texts.begin());
    Resize(largest, size, size - 1);
  }
}

void KnownTexts::Forget(Namespace& of, Texts::iterator text) {
  const auto run = of.by_run.find(text->run);
  std::erase(run->second, text);
  if (run->second.empty()) of.by_run.erase(run);
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

std::vector<TextRange> KnownTexts::Find(absl::Span<const std::string> namespaces,
                                        std::string_view text) const {
  std::vector<TextRange> ranges;
  if (text.size() < kMinBytes) return ranges;
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<const Namespace*> searched;
  for (const std::string& name : namespaces) {
    if (const auto found = namespaces_.find(name); found != namespaces_.end())
      searched.push_back(&found->second);
  }
  if (searched.empty()) return ranges;
  const TextHash hashes(text, base_);
  std::vector<Found> found;
  int64_t checks = 0;
  RollingHash rolling(text, kWindow, base_);
  do {
    for (const Namespace* of : searched) {
      const auto same_run = of->by_run.find(rolling.value());
      if (same_run == of->by_run.end()) continue;
      for (const Texts::iterator& known : same_run->second) {
        ++checks;
        if (rolling.begin() < known->run_begin) continue;
        const size_t begin = rolling.begin() - known->run_begin;
        if (known->bytes > text.size() - begin ||
            hashes.Of(begin, begin + known->bytes) != known->hashes.first)
          continue;
        found.push_back({{begin, begin + known->bytes}, &*known});
      }
    }
  } while (checks < kMaxChecks && rolling.Next());
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
