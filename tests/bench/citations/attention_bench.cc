// What attention tells of where an answer comes from (engine/serve/sequences/attribution): the answers of
// questions are put behind their prompts token by token, and the chunk that gets the most attention is
// compared with the passages that hold the answer. Put there as well is the answer of another question, which
// no passage holds. Beside it the runs of words that are copied (server/cohere/citations.h), and trivial
// guesses.
// The model's own answers are looked at too: of the clauses that quote, how often attention names a document
// that they quote, and how many of the others it cites.
//
// With --cost the time of decoding with and without, in turn, on the first question.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/text/stream_decoder.h"
#include "server/cli/bench/dataset.h"
#include "server/cohere/attended_parts.h"
#include "server/cohere/citations.h"
#include "server/convert/requests.h"
#include "tests/bench/arguments.h"

namespace kvblend {
namespace {

constexpr double kThresholds[] = {0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5};
constexpr size_t kFewestPassages = 5;
constexpr int kAnswerTokens = 48;

absl::Status GoOn() { return absl::OkStatus(); }

/// Words in lower case with one space around each, so that whole words are found in it.
std::string Plain(const std::string& text) {
  std::string plain = absl::AsciiStrToLower(text);
  for (char& c : plain) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && (c & 0x80) == 0) c = ' ';
  }
  return absl::StrCat(" ", absl::StrJoin(absl::StrSplit(plain, ' ', absl::SkipEmpty()), " "), " ");
}

struct Question {
  const server::cli::BenchQuestion* asked;
  GenerateRequest request;
  std::vector<std::string> passages;  // Plain

  /// As the passages write it, where these have no capitals at all.
  std::string Spelled(const std::string& answer) const {
    const std::vector<std::string>& texts = request.prompt.chunks;
    const bool has_capitals = std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
      return absl::AsciiStrToLower(text) != text;
    });
    return has_capitals ? answer : absl::AsciiStrToLower(answer);
  }
  std::set<int32_t> Holding(const std::string& answer) const {
    std::set<int32_t> holding;
    for (size_t i = 0; i < passages.size(); ++i) {
      if (absl::StrContains(passages[i], Plain(answer))) holding.insert(static_cast<int32_t>(i));
    }
    return holding;
  }
  /// The passage that has most of the question's words.
  int32_t MostWords() const {
    const std::string words = Plain(asked->question);
    std::vector<int> counts;
    for (const std::string& passage : passages) {
      const std::set<std::string> distinct = absl::StrSplit(words, ' ', absl::SkipEmpty());
      counts.push_back(
          static_cast<int>(std::count_if(distinct.begin(), distinct.end(), [&](const auto& word) {
            return absl::StrContains(passage, absl::StrCat(" ", word, " "));
          })));
    }
    return static_cast<int32_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
  }
};

struct Tally {
  int answers = 0, cited = 0, right = 0;
  void Add(bool is_cited, bool is_right) {
    ++answers;
    cited += is_cited ? 1 : 0;
    right += is_cited && is_right ? 1 : 0;
  }
};

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

void PrintRow(const std::string& name, const Tally& held, const Tally& unheld) {
  std::printf("| %s | %.0f%% | %.0f%% | %.0f%% |\n", name.c_str(), Percent(held.cited, held.answers),
              Percent(held.right, held.cited), Percent(unheld.cited, unheld.answers));
}

class Bench {
 public:
  Bench(ModelRuntime& runtime, PromptRunner& runner, bool blends)
      : runtime_(runtime), runner_(runner), blends_(blends) {}

  absl::Status Run(const std::vector<server::cli::BenchQuestion>& questions, int passages, size_t limit) {
    const size_t count = std::min(limit, questions.size());
    for (size_t q = 0; q < count; ++q) {
      KVBLEND_ASSIGN_OR_RETURN(const Question question, Prepare(questions[q], passages));
      const std::string own = question.Spelled(questions[q].answers[0]);
      const std::string other =
          question.Spelled(questions[(q + questions.size() / 2) % questions.size()].answers[0]);
      const std::set<int32_t> holding = question.Holding(own);
      const bool is_held = !holding.empty() && holding.size() <= question.passages.size() / 2;
      const bool is_unheld = question.Holding(other).empty() && other != "yes" && other != "no";
      if (question.passages.size() < kFewestPassages || (!is_held && !is_unheld)) continue;
      KVBLEND_RETURN_IF_ERROR(Ask(question));
      const server::cohere::CitationFinder finder(question.request.prompt.chunks,
                                                  question.request.prompt.question);
      if (is_held) {
        KVBLEND_ASSIGN_OR_RETURN(const auto best, Attended(own));
        const auto copied = finder.Find(own);
        const bool copy_is_right = std::any_of(copied.begin(), copied.end(), [&](const auto& citation) {
          return std::any_of(citation.documents.begin(), citation.documents.end(),
                             [&](int32_t document) { return holding.contains(document); });
        });
        copied_.Add(!copied.empty(), copy_is_right);
        words_.Add(true, holding.contains(question.MostWords()));
        chance_ += static_cast<double>(holding.size()) / static_cast<double>(question.passages.size());
        for (size_t t = 0; t < std::size(kThresholds); ++t) {
          held_[t].Add(best.second >= kThresholds[t], holding.contains(best.first));
        }
      }
      if (is_unheld) {
        KVBLEND_ASSIGN_OR_RETURN(const auto best, Attended(other));
        copied_unheld_.Add(!finder.Find(other).empty(), false);
        for (size_t t = 0; t < std::size(kThresholds); ++t)
          unheld_[t].Add(best.second >= kThresholds[t], false);
      }
      KVBLEND_RETURN_IF_ERROR(Answer(finder));
    }
    return absl::OkStatus();
  }

  void Print() const {
    std::printf(
        "%d answers of the model's own\n| attention | clauses that quote, cited | of these right | others cited |\n"
        "| --- | --- | --- | --- |\n",
        answered_);
    for (size_t t = 0; t < std::size(kThresholds); ++t) {
      std::printf("| %.2f | %d | %.0f%% | %d |\n", kThresholds[t], quoting_[t].cited,
                  Percent(quoting_[t].right, quoting_[t].cited), others_[t]);
    }
    std::printf("\n");
    PrintPlaced();
  }

  void PrintPlaced() const {
    std::printf("%d answers that passages hold, %d of other questions, %.0f tokens per prompt\n",
                held_[0].answers, unheld_[0].answers,
                static_cast<double>(prompt_tokens_) / std::max(prompts_, 1));
    std::printf("| | cited | of these right | other answers cited |\n| --- | --- | --- | --- |\n");
    for (size_t t = 0; t < std::size(kThresholds); ++t) {
      PrintRow(absl::StrCat("attention of ", kThresholds[t]), held_[t], unheld_[t]);
    }
    PrintRow("copied run of words", copied_, copied_unheld_);
    std::printf("| most words of the question | 100%% | %.0f%% | |\n| any passage | 100%% | %.0f%% | |\n\n",
                Percent(words_.right, words_.answers), Percent(chance_, held_[0].answers));
  }

  /// Decodes a prompt's answer greedily, with attention measured in every second round.
  absl::Status Cost(const server::cli::BenchQuestion& asked, int passages, int rounds, int tokens) {
    KVBLEND_ASSIGN_OR_RETURN(const Question question, Prepare(asked, passages));
    std::vector<double> seconds[2];
    KVBLEND_RETURN_IF_ERROR(Ask(question));
    const int32_t begin = prompt_.num_tokens;
    for (int round = 0; round < 2 * rounds + 2; ++round) {
      prompt_.num_tokens = begin;
      int32_t token = layout_.token_ids.back();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < tokens; ++i) {
        NextTokens next{&prompt_, {token}, {{}}};
        if (round % 2 == 1) next.chunks = chunks_;
        std::vector<std::vector<ChunkAttention>> attended;
        KVBLEND_ASSIGN_OR_RETURN(const auto sampled, runner_.ExtendAll({&next, 1}, &attended));
        ++prompt_.num_tokens;
        token = sampled[0].token_id;
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round > 1) seconds[round % 2].push_back(took.count() / tokens);
    }
    for (auto& values : seconds) std::sort(values.begin(), values.end());
    const double without = seconds[0][rounds / 2], with = seconds[1][rounds / 2];
    std::printf("%d tokens behind %d: %.3f ms per token without, %.3f ms with: %+.1f%%\n", tokens, begin,
                1e3 * without, 1e3 * with, 100 * (with / without - 1));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Question> Prepare(const server::cli::BenchQuestion& asked, int passages) const {
    v1::GenerateRequest wire;
    *wire.mutable_prompt() = server::cli::MakePrompt(asked, passages);
    Question question{.asked = &asked, .request = {}, .passages = {}};
    KVBLEND_ASSIGN_OR_RETURN(question.request, server::FromProto(std::move(wire)));
    for (const std::string& chunk : question.request.prompt.chunks) question.passages.push_back(Plain(chunk));
    return question;
  }

  /// Prefills the question's prompt.
  absl::Status Ask(const Question& question) {
    prompt_ = {};
    KVBLEND_ASSIGN_OR_RETURN(
        layout_,
        prompt::BuildPromptLayout(question.request.prompt, *runtime_.tokenizer, *runtime_.chat_template,
                                  {.max_prompt_tokens = runtime_.max_context_tokens - 100}));
    chunks_.clear();
    for (const prompt::Span& span : layout_.spans) {
      if (span.kind == PromptPart::kChunk) chunks_.push_back(span);
    }
    BlendOptions blend;
    blend.reuse = blends_ ? Reuse::kChunks : Reuse::kNothing;
    blend.ratio = 0.15;
    for (const prompt::Span& chunk : chunks_) {
      if (!blends_) break;
      const auto tokens = absl::MakeConstSpan(layout_.token_ids).subspan(chunk.begin, chunk.size());
      KVBLEND_RETURN_IF_ERROR(runner_.EnsureStored("", layout_.anchor_ids, tokens, {}, GoOn).status());
    }
    KVBLEND_ASSIGN_OR_RETURN(prompt_, runner_.Prefill(layout_, blend, "", GoOn));
    for (bool ready = false; !ready;) {
      KVBLEND_ASSIGN_OR_RETURN(ready, runner_.PrepareAttention());
    }
    prompt_tokens_ += prompt_.num_tokens;
    ++prompts_;
    return absl::OkStatus();
  }

  /// The chunk that the answer attends to most, and how much, on average over its tokens.
  absl::StatusOr<std::pair<int32_t, double>> Attended(const std::string& answer) {
    KVBLEND_ASSIGN_OR_RETURN(const auto tokens, prompt::ChunkTokens(answer, "answer", *runtime_.tokenizer));
    const NextTokens next{&prompt_, tokens, std::vector<kernels::SamplingSpec>(tokens.size()), chunks_};
    std::vector<std::vector<ChunkAttention>> attended;
    KVBLEND_RETURN_IF_ERROR(runner_.ExtendAll({&next, 1}, &attended).status());
    std::vector<double> sums(chunks_.size());
    for (const auto& token : attended) {
      for (const ChunkAttention& chunk : token) sums[chunk.index] += chunk.attention;
    }
    const auto best = std::max_element(sums.begin(), sums.end());
    return std::pair<int32_t, double>(best - sums.begin(), *best / static_cast<double>(attended.size()));
  }

  /// Decodes the model's answer greedily, and compares what it quotes with what it attends to.
  absl::Status Answer(const server::cohere::CitationFinder& finder) {
    const auto first = std::max_element(prompt_.logits.begin(), prompt_.logits.end());
    auto token = static_cast<int32_t>(first - prompt_.logits.begin());
    text::StreamDecoder decoder(*runtime_.tokenizer);
    std::string answer;
    google::protobuf::RepeatedPtrField<v1::AttributedToken> tokens;
    for (int i = 0; i < kAnswerTokens && !runtime_.tokenizer->IsEndOfGeneration(token); ++i) {
      const NextTokens next{&prompt_, {token}, {{}}, chunks_};
      std::vector<std::vector<ChunkAttention>> attended;
      KVBLEND_ASSIGN_OR_RETURN(const auto sampled, runner_.ExtendAll({&next, 1}, &attended));
      ++prompt_.num_tokens;
      v1::AttributedToken& said = *tokens.Add();
      said.set_begin_byte(static_cast<int64_t>(answer.size()));
      answer += decoder.Append(token);
      said.set_end_byte(static_cast<int64_t>(answer.size()));
      for (const ChunkAttention& chunk : attended[0]) {
        v1::ChunkAttention& added = *said.add_chunks();
        added.set_index(chunk.index);
        added.set_attention(chunk.attention);
      }
      token = sampled[0].token_id;
    }
    ++answered_;
    const std::vector<server::cohere::Citation> copied = finder.Find(answer);
    for (size_t t = 0; t < std::size(kThresholds); ++t) {
      for (const auto& clause : server::cohere::CiteAttended(answer, tokens, {}, kThresholds[t])) {
        bool quotes = false, agrees = false;
        for (const auto& citation : copied) {
          if (citation.begin_byte >= clause.end_byte || clause.begin_byte >= citation.end_byte) continue;
          quotes = true;
          for (const int32_t document : clause.documents) {
            agrees |= std::find(citation.documents.begin(), citation.documents.end(), document) !=
                      citation.documents.end();
          }
        }
        if (quotes) quoting_[t].Add(true, agrees);
        others_[t] += quotes ? 0 : 1;
      }
    }
    return absl::OkStatus();
  }

  ModelRuntime& runtime_;
  PromptRunner& runner_;
  const bool blends_;
  prompt::PromptLayout layout_;
  std::vector<prompt::Span> chunks_;
  PrefilledPrompt prompt_;
  Tally held_[std::size(kThresholds)], unheld_[std::size(kThresholds)], copied_, copied_unheld_, words_;
  Tally quoting_[std::size(kThresholds)];
  int others_[std::size(kThresholds)] = {};
  int answered_ = 0;
  double chance_ = 0;
  int64_t prompt_tokens_ = 0;
  int prompts_ = 0;
};

int Main(int argc, char** argv) {
  EngineOptions options;
  std::string data_path;
  int passages = 10, limit = 1 << 20, rounds = 0, tokens = 64;
  bool blends = false;
  CLI::App app("What attention tells of where answers come from.");
  AddEngineArguments(app, options, data_path);
  app.add_option("--passages", passages, "chunks of a prompt (10)")->check(Count());
  app.add_option("--limit", limit, "questions at most")->check(Count());
  app.add_flag("--blend", blends,
               "reuse stored KV of every passage, with a ratio of 0.15, rather than prefill in full");
  app.add_option("--cost", rounds, "only time decoding, so many rounds with and as many without")
      ->check(Count());
  app.add_option("--tokens", tokens, "of a round of --cost (64)")->check(Count());
  ParseOrExit(app, argc, argv);
  const auto questions = server::cli::LoadQuestions(data_path);
  if (!questions.ok()) return ExitCode(questions.status());
  options.learn_correction = "off";
  const auto runtime = ModelRuntime::Load(options);
  if (!runtime.ok()) return ExitCode(runtime.status());
  const auto store = store::ChunkStore::Create({});
  if (!store.ok()) return ExitCode(store.status());
  PromptRunner runner(**runtime, **store);
  Bench bench(**runtime, runner, blends);
  std::printf("%s, %s%s\n", (*runtime)->config.name.c_str(), data_path.c_str(), blends ? ", blended" : "");
  if (rounds > 0) return ExitCode(bench.Cost((*questions)[0], passages, rounds, tokens));
  const absl::Status status = bench.Run(*questions, passages, static_cast<size_t>(limit));
  if (status.ok()) bench.Print();
  return ExitCode(status);
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) { return kvblend::Main(argc, argv); }
