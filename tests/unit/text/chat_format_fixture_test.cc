// Chat formats against transformers' apply_chat_template: tests/fixtures/chat_formats.tsv and chat_ids.tsv,
// written by tests/fixtures/make_chat_fixtures.py. Of each conversation the prompt's text is compared, in a
// vocabulary of bytes whose tokens are read back, and the prompt's ids, with small tokenizers of the
// families.
#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "engine/text/char_class.h"
#include "engine/text/chat_template.h"
#include "engine/text/hugging_face/tokenizer_json.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::text {
namespace {

struct ChatCase {
  std::string format, kind, bos, eos, source, prompt;
  std::string system;
  std::vector<std::pair<Role, std::string>> turns;
};

std::vector<ChatCase> ReadChatCases() {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/fixtures/chat_formats.tsv");
  std::vector<ChatCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> columns = absl::StrSplit(line, '\t');
    for (std::string& column : columns) {
      std::string text;
      EXPECT_TRUE(absl::CUnescape(column, &text)) << column;
      column = text;
    }
    if (columns.size() < 8 || columns.size() % 2 != 0) {
      ADD_FAILURE() << "line " << cases.size() + 1 << " of chat_formats.tsv is malformed";
      return {};
    }
    ChatCase chat{columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], {}, {}};
    for (size_t i = 6; i < columns.size(); i += 2) {
      if (columns[i] == "system") {
        chat.system = columns[i + 1];
      } else {
        chat.turns.emplace_back(columns[i] == "user" ? Role::kUser : Role::kAssistant, columns[i + 1]);
      }
    }
    cases.push_back(std::move(chat));
  }
  return cases;
}

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> eos;
};

// A vocabulary of bytes with the control tokens of all formats.
Model MakeModel(const ChatCase& chat) {
  SmallVocabulary vocabulary;
  Model model;
  vocabulary.spec.bos.reset();
  const auto use = [&](const std::string& name, TokenId token) {
    if (!chat.bos.empty() && name == chat.bos) vocabulary.spec.bos = token;
    if (!chat.eos.empty() && name == chat.eos) model.eos = token;
  };
  for (TokenId token = 0; token < 3; ++token) use(vocabulary.spec.tokens[static_cast<size_t>(token)], token);
  std::vector<std::string> names = {"<|im_sep|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eot_id|>",
                                    "<|channel|>",
                                    "<start_of_turn>",
                                    "<end_of_turn>",
                                    "<|begin_of_text|>",
                                    "<|start|>",
                                    "<|start_of_role|>",
                                    "<|end_of_role|>",
                                    "<|end_of_text|>",
                                    "<|message|>",
                                    "<|end|>",
                                    "<|startoftext|>",
                                    "<|return|>",
                                    "<s>",
                                    "</s>",
                                    "<bos>",
                                    "<eos>"};
  if (chat.format.starts_with("mistral-")) {
    for (const char* name : {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"})
      names.push_back(name);
  }
  if (chat.format == "phi3") {
    for (const char* name : {"<|user|>", "<|assistant|>", "<|system|>"}) names.push_back(name);
  }
  for (const std::string& name : names) use(name, vocabulary.AddNamed(name, kGgufControl));
  vocabulary.spec.eos = model.eos;
  auto tokenizer = Tokenizer::Create(vocabulary.spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  model.tokenizer = *std::move(tokenizer);
  return model;
}

std::unique_ptr<ChatTemplate> MakeTemplate(const Model& model, const ChatCase& chat,
                                           std::string_view format) {
  auto made = ChatTemplate::Create(
      *model.tokenizer,
      {.source = format == "auto" ? chat.source : "",
       .format = format,
       .eos = model.eos,
       .now = absl::FromCivil(absl::CivilSecond(2026, 3, 5, 14, 7, 9), absl::UTCTimeZone())});
  EXPECT_TRUE(made.ok()) << chat.format << ": " << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

// The ids of the prompt, as one text; or, with `cut`, as if a passage came behind so many bytes of the
// question, which are the lead-in then.
absl::StatusOr<std::vector<TokenId>> MakePrompt(const ChatTemplate& chat_template, const ChatCase& chat,
                                                std::optional<size_t> cut) {
  std::vector<ChatTurn> history;
  for (const auto& [role, text] : chat.turns) history.push_back({role, text});
  history.pop_back();
  const std::string_view question = chat.turns.back().second;
  ChatTemplate::WholePrompt prompt;
  if (cut.has_value()) {
    auto opening = chat_template.Open(chat.system, history, question.substr(0, *cut));
    if (!opening.ok()) return opening.status();
    prompt = {*std::move(opening), chat_template.Close(question.substr(*cut))};
  } else {
    auto whole = chat_template.Whole(chat.system, history, question);
    if (!whole.ok()) return whole.status();
    prompt = *std::move(whole);
  }
  std::vector<TokenId> ids;
  for (const auto& part :
       {prompt.opening.system, prompt.opening.history, prompt.opening.lead_in, prompt.question}) {
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

// The whole prompt as text, or "!".
std::string PromptText(const Model& model, const ChatTemplate& chat_template, const ChatCase& chat) {
  const auto whole = MakePrompt(chat_template, chat, std::nullopt);
  const auto parts = MakePrompt(chat_template, chat, std::min<size_t>(chat.turns.back().second.size(), 4));
  EXPECT_EQ(whole.status(), parts.status());
  if (!whole.ok() || !parts.ok()) return "!";
  EXPECT_EQ(absl::StrJoin(*whole, " "), absl::StrJoin(*parts, " "));  // here tokens are bytes
  return model.tokenizer->Decode(*whole, /*skip_special=*/false);
}

TEST(ChatFormatFixtureTest, TemplatesGiveThePromptsOfTransformers) {
  const std::vector<ChatCase> cases = ReadChatCases();
  ASSERT_GE(cases.size(), 150u);
  for (const ChatCase& chat : cases) {
    const Model model = MakeModel(chat);
    const auto chat_template = MakeTemplate(model, chat, "auto");
    ASSERT_NE(chat_template, nullptr) << chat.source;
    EXPECT_EQ(chat_template->format_name(), chat.format) << chat.source;
    std::string expected = chat.prompt;
    const std::string prompt = PromptText(model, *chat_template, chat);
    // A known format is more than its template in two cases.
    if (chat.kind == "strict" && !chat.system.empty()) continue;
    if (chat.kind == "default" && chat.system.empty()) {
      const std::string own = "<|im_start|>system\nI help.<|im_end|>\n";
      ASSERT_EQ(expected.substr(0, own.size()), own);
      expected = expected.substr(own.size());
    }
    if (chat.format == "phi3") {  // its control tokens take the whitespace behind them
      const auto stripped = [](std::string text) {
        for (const char* name : {"<|user|>", "<|assistant|>", "<|system|>", "<|end|>"}) {
          for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
            at += std::string_view(name).size();
            const std::string_view behind = std::string_view(text).substr(at);
            text.erase(at, behind.size() - WithoutSpaceInFront(behind).size());
          }
        }
        return text;
      };
      expected = stripped(expected);
    }
    EXPECT_EQ(prompt, expected) << chat.format << "\n" << chat.source;
  }
}

TEST(ChatFormatFixtureTest, FormatsByNameEqualTheTemplates) {
  for (const ChatCase& chat : ReadChatCases()) {
    if (chat.kind == "template") continue;
    if (chat.kind == "thoughts" && chat.prompt.find("In 1843.") != std::string::npos) continue;
    const Model model = MakeModel(chat);
    const auto by_name = MakeTemplate(model, chat, chat.format);
    const auto by_template = MakeTemplate(model, chat, "auto");
    ASSERT_TRUE(by_name != nullptr && by_template != nullptr);
    EXPECT_EQ(PromptText(model, *by_name, chat), PromptText(model, *by_template, chat)) << chat.format;
    if ((chat.kind == "named" || chat.kind == "thoughts") && chat.format != "phi3") {
      EXPECT_EQ(PromptText(model, *by_name, chat), chat.prompt) << chat.format;
    }
  }
}

// A line of chat_ids.tsv.
struct IdsCase {
  size_t line = 0;  // of chat_formats.tsv, from 0 on
  std::string tokenizer, added;
  bool forged = false;
  std::vector<TokenId> ids;
};

std::vector<IdsCase> ReadIdsCases() {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/fixtures/chat_ids.tsv");
  std::vector<IdsCase> cases;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    IdsCase ids_case;
    bool sound = columns.size() == 5 && absl::SimpleAtoi(columns[0], &ids_case.line) && ids_case.line > 0 &&
                 (columns[1] != "=" || !cases.empty());
    if (sound) {
      --ids_case.line;
      ids_case.tokenizer = columns[1] == "=" ? cases.back().tokenizer : columns[1];
      ids_case.added = columns[2] == "=" ? cases.back().added : columns[2];
      ids_case.forged = columns[3] == "forged";
      const std::vector<std::string> numbers = absl::StrSplit(columns[4], ' ');
      for (const std::string& number : numbers) {
        sound = sound && absl::SimpleAtoi(number, &ids_case.ids.emplace_back());
      }
    }
    if (!sound) {
      ADD_FAILURE() << "line " << cases.size() + 1 << " of chat_ids.tsv is malformed";
      return {};
    }
    cases.push_back(std::move(ids_case));
  }
  return cases;
}

// The family's small tokenizer, with the tokens that are added, and with the format's first and last token.
Model MakeFamilyModel(const IdsCase& ids_case, const ChatCase& chat) {
  std::ifstream file(
      absl::StrCat(KVBLEND_SOURCE_DIR "/tests/fixtures/tokenizers/", ids_case.tokenizer, ".json"));
  std::ostringstream text;
  text << file.rdbuf();
  nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json added = nlohmann::json::parse(ids_case.added, nullptr, /*allow_exceptions=*/false);
  Model model;
  if (!json.is_object() || !added.is_array()) return model;
  for (const nlohmann::json& token : added) json["added_tokens"].push_back(token);
  auto spec = ReadTokenizerJson(json.dump(), ids_case.tokenizer);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return model;
  for (size_t id = 0; id < spec->tokens.size(); ++id) {
    if (spec->token_types[id] != kGgufControl) continue;
    if (spec->tokens[id] == chat.bos) spec->bos = static_cast<TokenId>(id);
    if (spec->tokens[id] == chat.eos) model.eos = static_cast<TokenId>(id);
  }
  spec->eos = model.eos;
  auto tokenizer = Tokenizer::Create(*spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  if (tokenizer.ok()) model.tokenizer = *std::move(tokenizer);
  return model;
}

// What comes before chunks is one text, and the question behind them another: no merge crosses. Where a word
// ends none does in these tokenizers, so the two have the ids of one text there.
size_t EndOfFirstWord(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (absl::ascii_isspace(text[i]) && absl::ascii_isalpha(text[i - 1])) return i;
  }
  return text.size();
}

std::vector<TokenId> PromptIds(const ChatTemplate& chat_template, const ChatCase& chat) {
  const auto whole = MakePrompt(chat_template, chat, std::nullopt);
  const auto parts = MakePrompt(chat_template, chat, EndOfFirstWord(chat.turns.back().second));
  EXPECT_TRUE(whole.ok() && parts.ok()) << whole.status() << parts.status();
  if (!whole.ok() || !parts.ok()) return {};
  EXPECT_EQ(absl::StrJoin(*whole, " "), absl::StrJoin(*parts, " "));
  return *whole;
}

// The ids of transformers, but for what is meant to be otherwise.
std::vector<TokenId> ExpectedIds(const IdsCase& ids_case, const ChatCase& chat, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids = ids_case.ids;
  if (chat.kind == "default" && chat.system.empty()) {
    // Without the system block that the template puts in.
    ids.erase(ids.begin(), std::find(ids.begin() + 1, ids.end(), ids.front()));
  }
  // Models that want BOS get it from us where the template writes none.
  if (tokenizer.add_bos() && ids.front() != tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  return ids;
}

TEST(ChatFormatFixtureTest, PromptsHaveTheIdsOfTransformers) {
  const std::vector<ChatCase> chats = ReadChatCases();
  const std::vector<IdsCase> cases = ReadIdsCases();
  ASSERT_GE(cases.size(), 250u);
  Model model;
  std::unique_ptr<ChatTemplate> by_template, by_name;
  int same = 0;
  int forged = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const IdsCase& ids_case = cases[i];
    ASSERT_LT(ids_case.line, chats.size());
    const ChatCase& chat = chats[ids_case.line];
    const std::string where =
        absl::StrCat("line ", ids_case.line + 1, " with ", ids_case.tokenizer, ", ", chat.format);
    const bool is_new = i == 0 || ids_case.tokenizer != cases[i - 1].tokenizer ||
                        ids_case.added != cases[i - 1].added ||
                        chat.source != chats[cases[i - 1].line].source;
    if (is_new) {
      by_template.reset();
      by_name.reset();  // before the tokenizer that they refer to
      model = MakeFamilyModel(ids_case, chat);
      ASSERT_NE(model.tokenizer, nullptr) << where;
      by_template = MakeTemplate(model, chat, "auto");
      ASSERT_NE(by_template, nullptr) << where;
      if (chat.kind == "named") by_name = MakeTemplate(model, chat, chat.format);
    }
    const std::vector<TokenId> expected = ExpectedIds(ids_case, chat, *model.tokenizer);
    const std::vector<TokenId> ids = PromptIds(*by_template, chat);
    const auto num_control = [&](const std::vector<TokenId>& tokens) {
      return std::ranges::count_if(tokens, [&](TokenId id) { return model.tokenizer->IsSpecial(id); });
    };
    if (by_name != nullptr) {
      EXPECT_EQ(PromptIds(*by_name, chat), ids) << where;
    }
    if (ids_case.forged) {  // here text is text, whatever it says
      EXPECT_LT(num_control(ids), num_control(expected)) << where;
      ++forged;
      continue;
    }
    ++same;
    EXPECT_EQ(absl::StrJoin(ids, " "), absl::StrJoin(expected, " "))
        << where << "\n  ours: " << absl::CHexEscape(model.tokenizer->Decode(ids, /*skip_special=*/false))
        << "\n  transformers': "
        << absl::CHexEscape(model.tokenizer->Decode(expected, /*skip_special=*/false));
  }
  EXPECT_GE(same, 220);
  EXPECT_GE(forged, 10);
}

// What a server keeps of a conversation is found by its tokens, also without passages.
TEST(ChatFormatFixtureTest, APromptBeginsWithThatOfTheTurnBefore) {
  const std::vector<ChatCase> chats = ReadChatCases();
  std::set<std::string> compared;
  for (const IdsCase& ids_case : ReadIdsCases()) {
    const ChatCase& chat = chats[ids_case.line];
    if (chat.kind != "named" || ids_case.forged || chat.turns.size() < 3) continue;
    // These put the system text into the last turn, which is another one then.
    const bool moves = chat.format == "mistral-v3" || chat.format == "mistral-tekken";
    if (moves && !chat.system.empty()) continue;
    // What the model writes first does not join with the line break before it, as in one text it might.
    if (absl::ascii_isspace(chat.turns[chat.turns.size() - 2].second.front())) continue;
    const Model model = MakeFamilyModel(ids_case, chat);
    ASSERT_NE(model.tokenizer, nullptr);
    const auto chat_template = MakeTemplate(model, chat, "auto");
    ASSERT_NE(chat_template, nullptr);
    ChatCase before = chat;
    before.turns.resize(before.turns.size() - 2);
    if (before.turns.back().first != Role::kUser) continue;
    const auto now = MakePrompt(*chat_template, chat, std::nullopt);
    const auto then = MakePrompt(*chat_template, before, std::nullopt);
    ASSERT_TRUE(now.ok() && then.ok());
    const auto differ = std::ranges::mismatch(*then, *now);
    EXPECT_EQ(differ.in1 - then->begin(), std::ssize(*then))
        << chat.format << " with " << ids_case.tokenizer << "\n  then: " << absl::StrJoin(*then, " ")
        << "\n  now: " << absl::StrJoin(*now, " ");
    compared.insert(chat.format);
  }
  EXPECT_GE(compared.size(), 12u);
}

}  // namespace
}  // namespace kvblend::text
