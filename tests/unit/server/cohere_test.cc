#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cohere/attended_parts.h"
#include "server/cohere/chat_answer.h"
#include "server/cohere/chat_request.h"
#include "server/cohere/citations.h"

namespace kvblend::server::cohere {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::vector<std::string> kDocuments = {
    "Westhaven\nThe harbour of Westhaven was built in 1852 by the engineer Ada Lorne.\n\n",
    "Ada Lorne\nAda Lorne was born in the mountain village of Skarn and studied in Delft.\n\n",
    "Skarn\nSkarn lies at the foot of Mount Hollen, which is 2,340 metres high.\n\n"};

std::vector<std::string> Cited(std::string_view answer, double min_weight = 1.4,
                               std::string_view question = "") {
  std::vector<std::string> cited;
  for (const Citation& citation : CitationFinder(kDocuments, question).Find(answer, min_weight)) {
    cited.push_back(
        absl::StrCat(std::string(answer.substr(citation.begin_byte, citation.end_byte - citation.begin_byte)),
                     " <- ", absl::StrJoin(citation.documents, ",")));
  }
  return cited;
}

TEST(CitationsTest, WhatIsCopiedNamesItsDocument) {
  EXPECT_THAT(Cited("She was born in the Mountain village of SKARN, I believe."),
              ElementsAre("was born in the Mountain village of SKARN <- 1"));
  EXPECT_THAT(Cited("Mount Hollen is 2,340 metres high; it was built in 1852 by the engineer."),
              ElementsAre("Mount Hollen <- 2", "is 2,340 metres high <- 2",
                          "was built in 1852 by the engineer <- 0"));
}

TEST(CitationsTest, DocumentsThatSayTheSameAreAllSources) {
  EXPECT_THAT(Cited("It was made by one Ada Lorne."), ElementsAre("Ada Lorne <- 0,1"));
}

TEST(CitationsTest, OwnWordsAndTheQuestionsAreNotCited) {
  EXPECT_THAT(Cited("I can't tell where that engineer might have been."), IsEmpty());
  EXPECT_THAT(Cited("The harbour of Westhaven", 1.4, "Who built the harbour of Westhaven?"), IsEmpty());
  EXPECT_THAT(Cited(""), IsEmpty());
  EXPECT_THAT(Cited("?!"), IsEmpty());
  EXPECT_THAT(CitationFinder({}, "").Find("Ada Lorne"), IsEmpty());
}

TEST(CitationsTest, CharactersStayWhole) {
  const std::vector<std::string> documents = {"Žluťoučký kůň úpěl ďábelské ódy v údolí řeky Sázavy."};
  const std::string answer = "Kůň? „kůň úpěl ďábelské ódy v údolí“";
  const auto citations = CitationFinder(documents, "").Find(answer, 1.25);
  ASSERT_THAT(citations, SizeIs(1));
  EXPECT_EQ(answer.substr(citations[0].begin_byte, citations[0].end_byte - citations[0].begin_byte),
            "kůň úpěl ďábelské ódy v údolí");

  // Scripts without spaces.
  const std::vector<std::string> chinese = {"奥斯陆是挪威的首都。", "卑尔根在海边。"};
  const auto cited = CitationFinder(chinese, "").Find("我说挪威的首都！", 2);
  ASSERT_THAT(cited, SizeIs(1));
  EXPECT_THAT(cited[0].documents, ElementsAre(0));
}

// Against a search that tries every run in every place.
TEST(CitationsTest, FindsWhatASlowSearchFinds) {
  std::mt19937 random(7);
  const auto text = [&](int words) {
    std::string made;
    for (int i = 0; i < words; ++i) absl::StrAppend(&made, i == 0 ? "" : " ", "w", random() % 12);
    return made;
  };
  for (int round = 0; round < 200; ++round) {
    // In long ones each word is followed by all others, and so are many runs.
    const int words = round % 10 == 0 ? 1000 : 20;
    const std::vector<std::string> documents = {text(words), text(words), text(5)};
    const std::string answer = text(30);
    const auto found = CitationFinder(documents, "w3").Find(answer, 0.5);
    int64_t end = 0;
    for (const Citation& citation : found) {
      EXPECT_GE(citation.begin_byte, end);
      end = citation.end_byte;
      const std::string run = answer.substr(citation.begin_byte, end - citation.begin_byte);
      std::vector<int32_t> holds;
      for (int32_t i = 0; i < 3; ++i) {
        if (absl::StrContains(absl::StrCat(" ", documents[i], " "), absl::StrCat(" ", run, " ")))
          holds.push_back(i);
      }
      EXPECT_EQ(citation.documents, holds) << run;
      // One word more stands in none of them.
      const size_t next = answer.find(' ', end + 1);
      if (end < static_cast<int64_t>(answer.size())) {
        const std::string longer = answer.substr(citation.begin_byte, next - citation.begin_byte);
        for (const std::string& document : documents) {
          EXPECT_FALSE(absl::StrContains(absl::StrCat(" ", document, " "), absl::StrCat(" ", longer, " ")));
        }
      }
    }
  }
}

// What repeats itself for ever is the worst case of a search that tries every place.
TEST(CitationsTest, TimeDoesNotGrowWithRepetition) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "a b ";
  const CitationFinder finder({text, text}, "");
  EXPECT_THAT(finder.Find("b b a a b b"), IsEmpty());
  EXPECT_THAT(finder.Find(text.substr(0, 40'000)), SizeIs(1));
}

using AttributedTokens = google::protobuf::RepeatedPtrField<v1::AttributedToken>;

/// A token of each of the texts, with what it attends to.
AttributedTokens Tokens(const std::vector<std::pair<std::string, std::vector<std::pair<int, float>>>>& said) {
  AttributedTokens tokens;
  int64_t at = 0;
  for (const auto& [text, chunks] : said) {
    v1::AttributedToken& token = *tokens.Add();
    token.set_begin_byte(at);
    token.set_end_byte(at += static_cast<int64_t>(text.size()));
    for (const auto& [index, attention] : chunks) {
      v1::ChunkAttention& chunk = *token.add_chunks();
      chunk.set_index(index);
      chunk.set_attention(attention);
    }
  }
  return tokens;
}

std::vector<std::string> Attended(const std::string& answer, const AttributedTokens& tokens,
                                  const std::vector<Citation>& copied = {}) {
  std::vector<std::string> cited;
  for (const Citation& citation : CiteAttended(answer, tokens, copied, 0.25)) {
    cited.push_back(absl::StrCat(answer.substr(citation.begin_byte, citation.end_byte - citation.begin_byte),
                                 " <- ", absl::StrJoin(citation.documents, ",")));
  }
  return cited;
}

TEST(AttendedPartsTest, AClauseNamesWhatItsTokensAttendToOnAverage) {
  const AttributedTokens tokens = Tokens({{"In", {{0, 0.75}, {1, 0.125}}},
                                          {" Delft", {{0, 0.25}}},
                                          {",", {{0, 1}}},
                                          {" she", {{2, 0.5}}},
                                          {" sang", {{1, 0.25}}},
                                          {".", {}}});
  EXPECT_THAT(Attended("In Delft, she sang.", tokens), ElementsAre("In Delft <- 0", "she sang <- 2"));
  // The comma is no part of a clause; half as much is enough for a second document, a quarter is not.
  EXPECT_THAT(Attended("a", Tokens({{"a", {{3, 1}, {1, 0.5}, {0, 0.25}}}})), ElementsAre("a <- 1,3"));
  EXPECT_THAT(Attended("a b", Tokens({{"a", {{0, 0.4}}}, {" b", {{1, 0.4}}}})), IsEmpty());
  EXPECT_THAT(Attended("", {}), IsEmpty());
  EXPECT_THAT(Attended("?!", Tokens({{"?!", {{0, 1}}}})), IsEmpty());
}

TEST(AttendedPartsTest, WhatWasCopiedIsNotCitedAgain) {
  const AttributedTokens tokens = Tokens({{"In Delft,", {{0, 1}}}, {" she sang", {{1, 1}}}});
  EXPECT_THAT(Attended("In Delft, she sang", tokens, {{.begin_byte = 14, .end_byte = 18, .documents = {2}}}),
              ElementsAre("In Delft <- 0"));
}

// A token may end one clause and begin the next, and tokens without text are part of where they stand.
TEST(AttendedPartsTest, TokensAcrossClauses) {
  const AttributedTokens tokens = Tokens({{"One", {{0, 1}}},
                                          {", two", {{1, 1}}},
                                          {"", {{1, 1}}},
                                          {". 3: four", {{2, 1}}},
                                          {"! ", {{3, 1}}},
                                          {"five", {{0, 1}}}});
  EXPECT_THAT(Attended("One, two. 3: four! five", tokens),
              ElementsAre("One <- 0", "two <- 1", "3 <- 2", "four <- 2", "five <- 0"));
  EXPECT_THAT(Attended("One, two. 3: four! five", tokens,
                       {{.begin_byte = 0, .end_byte = 3, .documents = {9}},
                        {.begin_byte = 6, .end_byte = 17, .documents = {9}}}),
              ElementsAre("five <- 0"));
}

// What the model has not read, the last token, counts neither way.
TEST(AttendedPartsTest, TheEndThatWasCutOff) {
  EXPECT_THAT(Attended("a b", Tokens({{"a", {{0, 0.25}}}, {" b", {}}})), ElementsAre("a b <- 0"));
}

TEST(AttendedPartsTest, ClausesEndWhereWhitespaceFollows) {
  const auto parts = [](const std::string& answer) { return Attended(answer, Tokens({{answer, {{0, 1}}}})); };
  EXPECT_THAT(parts("It is 2,340.5 m: high!\nÜber e.g. x"),
              ElementsAre("It is 2,340.5 m <- 0", "high <- 0", "Über e.g <- 0", "x <- 0"));
  EXPECT_THAT(parts("奥斯陆。卑尔根，海"), ElementsAre("奥斯陆 <- 0", "卑尔根 <- 0", "海 <- 0"));
}

TEST(CohereRequestTest, AttentionIsMeasuredForCitations) {
  const auto measured = [](const std::string& members) {
    const auto chat = ParseChatRequest(absl::StrCat(
        R"({"messages": [{"role": "user", "content": "Where?"}], "documents": ["a"])", members, "}"));
    EXPECT_TRUE(chat.ok()) << chat.status();
    return std::pair(chat->request.sampling().attribution(), chat->attribution);
  };
  EXPECT_EQ(measured(""), std::pair(true, false));
  EXPECT_EQ(measured(R"(, "citation_options": {"mode": "ACCURATE"})"), std::pair(true, false));
  EXPECT_EQ(measured(R"(, "citation_options": {"mode": "FAST"})"), std::pair(false, false));
  EXPECT_EQ(measured(R"(, "citation_options": {"mode": "OFF"})"), std::pair(false, false));
  EXPECT_EQ(measured(R"(, "citation_options": {"mode": "OFF"}, "kvblend": {"attribution": true})"),
            std::pair(true, true));
  EXPECT_FALSE(ParseChatRequest(R"({"messages": [{"role": "user", "content": "Where?"}]})")
                   ->request.sampling()
                   .attribution());
}

TEST(CohereRequestTest, DocumentsBecomeChunksAndSources) {
  const auto chat =
      ParseChatRequest(R"({"model": "m", "messages": [{"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Where?"}],
      "documents": ["plain", {"id": "a", "data": {"title": "Oslo", "text": "A city.", "year": 1048}},
                    {"data": {"snippet": "Bergen"}}],
      "k": 5, "p": 0.5, "seed": 0, "max_tokens": 9, "stop_sequences": ["x"], "citation_options": {"mode": "FAST"}})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  const v1::Prompt& prompt = chat->request.prompt();
  EXPECT_THAT(prompt.chunks(), ElementsAre("plain\n\n", "Oslo\nyear: 1048\nA city.\n\n", "Bergen\n\n"));
  EXPECT_EQ(prompt.system_text(), "Be brief.");
  EXPECT_EQ(prompt.question(), "Where?");
  ASSERT_THAT(chat->sources, SizeIs(3));
  EXPECT_EQ(chat->sources[0].id, "doc:0");
  EXPECT_EQ(chat->sources[1].id, "a");
  EXPECT_EQ(chat->sources[2].id, "doc:2");
  EXPECT_EQ(chat->request.sampling().top_k(), 5);
  EXPECT_EQ(chat->request.sampling().top_p(), 0.5);
  EXPECT_EQ(chat->request.sampling().temperature(), 0.3);
  EXPECT_NE(chat->request.sampling().seed(), 0);  // 0 would be: choose one
  EXPECT_THAT(chat->request.sampling().stop(), ElementsAre("x"));
  EXPECT_TRUE(chat->citations);
}

TEST(CohereRequestTest, MembersOfADocumentThatAreNullAreAbsent) {
  const auto with = [](const std::string& data) {
    return ParseChatRequest(absl::StrCat(
        R"({"messages": [{"role": "user", "content": "Where?"}], "documents": [{"data": )", data, "}]}"));
  };
  const auto chat = with(R"({"title": null, "text": "A city.", "year": null, "author": "x"})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_THAT(chat->request.prompt().chunks(), ElementsAre("author: x\nA city.\n\n"));
  EXPECT_THAT(std::string(with(R"({"text": null})").status().message()),
              HasSubstr("documents[0].data has only members that are null; allowed: one or more others"));
  EXPECT_TRUE(with(R"({"text": ""})").ok());
}

TEST(CohereRequestTest, PrioritiesBehindTheHighestAreLow) {
  const auto priority = [](const std::string& members) {
    const auto chat = ParseChatRequest(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "Where?"}])", members, "}"));
    EXPECT_TRUE(chat.ok()) << chat.status();
    return chat->request.priority();
  };
  EXPECT_EQ(priority(""), v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(priority(R"(, "priority": 0)"), v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(priority(R"(, "priority": 1)"), v1::PRIORITY_LOW);
  EXPECT_EQ(priority(R"(, "priority": 999)"), v1::PRIORITY_LOW);
  EXPECT_EQ(priority(R"(, "kvblend": {"priority": "high"})"), v1::PRIORITY_HIGH);
}

TEST(CohereRequestTest, WhatChangesNothingIsTaken) {
  EXPECT_TRUE(ParseChatRequest(R"({"messages": [{"role": "user", "content": "Where?"}], "strict_tools": false,
      "tools": [], "tool_choice": "NONE", "safety_mode": "OFF", "thinking": {"type": "disabled"},
      "raw_prompting": false, "response_format": {"type": "text"}})")
                  .ok());
}

TEST(CohereRequestTest, WhatIsNotThereIsRefusedByName) {
  const auto refusal = [](const std::string& members) {
    const auto chat = ParseChatRequest(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "Where?"}])", members, "}"));
    EXPECT_FALSE(chat.ok()) << members;
    return std::string(chat.status().message());
  };
  EXPECT_THAT(refusal(R"(, "tools": [{"type": "function"}])"), HasSubstr("tools"));
  EXPECT_THAT(refusal(R"(, "p": 7)"), HasSubstr("p is 7"));
  EXPECT_THAT(refusal(R"(, "k": 501)"), HasSubstr("k is 501"));
  EXPECT_THAT(refusal(R"(, "documents": [{"id": "a"}])"), HasSubstr("documents[0].data is not set"));
  EXPECT_THAT(
      refusal(absl::StrCat(R"(, "documents": [{"data": "x", "id": ")", std::string(257, 'i'), R"("}])")),
      HasSubstr("documents[0].id has 257 bytes; allowed: at most 256"));
  EXPECT_THAT(refusal(R"(, "documents": [{"data": {"barcode": 98765432109876543210987}}])"),
              HasSubstr("documents[0].data.barcode is a number of 2^64 or more; allowed: as a string"));
  EXPECT_THAT(refusal(R"(, "documents": [{"data": {"title": ["x"]}}])"),
              HasSubstr("documents[0].data.title"));
  EXPECT_THAT(refusal(R"(, "citation_options": {"mode": "MAYBE"})"), HasSubstr("'MAYBE'"));
  EXPECT_THAT(refusal(R"(, "response_format": {"type": "json_object"})"), HasSubstr("response_format.type"));
  EXPECT_THAT(refusal(R"(, "frequency_penalty": 1.5)"),
              HasSubstr("frequency_penalty is 1.5; allowed: 0 to 1"));
  EXPECT_THAT(refusal(R"(, "priority": -1)"), HasSubstr("priority is -1; allowed: an integer from 0 to 999"));
  EXPECT_THAT(refusal(R"(, "priority": 1000)"), HasSubstr("priority is 1000"));
  EXPECT_THAT(refusal(R"(, "priority": "high")"), HasSubstr("priority is \"high\""));
  EXPECT_THAT(refusal(R"(, "priority": 0, "kvblend": {"priority": "high"})"),
              HasSubstr("priority is 0 and kvblend.priority is set"));
  EXPECT_THAT(refusal(R"(, "thinking": {"type": "enabled"})"),
              HasSubstr("thinking.type is \"enabled\"; allowed: \"disabled\""));
  EXPECT_THAT(refusal(R"(, "strict_tools": true)"), HasSubstr("strict_tools is true"));
  EXPECT_THAT(refusal(R"(, "raw_prompting": true)"), HasSubstr("raw_prompting is true"));
  EXPECT_THAT(refusal(R"(, "safety_mode": "STRICT")"), HasSubstr("safety_mode is \"STRICT\""));
  EXPECT_THAT(refusal(R"(, "colour": "red")"), HasSubstr("colour"));
  EXPECT_THAT(std::string(ParseChatRequest("{}").status().message()), HasSubstr("messages"));
}

v1::GenerateEvent TextEvent(const std::string& text) {
  v1::GenerateEvent event;
  event.mutable_text()->set_text(text);
  return event;
}

TEST(CohereAnswerTest, CitationsCountCharacters) {
  ChatRequest request;
  for (const std::string& document : kDocuments) request.request.mutable_prompt()->add_chunks(document);
  for (int i = 0; i < 3; ++i)
    request.sources.push_back({.id = absl::StrCat("d", i), .data = {{"text", kDocuments[i]}}});
  for (const bool stream : {false, true}) {
    request.stream = stream;
    ChatAnswer answer("chat-1", request);
    v1::GenerateEvent event;
    event.mutable_prompt()->set_prompt_tokens(5);
    std::string out = answer.Add(event);
    out += answer.Add(TextEvent("Ünd: "));
    out += answer.Add(TextEvent("born in the mountain village of Skarn and studied in Delft"));
    event.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
    event.mutable_finished()->mutable_usage()->set_completion_tokens(3);
    out += answer.Add(event);
    if (!stream) {
      const Json body = Json::parse(answer.Body());
      const Json& citation = body["message"]["citations"][0];
      EXPECT_EQ(citation["start"], 5);
      EXPECT_EQ(citation["end"], 5 + 58);
      EXPECT_EQ(citation["sources"][0]["id"], "d1");
      EXPECT_EQ(body["finish_reason"], "MAX_TOKENS");
      EXPECT_EQ(body["usage"]["tokens"]["output_tokens"], 3);
      EXPECT_EQ(out, "");
      continue;
    }
    std::vector<std::string> types;
    size_t at = 0;
    while ((at = out.find("event: ", at)) != std::string::npos) {
      types.push_back(out.substr(at + 7, out.find('\n', at) - at - 7));
      ++at;
    }
    EXPECT_THAT(types, ElementsAre("message-start", "content-start", "content-delta", "content-delta",
                                   "content-end", "citation-start", "citation-end", "message-end"));
    EXPECT_THAT(answer.Failed(absl::InternalError("lost")), HasSubstr("\"error\":\"lost\""));
  }
}

TEST(CohereAnswerTest, EventsAreOneLineForAllReaders) {
  const std::string text = "in the village\u2028of\u2029Skarn\u0085";
  ChatRequest request;
  request.stream = true;
  ChatAnswer answer("chat-1", request);
  const std::string event = answer.Add(TextEvent(text));
  EXPECT_THAT(event, HasSubstr(R"(in the village\u2028of\u2029Skarn\u0085)"));
  EXPECT_EQ(Json::parse(event.substr(event.find('{')))["delta"]["message"]["content"]["text"], text);
}

TEST(CohereAnswerTest, DocumentsAreLookedIntoOnce) {
  ChatRequest request;
  request.request.mutable_prompt()->add_chunks(kDocuments[0]);
  request.sources.push_back({.id = "d", .data = {{"text", kDocuments[0]}}});
  const ChatAnswer whole("chat-1", request);
  ASSERT_NE(whole.documents(), nullptr);
  EXPECT_FALSE(Json::parse(whole.Body())["message"].contains("citations"));
  EXPECT_EQ(&whole.documents()->finder(), &whole.documents()->finder());
  request.citations = false;
  EXPECT_EQ(ChatAnswer("chat-1", request).documents(), nullptr);
}

TEST(CohereAnswerTest, DocumentsAreNotRepeatedWithoutBound) {
  ChatRequest request;
  std::string document, said;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&document, "a", i, " b", i, " c", i, ". ");
  for (int i = 0; i < 40; i += 2) absl::StrAppend(&said, "a", i, " b", i, " c", i, "; ");
  request.request.mutable_prompt()->add_chunks(document);
  request.sources.push_back({.id = "d", .data = {{"text", document + std::string(1 << 20, ' ')}}});
  ChatAnswer answer("chat-1", request);
  answer.Add(TextEvent(said));
  const std::string body = answer.Body();
  EXPECT_LT(body.size(), kMaxCitedBytes + (1 << 20));
  const Json citations = Json::parse(body)["message"]["citations"];
  ASSERT_THAT(citations, SizeIs(20));
  EXPECT_TRUE(citations.front()["sources"][0].contains("document"));
  EXPECT_FALSE(citations.back()["sources"][0].contains("document"));
  EXPECT_EQ(citations.back()["sources"][0]["id"], "d");
}

TEST(CohereAnswerTest, CanBeSentBack) {
  ChatRequest request;
  for (const std::string& document : kDocuments) request.request.mutable_prompt()->add_chunks(document);
  for (const std::string& document : kDocuments)
    request.sources.push_back({.id = "d", .data = {{"text", document}}});
  ChatAnswer answer("chat-1", request);
  answer.Add(TextEvent("Born in the mountain village of Skarn."));
  v1::GenerateEvent event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_END_OF_TEXT);
  event.mutable_finished()->set_seed(17'000'000'000'000'000'000u);
  answer.Add(event);
  const Json body = Json::parse(answer.Body());
  Json message = body["message"];
  ASSERT_THAT(message["citations"], SizeIs(1));
  // Cohere's client adds these.
  message["tool_plan"] = nullptr;
  message["tool_calls"] = nullptr;
  const Json turns = Json::array(
      {{{"role", "user"}, {"content", "Where?"}}, message, {{"role", "user"}, {"content", "And?"}}});
  const auto chat =
      ParseChatRequest(Json({{"messages", turns}, {"seed", body["kvblend"]["finished"]["seed"]}}).dump());
  ASSERT_TRUE(chat.ok()) << chat.status();
  ASSERT_THAT(chat->request.prompt().history(), SizeIs(2));
  EXPECT_EQ(chat->request.prompt().history(1).text(), "Born in the mountain village of Skarn.");
  EXPECT_EQ(chat->request.sampling().seed(), 17'000'000'000'000'000'000u);
}

TEST(CohereAnswerTest, WhatWasCopiedAndWhatWasAttendedToInTheOrderOfTheAnswer) {
  for (const auto& [asked, only_copied] : {std::pair(false, false), {true, false}, {true, true}}) {
    ChatRequest request;
    request.attribution = asked;
    request.only_copied = only_copied;
    for (const std::string& document : kDocuments) {
      request.request.mutable_prompt()->add_chunks(document);
      request.sources.push_back(
          {.id = absl::StrCat("d", request.sources.size()), .data = {{"text", document}}});
    }
    ChatAnswer answer("chat-1", request);
    answer.Add(TextEvent("Ünd hoch, studied in Delft and born in the mountain village of Skarn; da."));
    v1::GenerateEvent event;
    *event.mutable_finished()->mutable_attributions() =
        Tokens({{"Ünd hoch", {{2, 0.75}}},
                {", studied in Delft and born in the mountain village of Skarn;", {{2, 1}}},
                {" da.", {{0, 0.0625}}}});
    answer.Add(event);
    const Json body = Json::parse(answer.Body());
    const Json& citations = body["message"]["citations"];
    EXPECT_EQ(body["kvblend"]["finished"]["attributions"].size(), asked ? 3 : 0);
    if (only_copied) {
      ASSERT_THAT(citations, SizeIs(2)) << citations;
      EXPECT_EQ(citations[0]["start"], 10);
      continue;
    }
    ASSERT_THAT(citations, SizeIs(3)) << citations;
    EXPECT_EQ(citations[0]["text"], "Ünd hoch");
    EXPECT_EQ(citations[0]["end"], 8);
    EXPECT_EQ(citations[0]["sources"][0]["id"], "d2");
    EXPECT_EQ(citations[1]["sources"][0]["id"], "d1");
    EXPECT_EQ(citations[2]["sources"][0]["id"], "d1");
  }
}

}  // namespace
}  // namespace kvblend::server::cohere
