// Finds stop strings in streamed text, without delivering any part of one.
//
// The match is the one that is complete first; of several complete at the same byte, the longest. This
// depends on the text alone, not on how it was cut into pieces, and generation need never run on to find out.
// One Knuth-Morris-Pratt automaton per string: time linear in the text (times the number of strings), memory
// linear in the strings.
//
// Thread safety: none; one matcher per sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvblend::generate {

class StopMatcher {
 public:
  /// Empty strings are ignored; no strings: everything is passed on.
  explicit StopMatcher(const std::vector<std::string>& stop_strings);

  /// Takes the next piece of text and returns what can be delivered: all but the longest end that may be the
  /// beginning of a stop string; on a match all before it. After a match nothing more comes.
  /// Given complete UTF-8 characters in each piece and in the stop strings, returns complete characters.
  std::string Push(std::string_view text);

  /// The end of the text: returns what was held back. Empty after a match.
  std::string Flush();

  bool matched() const { return matched_ >= 0; }
  /// The string that matched; empty without a match.
  std::string_view matched_string() const {
    return matched() ? std::string_view(automata_[matched_].text) : "";
  }

 private:
  struct Automaton {
    std::string text;
    std::vector<uint32_t> border;  // [text.size()]: longest proper prefix of text[0..i] that also ends it
    size_t matched_bytes = 0;      // of `text`, at the end of what was pushed

    explicit Automaton(std::string_view stop_string);
    void Advance(char byte);
  };

  std::vector<Automaton> automata_;
  std::string held_;  // pushed, not delivered
  int matched_ = -1;  // index into automata_
};

}  // namespace kvblend::generate
