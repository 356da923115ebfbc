#include "server/cli/load/conversations.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/cli/load/arrivals.h"
#include "server/cli/load/zipf.h"

namespace kvblend::server::cli {
namespace {

constexpr int kDefaultZipfPassages = 10;

int UniformInt(int least, int most, std::mt19937_64& random) {
  return least + static_cast<int>(UniformDraw(random) * (static_cast<double>(most) - least + 1));
}

/// All passages of the questions, each once, in a random order.
std::vector<Passage> ShuffledPassages(const std::vector<BenchQuestion>& questions, std::mt19937_64& random) {
  std::vector<Passage> passages;
  std::set<std::pair<std::string, std::string>> known;
  for (const BenchQuestion& question : questions) {
    for (const Passage& passage : question.passages) {
      if (known.emplace(passage.title, passage.text).second) passages.push_back(passage);
    }
  }
  // Fisher and Yates'; std::shuffle differs between libraries.
  for (size_t i = passages.size(); i > 1; --i) {
    std::swap(passages[i - 1], passages[UniformInt(0, static_cast<int>(i) - 1, random)]);
  }
  return passages;
}

}  // namespace

absl::StatusOr<OutputLength> ParseOutputLength(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('-', 1));
  OutputLength length;
  bool is_number = absl::SimpleAtoi(parts.first, &length.least);
  length.most = length.least;
  if (text.find('-') != std::string::npos)
    is_number = is_number && absl::SimpleAtoi(parts.second, &length.most);
  if (!is_number || length.least < 1 || length.most < length.least) {
    return absl::InvalidArgumentError(
        absl::StrCat("output-tokens is '", text, "'; allowed: a number of at least 1, or two such as 16-64"));
  }
  return length;
}

v1::GenerateRequest Conversation::Request(int turn, const std::vector<std::string>& answers,
                                          const BenchVariant& mode,
                                          const std::string& tenant_namespace) const {
  v1::GenerateRequest request;
  request.set_namespace_(tenant_namespace);
  *request.mutable_prompt() = prompt;
  request.mutable_prompt()->set_question(questions[turn]);
  if (turn > 0) {
    request.mutable_prompt()->clear_lead_in();
    request.mutable_prompt()->clear_chunks();
  }
  for (int i = 0; i < turn; ++i) {
    v1::Turn& asked = *request.mutable_prompt()->add_history();
    asked.set_role(v1::ROLE_USER);
    asked.set_text(questions[i]);
    if (i == 0) {  // the turn whose question came with the chunks
      asked.set_lead_in(prompt.lead_in());
      *asked.mutable_chunks() = prompt.chunks();
    }
    v1::Turn& answered = *request.mutable_prompt()->add_history();
    answered.set_role(v1::ROLE_ASSISTANT);
    answered.set_text(answers[i]);
  }
  *request.mutable_blend() = mode.blend_options();
  request.mutable_blend()->set_store_misses(false);
  request.mutable_sampling()->set_max_tokens(output_tokens[turn]);
  request.mutable_sampling()->set_ignore_eos(true);
  return request;
}

absl::StatusOr<std::vector<Conversation>> MakeConversations(const std::vector<BenchQuestion>& questions,
                                                            const ConversationOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<Passage> pool;
  int passages = options.passages;
  if (options.zipf) {
    pool = ShuffledPassages(questions, random);
    if (passages == 0) passages = kDefaultZipfPassages;
    if (passages > static_cast<int>(pool.size())) {
      return absl::InvalidArgumentError(absl::StrCat("passages is ", passages, ", but these questions have ",
                                                     pool.size(), " different ones together"));
    }
  }
  const ZipfChoice choice(std::max<int>(1, static_cast<int>(pool.size())), options.zipf.value_or(0));
  const int count = options.count > 0 ? options.count : static_cast<int>(questions.size());
  std::vector<Conversation> conversations;
  conversations.reserve(count);
  for (int i = 0; i < count; ++i) {
    BenchQuestion first = questions[i % questions.size()];
    if (options.zipf) {
      first.passages.clear();
      for (const int drawn : choice.Draw(passages, random)) first.passages.push_back(pool[drawn]);
    }
    Conversation& conversation = conversations.emplace_back();
    conversation.prompt = MakePrompt(first, passages);
    for (int turn = 0; turn < options.turns; ++turn) {
      const BenchQuestion& asked = questions[(static_cast<size_t>(i) + turn) % questions.size()];
      conversation.questions.push_back(MakePrompt(asked, 1).question());
      conversation.output_tokens.push_back(UniformInt(options.output.least, options.output.most, random));
    }
  }
  return conversations;
}

std::vector<ChunkGroup> GroupChunks(const std::vector<Conversation>& conversations, bool isolated) {
  std::vector<ChunkGroup> groups;
  std::map<std::pair<std::string, std::string>, size_t> group_of;  // by system text and lead-in
  std::set<std::pair<size_t, std::string>> known;                  // by group
  for (const Conversation& conversation : conversations) {
    const v1::Prompt& prompt = conversation.prompt;
    const std::pair<std::string, std::string> anchor =
        isolated ? std::pair<std::string, std::string>() : std::pair(prompt.system_text(), prompt.lead_in());
    const auto [found, is_new] = group_of.emplace(anchor, groups.size());
    if (is_new) groups.push_back({.system_text = anchor.first, .lead_in = anchor.second, .chunks = {}});
    for (const std::string& chunk : prompt.chunks()) {
      if (known.emplace(found->second, chunk).second) groups[found->second].chunks.push_back(chunk);
    }
  }
  return groups;
}

}  // namespace kvblend::server::cli
