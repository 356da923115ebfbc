#include "engine/generate/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvblend::generate {

StopMatcher::Automaton::Automaton(std::string_view stop_string) : text(stop_string), border(text.size()) {
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = border[i - 1];
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    border[i] = static_cast<uint32_t>(length + (text[i] == text[length] ? 1 : 0));
  }
}

void StopMatcher::Automaton::Advance(char byte) {
  while (matched_bytes > 0 && text[matched_bytes] != byte) matched_bytes = border[matched_bytes - 1];
  if (text[matched_bytes] == byte) ++matched_bytes;
}

StopMatcher::StopMatcher(const std::vector<std::string>& stop_strings) {
  for (const std::string& stop_string : stop_strings) {
    if (!stop_string.empty()) automata_.emplace_back(stop_string);
  }
}

std::string StopMatcher::Push(std::string_view text) {
  if (matched()) return "";
  size_t held_to = held_.size();  // bytes of held_ that the automata have seen
  held_.append(text);
  while (held_to < held_.size()) {
    const char byte = held_[held_to++];
    for (size_t i = 0; i < automata_.size(); ++i) {
      automata_[i].Advance(byte);
      const bool complete = automata_[i].matched_bytes == automata_[i].text.size();
      if (complete && automata_[i].text.size() > matched_string().size()) matched_ = static_cast<int>(i);
    }
    if (matched()) {
      std::string before = held_.substr(0, held_to - matched_string().size());
      held_.clear();
      return before;
    }
  }
  size_t undecided = 0;
  for (const Automaton& automaton : automata_) undecided = std::max(undecided, automaton.matched_bytes);
  std::string decided = held_.substr(0, held_.size() - undecided);
  held_.erase(0, decided.size());
  return decided;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

}  // namespace kvblend::generate
