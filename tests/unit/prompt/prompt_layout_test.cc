#include "engine/prompt/prompt_layout.h"

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/prompt_too_long.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/text/model_tokenizer.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::prompt {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using text::ChatTemplate;
using text::SmallVocabulary;
using text::TokenId;
using text::Tokenizer;

constexpr char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

std::vector<TokenId> TokensOf(const PromptLayout& layout, const Span& span) {
  return {layout.token_ids.begin() + span.begin, layout.token_ids.begin() + span.end};
}

// Every byte is one token, so that positions can be counted by eye.
class PromptLayoutTest : public testing::Test {
 protected:
  void SetUp() override { Load(/*add_bos=*/false); }

  void Load(bool add_bos) {
    SmallVocabulary vocabulary;
    vocabulary.spec.bos = SmallVocabulary::kEndOfText;
    vocabulary.spec.add_bos = add_bos;
    tokenizer_ = *Tokenizer::Create(vocabulary.spec);
    template_ = *ChatTemplate::Create(*tokenizer_, {.source = kChatMl});
  }

  absl::StatusOr<PromptLayout> Build(const Prompt& input, const PromptLimits& limits = {}) const {
    return BuildPromptLayout(input, *tokenizer_, *template_, limits);
  }

  std::string Read(const std::vector<TokenId>& tokens) const {
    return tokenizer_->Decode(tokens, /*skip_special=*/false);
  }

  std::vector<std::string> ReadSpans(const PromptLayout& layout) const {
    std::vector<std::string> texts;
    for (const Span& span : layout.spans) texts.push_back(Read(TokensOf(layout, span)));
    return texts;
  }

  void ExpectRefusal(const Prompt& input, const std::string& message, const PromptLimits& limits = {}) const {
    const absl::Status status = Build(input, limits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), message);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
};

// The first token of the answer follows from the question's last one.
TEST_F(PromptLayoutTest, AQuestionWithoutTokensIsRefused) {
  template_ = *ChatTemplate::Create(*tokenizer_,
                                    {.source = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"});
  ExpectRefusal({.chunks = {"chunk"}, .question = " \n"},
                "question has no tokens in this model's chat format; allowed: one or more");
}

// What a server keeps of a conversation is found by its tokens.
TEST(NextTurnTest, BeginsWithTheTokensOfTheTurnBefore) {
  const auto tokenizer = text::LoadModelTokenizer("smollm");
  ASSERT_NE(tokenizer, nullptr);
  const auto chat_template = ChatTemplate::Create(*tokenizer, {.source = text::LoadModelChatTemplate()});
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const auto tokens = [&](const Prompt& prompt) {
    const auto layout = BuildPromptLayout(prompt, *tokenizer, **chat_template, {});
    EXPECT_TRUE(layout.ok()) << layout.status();
    return layout->token_ids;
  };
  // As one text they would have other tokens where chunks meet.
  const std::vector<std::string> chunks = {"Paris\nParis is in France.\n\n", "Rome\nRome is in Italy.\n\n",
                                           " x", "y"};
  std::vector<Turn> history;
  for (const std::string& system_text : {std::string(), std::string("Be brief.")}) {
    for (const std::string& lead_in : {std::string(), std::string("Passages:\n\n")}) {
      history.clear();
      std::vector<TokenId> before;
      for (const char* question : {"Where is Paris?", "\nAnd Rome?", "Why?"}) {
        const bool first = history.empty();
        const Prompt prompt{.system_text = system_text,
                            .lead_in = first ? lead_in : "",
                            .chunks = first ? chunks : std::vector<std::string>(),
                            .question = question,
                            .history = history};
        const std::vector<TokenId> now = tokens(prompt);
        ASSERT_GT(now.size(), before.size());
        EXPECT_EQ(before, std::vector<TokenId>(now.begin(), now.begin() + before.size())) << question;
        before = now;
        history.push_back({Role::kUser, prompt.question, prompt.lead_in, prompt.chunks});
        history.push_back({Role::kAssistant, "In France."});
      }
    }
  }
}

TEST_F(PromptLayoutTest, ChunksWithoutTextChangeNothing) {
  // As one text, line breaks before and in the question are one token.
  SmallVocabulary vocabulary;
  vocabulary.AddMerge("\n", "\n");
  tokenizer_ = *Tokenizer::Create(vocabulary.spec);
  template_ = *ChatTemplate::Create(*tokenizer_, {.source = kChatMl});
  for (const std::vector<Turn>& history :
       {std::vector<Turn>(), std::vector<Turn>{{Role::kUser, "\n\nQ"}, {Role::kAssistant, "A"}}}) {
    std::vector<Turn> with_empty = history;
    if (!with_empty.empty()) with_empty[0].chunks = {""};
    const auto plain = Build({.question = "\n\nQ", .history = history});
    const auto empty = Build({.chunks = {"", ""}, .question = "\n\nQ", .history = with_empty});
    ASSERT_TRUE(plain.ok() && empty.ok()) << plain.status() << empty.status();
    EXPECT_EQ(plain->token_ids, empty->token_ids);
    EXPECT_FALSE(plain->anchor_is_prefix);
  }
}

TEST_F(PromptLayoutTest, CountsChunksOfEarlierTurns) {
  const std::vector<Turn> history = {{Role::kUser, "q", "", {"a", "b"}}, {Role::kAssistant, "r"}};
  const PromptLimits limits{.max_chunks = 2};
  EXPECT_TRUE(Build({.question = "Q", .history = history}, limits).ok());
  ExpectRefusal({.chunks = {"c"}, .question = "Q", .history = history},
                "chunks, earlier turns' with them, has 3 entries; allowed: up to 2", limits);
  ExpectRefusal({.question = "Q", .history = {{Role::kUser, "q", "", {"a", "\xFE"}}}},
                "history[0].chunks[1] is not valid UTF-8: byte 0xFE at offset 0 of 1; allowed: valid UTF-8");
}

TEST_F(PromptLayoutTest, LaysEverySpanInOrder) {
  const auto layout = Build({.system_text = "S",
                             .lead_in = "L:",
                             .chunks = {"one ", "", "two "},
                             .question = "Q?",
                             .history = {{Role::kUser, "hi"}, {Role::kAssistant, "ho"}}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(
      ReadSpans(*layout),
      ElementsAre("<|im_start|>system\nS<|im_end|>\n",
                  "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n",
                  "<|im_start|>user\nL:", "one ", "", "two ", "Q?<|im_end|>\n<|im_start|>assistant\n"));
  std::vector<SpanKind> kinds;
  std::vector<int32_t> chunk_indices;
  for (const Span& span : layout->spans) {
    kinds.push_back(span.kind);
    chunk_indices.push_back(span.chunk_index);
  }
  EXPECT_THAT(kinds, ElementsAre(SpanKind::kSystem, SpanKind::kHistory, SpanKind::kLeadIn, SpanKind::kChunk,
                                 SpanKind::kChunk, SpanKind::kChunk, SpanKind::kQuestion));
  EXPECT_THAT(chunk_indices, ElementsAre(-1, -1, -1, 0, 1, 2, -1));
  EXPECT_EQ(Read(layout->anchor_ids), "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nL:");
  EXPECT_FALSE(layout->anchor_is_prefix);
}

TEST_F(PromptLayoutTest, WithoutSystemTextTheAnchorIsTheUserOpening) {
  const auto layout = Build({.question = "Q"});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(ReadSpans(*layout),
              ElementsAre("", "", "<|im_start|>user\n", "Q<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(Read(layout->anchor_ids), "<|im_start|>user\n");
  EXPECT_TRUE(layout->anchor_is_prefix);
}

TEST_F(PromptLayoutTest, BosBeginsPromptAndAnchor) {
  Load(/*add_bos=*/true);
  for (const char* system_text : {"", "S"}) {
    const auto layout = Build({.system_text = system_text, .question = "Q", .history = {{Role::kUser, "x"}}});
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->token_ids.front(), SmallVocabulary::kEndOfText);
    EXPECT_EQ(layout->anchor_ids.front(), SmallVocabulary::kEndOfText);
    EXPECT_EQ(layout->spans[0].kind, SpanKind::kSystem);
    EXPECT_GE(layout->spans[0].size(), 1);
  }
}

TEST_F(PromptLayoutTest, RefusesBadInputNamingFieldValueAndWhatIsAllowed) {
  ExpectRefusal({.chunks = {"a"}}, "question is empty; allowed: at least one character");
  ExpectRefusal({.system_text = "ab\xFF", .question = "Q"},
                "system_text is not valid UTF-8: byte 0xFF at offset 2 of 3; allowed: valid UTF-8");
  ExpectRefusal({.lead_in = "\x80", .question = "Q"},
                "lead_in is not valid UTF-8: byte 0x80 at offset 0 of 1; allowed: valid UTF-8");
  ExpectRefusal({.question = "Q\xC3"},
                "question is not valid UTF-8: byte 0xC3 at offset 1 of 2; allowed: valid UTF-8");
  ExpectRefusal({.chunks = {"a", "b", "c", "d\xE4\xB8"}, .question = "Q"},
                "chunks[3] is not valid UTF-8: byte 0xE4 at offset 1 of 3; allowed: valid UTF-8");
  ExpectRefusal({.question = "Q", .history = {{Role::kUser, "a"}, {Role::kAssistant, "\xFE"}}},
                "history[1].text is not valid UTF-8: byte 0xFE at offset 0 of 1; allowed: valid UTF-8");
  ExpectRefusal({.chunks = {"a", "b"}, .question = "Q"}, "chunks has 2 entries; allowed: up to 1",
                {.max_chunks = 1});
}

TEST_F(PromptLayoutTest, CountsTokensAgainstTheLimit) {
  const Prompt input = {.chunks = {std::string(100, 'c')}, .question = "Q"};
  const auto layout = Build(input);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto count = static_cast<int32_t>(layout->token_ids.size());
  EXPECT_TRUE(Build(input, {.max_prompt_tokens = count}).ok());
  ExpectRefusal(
      input,
      "the prompt has " + std::to_string(count) + " tokens; allowed: up to " + std::to_string(count - 1),
      {.max_prompt_tokens = count - 1});
  ExpectRefusal(input, "the prompt has " + std::to_string(count) + " tokens; allowed: up to 1",
                {.max_prompt_tokens = 1});
}

// Tokenizing megabytes only to tell how many tokens they have would keep others waiting.
TEST_F(PromptLayoutTest, OfAMuchTooLongPromptNotAllIsCounted) {
  const std::string text(9000, 'x');
  for (const Prompt& input : {
           Prompt{.question = text},
           Prompt{.lead_in = "L", .question = text},
           Prompt{.system_text = text, .question = "Q"},
           Prompt{.lead_in = text, .question = "Q"},
           Prompt{.chunks = {"a", text}, .question = "Q"},
           Prompt{.question = "Q", .history = {{Role::kUser, text}, {Role::kAssistant, "A"}}},
           Prompt{.chunks = std::vector<std::string>(10, text.substr(0, 900)), .question = "Q"},
       }) {
    ExpectRefusal(input, "the prompt has more than 8202 tokens; allowed: up to 10",
                  {.max_prompt_tokens = 10});
    EXPECT_TRUE(IsPromptTooLong(Build(input, {.max_prompt_tokens = 10}).status()));
    EXPECT_TRUE(Build(input, {.max_prompt_tokens = 10'000}).ok());
  }
  EXPECT_EQ(std::string(ChunkTokens(text, "chunks[1]", *tokenizer_, 10).status().message()),
            "chunks[1] has more than 8202 tokens; allowed: up to 10");
  EXPECT_EQ(ChunkTokens(text, "chunks[1]", *tokenizer_, 808)->size(), 9000);
  EXPECT_EQ(std::string(AnchorTokens(text, "", *template_, -1).status().message()),
            "the anchor (system_text and lead_in) has more than 8192 tokens; allowed: up to 0");
  EXPECT_GT(AnchorTokens(text, "", *template_, 9000)->size(), 9000);
}

TEST_F(PromptLayoutTest, RandomPromptsAreCoveredAndChunksKeepTheirTokens) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto word = [&](unsigned max) {
    std::string result;
    for (unsigned length = random() % (max + 1); length > 0; --length)
      result.push_back("ab \n'<|"[random() % 7]);
    return result;
  };
  for (int round = 0; round < 500; ++round) {
    Prompt input = {.system_text = word(5), .lead_in = word(5), .question = "?" + word(5)};
    for (unsigned count = random() % 5; count > 0; --count) input.chunks.push_back(word(12));
    for (unsigned count = random() % 3; count > 0; --count) {
      input.history.push_back({random() % 2 == 0 ? Role::kUser : Role::kAssistant, word(6)});
    }
    const auto layout = Build(input);
    ASSERT_TRUE(layout.ok()) << layout.status();
    int32_t position = 0;
    for (const Span& span : layout->spans) {
      ASSERT_EQ(span.begin, position);
      ASSERT_GE(span.end, span.begin);
      position = span.end;
      if (span.kind != SpanKind::kChunk) continue;
      const auto alone = ChunkTokens(input.chunks[span.chunk_index], "chunk", *tokenizer_);
      ASSERT_TRUE(alone.ok());
      ASSERT_EQ(TokensOf(*layout, span), *alone);
    }
    ASSERT_EQ(position, static_cast<int32_t>(layout->token_ids.size()));
    const auto anchor = AnchorTokens(input.system_text, input.lead_in, *template_);
    ASSERT_TRUE(anchor.ok());
    ASSERT_EQ(layout->anchor_ids, *anchor);
    ASSERT_EQ(layout->anchor_is_prefix, input.history.empty());
    if (layout->anchor_is_prefix) {
      ASSERT_TRUE(std::equal(anchor->begin(), anchor->end(), layout->token_ids.begin()));
    }
  }
}

TEST_F(PromptLayoutTest, PrecomputeRefusesBrokenUtf8Too) {
  const absl::Status chunk = ChunkTokens("a\xFF", "chunks[7].text", *tokenizer_).status();
  EXPECT_EQ(chunk.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(chunk.message()), AllOf(HasSubstr("chunks[7].text"), HasSubstr("offset 1")));
  EXPECT_EQ(AnchorTokens("\xFF", "", *template_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AnchorTokens("", "\xFF", *template_).status().code(), absl::StatusCode::kInvalidArgument);
}

// tests/fixtures/tokenizer_prompts.json: Hugging Face `tokenizers` on the prompts of CacheBlend's evaluation,
// each span encoded with special tokens recognised.
TEST(PromptFixtureTest, MusiquePromptsEqualHuggingFaceTokenizers) {
  const std::unique_ptr<Tokenizer> tokenizer = text::LoadModelTokenizer("smollm");
  ASSERT_NE(tokenizer, nullptr);
  const auto chat_template = ChatTemplate::Create(*tokenizer, {.source = text::LoadModelChatTemplate()});
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/fixtures/tokenizer_prompts.json");
  const nlohmann::json fixture = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(fixture.is_object());
  ASSERT_GE(fixture["cases"].size(), 3u);
  for (const nlohmann::json& fixture_case : fixture["cases"]) {
    Prompt input;
    input.system_text = fixture["system_text"].get<std::string>();
    input.lead_in = fixture["lead_in"].get<std::string>();
    input.chunks = fixture_case["chunks"].get<std::vector<std::string>>();
    input.question = fixture_case["question"].get<std::string>();
    const auto layout = BuildPromptLayout(input, *tokenizer, **chat_template, {});
    ASSERT_TRUE(layout.ok()) << layout.status();

    const auto expected = fixture_case["span_ids"].get<std::vector<std::vector<TokenId>>>();
    ASSERT_EQ(expected.size(), input.chunks.size() + 2);
    EXPECT_EQ(layout->anchor_ids, expected.front());
    EXPECT_TRUE(layout->anchor_is_prefix);
    std::vector<TokenId> all;
    for (const auto& span : expected) all.insert(all.end(), span.begin(), span.end());
    EXPECT_EQ(layout->token_ids, all);
    for (const Span& span : layout->spans) {
      if (span.kind == SpanKind::kChunk) {
        EXPECT_EQ(TokensOf(*layout, span), expected[span.chunk_index + 1]);
      }
      if (span.kind == SpanKind::kQuestion) {
        EXPECT_EQ(TokensOf(*layout, span), expected.back());
      }
    }
  }
}

// A chunk goes on behind the lead-in, so that SentencePiece's space in front is not for it.
TEST(ChunkTokensTest, ChunksGetNoSpaceInFront) {
  text::TokenizerSpec spec;
  spec.model = text::TokenizerModel::kSentencePieceBpe;
  spec.tokens = {"<unk>", "\u2581", "a", "\u2581a"};
  spec.scores = {0, -3, -2, -1};
  spec.token_types = {text::kGgufUnknown, text::kGgufNormal, text::kGgufNormal, text::kGgufNormal};
  spec.add_space_prefix = true;
  const auto tokenizer = text::Tokenizer::Create(spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("a a"), (std::vector<text::TokenId>{3, 3}));
  const auto tokens = ChunkTokens("a a", "text", **tokenizer);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, (std::vector<text::TokenId>{2, 3}));
}

}  // namespace
}  // namespace kvblend::prompt
