// Chat formats against jinja2 as transformers runs it: tests/fixtures/chat_formats.tsv, written by
// tests/fixtures/make_chat_fixtures.py. Of each conversation the tokens are read back with control tokens by
// name.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "engine/text/chat_template.h"
#include "gtest/gtest.h"
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

// The whole prompt as text, or "!".
std::string PromptText(const Model& model, const ChatTemplate& chat_template, const ChatCase& chat) {
  std::vector<ChatTurn> history;
  for (const auto& [role, text] : chat.turns) history.push_back({role, text});
  history.pop_back();
  // The question's own beginning is the lead-in, as if a passage came between.
  const std::string& question = chat.turns.back().second;
  const auto opening = chat_template.Open(chat.system, history, question.substr(0, 4));
  if (!opening.ok()) return "!";
  std::string text;
  for (const auto& tokens : {opening->system, opening->history, opening->lead_in,
                             chat_template.Close(std::string_view(question).substr(4))}) {
    text += model.tokenizer->Decode(tokens, /*skip_special=*/false);
  }
  return text;
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
            size_t end = at += std::string_view(name).size();
            while (end < text.size() && absl::ascii_isspace(text[end])) ++end;
            text.erase(at, end - at);
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

}  // namespace
}  // namespace kvblend::text
