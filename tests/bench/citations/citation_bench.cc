// How heavy a run of words has to be to be a citation (server/cohere/citations.h): of spans that were copied
// from a passage, how many are found, with which sources; and how often the words of another question's
// passage are taken for a copy.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/cli/bench/dataset.h"
#include "server/cohere/citations.h"

namespace kvblend::server::cohere {
namespace {

constexpr double kWeights[] = {0.75, 1, 1.25, 1.5, 1.75, 2, 2.5};
constexpr int kLengths[] = {1, 2, 3, 4, 6, 10};
constexpr int kOwnWords = 40;  // what is nobody's copy
constexpr int kPassages = 10, kSpansPerQuestion = 40;

struct Counts {
  int spans = 0, found = 0;
};
struct Row {
  Counts copied[std::size(kLengths)];
  int wrong_source = 0, cited = 0;
  Counts own;  // pieces of kOwnWords words; those with a citation
};

using Words = std::vector<std::string>;

Words WordsOf(const cli::Passage& passage) {
  return absl::StrSplit(passage.text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
}

std::string Span(const Words& words, size_t begin, size_t count) {
  return absl::StrJoin(words.begin() + static_cast<int64_t>(begin),
                       words.begin() + static_cast<int64_t>(begin + count), " ");
}

void Measure(const std::vector<cli::BenchQuestion>& questions, std::vector<Row>& rows) {
  std::mt19937 random(1);
  const auto below = [&](size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random);
  };
  for (size_t q = 0; q < questions.size(); ++q) {
    std::vector<cli::Passage> passages = questions[q].passages;
    if (passages.size() > kPassages) passages.resize(kPassages);
    std::vector<std::string> documents;
    for (const cli::Passage& passage : passages)
      documents.push_back(absl::StrCat(passage.title, "\n", passage.text));
    const CitationFinder finder(documents, questions[q].question);
    const std::vector<cli::Passage>& others =
        questions[(q + questions.size() / 2) % questions.size()].passages;
    for (int i = 0; i < kSpansPerQuestion; ++i) {
      const size_t source = below(passages.size());
      const Words words = WordsOf(passages[source]);
      for (size_t n = 0; n < std::size(kLengths); ++n) {
        const auto length = static_cast<size_t>(kLengths[n]);
        if (words.size() <= length) continue;
        const std::string span = Span(words, below(words.size() - length), length);
        for (size_t w = 0; w < std::size(kWeights); ++w) {
          const auto citations = finder.Find(span, kWeights[w]);
          Counts& counts = rows[w].copied[n];
          ++counts.spans;
          counts.found += citations.empty() ? 0 : 1;
          for (const Citation& citation : citations) {
            ++rows[w].cited;
            const auto& from = citation.documents;
            const bool right =
                std::find(from.begin(), from.end(), static_cast<int32_t>(source)) != from.end();
            rows[w].wrong_source += right ? 0 : 1;
          }
        }
      }
      const cli::Passage& other = others[below(others.size())];
      const bool shared = std::any_of(passages.begin(), passages.end(), [&](const cli::Passage& passage) {
        return passage.text == other.text;
      });
      const Words own = WordsOf(other);
      if (shared || own.size() <= kOwnWords) continue;
      const std::string piece = Span(own, below(own.size() - kOwnWords), kOwnWords);
      for (size_t w = 0; w < std::size(kWeights); ++w) {
        ++rows[w].own.spans;
        rows[w].own.found += finder.Find(piece, kWeights[w]).empty() ? 0 : 1;
      }
    }
  }
}

double Percent(int part, int whole) { return whole == 0 ? 0 : 100.0 * part / whole; }

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr,
        "Usage: citation_bench DATA.json ...\nEach a list of {question, answers, ctxs}, as kvblend bench reads it.\n");
    return 2;
  }
  for (int i = 1; i < argc; ++i) {
    const auto questions = cli::LoadQuestions(argv[i]);
    if (!questions.ok()) {
      std::fprintf(stderr, "citation_bench: %s\n", std::string(questions.status().message()).c_str());
      return 1;
    }
    std::vector<Row> rows(std::size(kWeights));
    Measure(*questions, rows);
    std::printf("%s: %zu questions, %d passages each\n| weight |", argv[i], questions->size(), kPassages);
    for (const int length : kLengths) std::printf(" %d words |", length);
    std::printf(" wrong source | %d own words cited |\n|%s\n", kOwnWords,
                " --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (size_t w = 0; w < std::size(kWeights); ++w) {
      std::printf("| %.2f |", kWeights[w]);
      for (const Counts& counts : rows[w].copied)
        std::printf(" %.0f%% |", Percent(counts.found, counts.spans));
      std::printf(" %.2f%% | %.1f%% |\n", Percent(rows[w].wrong_source, rows[w].cited),
                  Percent(rows[w].own.found, rows[w].own.spans));
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace kvblend::server::cohere

int main(int argc, char** argv) { return kvblend::server::cohere::Main(argc, argv); }
