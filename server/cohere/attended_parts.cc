#include "server/cohere/attended_parts.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "engine/text/char_class.h"
#include "engine/text/utf8.h"

namespace kvblend::server::cohere {
namespace {

using text::CharClass;

struct Clause {
  int64_t begin = 0, end = 0;  // bytes, without whitespace and marks around them
};

/// Marks of scripts that put no space behind them.
bool EndsByItself(uint32_t code_point) {
  return code_point == 0x3001 || code_point == 0x3002 || (code_point >= 0xFF01 && code_point <= 0xFF1F);
}

bool EndsClause(uint32_t code_point) {
  return std::string_view(".,;:!?").find(static_cast<char>(code_point)) != std::string_view::npos &&
         code_point < 0x80;
}

std::vector<Clause> ClausesOf(std::string_view answer) {
  std::vector<Clause> clauses;
  Clause clause{-1, -1};  // begins with the first letter or number
  const auto close = [&] {
    if (clause.begin >= 0) clauses.push_back(clause);
    clause = {-1, -1};
  };
  bool marked = false;  // the last character ends a clause if whitespace follows
  for (size_t at = 0; at < answer.size();) {
    const text::Utf8Step step = text::DecodeUtf8At(answer, at);
    const bool valid = step.kind == text::Utf8Step::Kind::kValid;
    const uint32_t code_point = valid ? step.code_point : 0xFFFD;
    const CharClass of = text::ClassOf(code_point);
    const size_t end = at + step.length;
    if (code_point == '\n' || EndsByItself(code_point) || (marked && of == CharClass::kSpace)) close();
    marked = EndsClause(code_point);
    if (text::IsIn(of, text::kLetters | CharClass::kMark | CharClass::kNumber)) {
      if (clause.begin < 0) clause.begin = static_cast<int64_t>(at);
      clause.end = static_cast<int64_t>(end);
    }
    at = end;
  }
  close();
  return clauses;
}

using Tokens = google::protobuf::RepeatedPtrField<v1::AttributedToken>;

/// The mean over the tokens that have text in the clause, by document. `first` moves on to the first token
/// that may have text in this clause or one behind it, so that going through all clauses is going through the
/// tokens once.
std::map<int32_t, double> AttentionOf(const Clause& clause, const Tokens& tokens, int* first) {
  std::map<int32_t, double> attention;
  while (*first < tokens.size() && tokens[*first].end_byte() <= clause.begin) ++*first;
  // The end of a cut-off answer was never read, so it says nothing either way.
  int read = 0;
  for (int i = *first; i < tokens.size() && tokens[i].begin_byte() < clause.end; ++i) {
    if (tokens[i].chunks().empty()) continue;
    ++read;
    for (const v1::ChunkAttention& chunk : tokens[i].chunks()) attention[chunk.index()] += chunk.attention();
  }
  for (auto& [document, sum] : attention) sum /= read;
  return attention;
}

}  // namespace

std::vector<Citation> CiteAttended(std::string_view answer, const Tokens& tokens,
                                   const std::vector<Citation>& copied, double min_attention) {
  std::vector<Citation> citations;
  auto quote = copied.begin();
  int first = 0;
  for (const Clause& clause : ClausesOf(answer)) {
    while (quote != copied.end() && quote->end_byte <= clause.begin) ++quote;
    if (quote != copied.end() && quote->begin_byte < clause.end) continue;
    const std::map<int32_t, double> attention = AttentionOf(clause, tokens, &first);
    double most = 0;
    for (const auto& [document, mean] : attention) most = std::max(most, mean);
    if (most < min_attention) continue;
    Citation& citation =
        citations.emplace_back(Citation{.begin_byte = clause.begin, .end_byte = clause.end, .documents = {}});
    for (const auto& [document, mean] : attention) {
      if (mean >= std::max(min_attention, most / 2)) citation.documents.push_back(document);
    }
  }
  return citations;
}

}  // namespace kvblend::server::cohere
