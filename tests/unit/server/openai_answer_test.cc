#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/openai/generation_answer.h"

namespace kvblend::server::openai {
namespace {

const AnswerHead kHead = {.id = "id-1", .created = 5, .model = "m", .fingerprint = "fp_1"};

std::vector<v1::GenerateEvent> Events() {
  std::vector<v1::GenerateEvent> events;
  for (
      const char* text :
      {R"(prompt { prompt_tokens: 15 kept_tokens: 5 exact_tokens: 3 reused_tokens: 4 recomputed_tokens: 1 computed_tokens: 2 })",
       R"(text { text: "Os" token_ids: 1 logprobs { token_id: 1 text: "Os" logprob: -0.5 bytes: "Os" }
                     top_logprobs { tokens { token_id: 1 text: "Os" logprob: -0.5 bytes: "Os" } } })",
       R"(text { text: "lo\"" token_ids: 2 begin_character: 2
                     logprobs { token_id: 2 text: "lo\357\277\275" logprob: -0.25 bytes: "lo\305" }
                     top_logprobs { tokens { token_id: 3 text: "x" logprob: -0.125 bytes: "x" } } })",
       R"(finished { reason: FINISH_REASON_STOP_STRING stop_string: "." usage { prompt_tokens: 10 completion_tokens: 2 }
                         seed: 9 })"}) {
    google::protobuf::TextFormat::ParseFromString(text, &events.emplace_back());
  }
  return events;
}

Json Body(const AnswerForm& form) {
  GenerationAnswer answer(form, kHead);
  for (const v1::GenerateEvent& event : Events()) EXPECT_EQ(answer.Add(event), "");
  return Json::parse(answer.Body());
}

/// The objects of a stream, whose form and end are checked.
std::vector<Json> Stream(const AnswerForm& form) {
  GenerationAnswer answer(form, kHead);
  std::string stream;
  for (const v1::GenerateEvent& event : Events()) stream += answer.Add(event);
  std::vector<Json> objects;
  std::vector<std::string> events = absl::StrSplit(stream, "\n\n");
  EXPECT_EQ(events.back(), "");
  events.pop_back();
  EXPECT_EQ(events.back(), "data: [DONE]");
  events.pop_back();
  for (const std::string& event : events) objects.push_back(Json::parse(absl::StripPrefix(event, "data: ")));
  return objects;
}

TEST(GenerationAnswerTest, AWholeChatAnswer) {
  Json body = Body({.chat = true});
  EXPECT_EQ(body["kvblend"]["prompt"]["exact_tokens"], 3);
  EXPECT_EQ(body["kvblend"]["finished"]["seed"], "9");
  body.erase("kvblend");
  EXPECT_EQ(body, Json::parse(R"({"id": "id-1", "object": "chat.completion", "created": 5, "model": "m",
      "system_fingerprint": "fp_1",
      "choices": [{"index": 0, "message": {"role": "assistant", "content": "Oslo\"", "refusal": null}, "logprobs": null,
                   "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 12}}})"));
}

TEST(GenerationAnswerTest, LogprobsOfAChat) {
  EXPECT_EQ(Body({.chat = true, .logprobs = true, .top_logprobs = 1})["choices"][0]["logprobs"],
            Json::parse("{\"refusal\": null, \"content\": ["
                        "{\"token\": \"Os\", \"logprob\": -0.5, \"bytes\": [79, 115],"
                        " \"top_logprobs\": [{\"token\": \"Os\", \"logprob\": -0.5, \"bytes\": [79, 115]}]},"
                        "{\"token\": \"lo\uFFFD\", \"logprob\": -0.25, \"bytes\": [108, 111, 197],"
                        " \"top_logprobs\": [{\"token\": \"x\", \"logprob\": -0.125, \"bytes\": [120]}]}]}"));
}

TEST(GenerationAnswerTest, ATextCompletionWithLogprobs) {
  const Json body = Body({.chat = false, .logprobs = true, .top_logprobs = 1});
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(
      body["choices"][0],
      Json::parse(
          "{\"index\": 0, \"text\": \"Oslo\\\"\", \"finish_reason\": \"stop\", \"logprobs\": {"
          "\"tokens\": [\"Os\", \"lo\uFFFD\"], \"token_logprobs\": [-0.5, -0.25],"
          "\"top_logprobs\": [{\"Os\": -0.5}, {\"x\": -0.125, \"lo\uFFFD\": -0.25}], \"text_offset\": [0, 2]}}"));
}

TEST(GenerationAnswerTest, OffsetsOfACompletionCountCharacters) {
  for (const bool stream : {false, true}) {
    GenerationAnswer answer({.chat = false, .stream = stream, .logprobs = true}, kHead);
    std::string events;
    for (
        const char* text :
        {R"(text { text: "Žluť" token_ids: [ 1, 2 ] logprobs { text: "Žl" } logprobs { text: "uť" } })",
         R"(text { text: "" token_ids: 3 begin_character: 4 logprobs { text: "\357\277\275" } })",
         R"(text { text: "" token_ids: [ 4, 5 ] begin_character: 4 logprobs { text: "挪" } logprobs { text: "😀" } })",
         R"(text { text: "挪😀." token_ids: 6 begin_character: 6 logprobs { text: "." } })",
         R"(finished { reason: FINISH_REASON_END_OF_TEXT })"}) {
      v1::GenerateEvent event;
      ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &event)) << text;
      events += answer.Add(event);
    }
    if (!stream) {
      EXPECT_EQ(Json::parse(answer.Body())["choices"][0]["logprobs"]["text_offset"],
                Json::array({0, 2, 4, 4, 5, 6}));
    } else {
      for (const char* offsets : {"[0,2]", "[4]", "[4,5]", "[6]"})
        EXPECT_THAT(events, ::testing::HasSubstr(absl::StrCat("\"text_offset\":", offsets)));
    }
  }
}

TEST(GenerationAnswerTest, ACompletionTellsTheChosenTokenBesideTheMostLikely) {
  GenerationAnswer answer({.chat = false, .logprobs = true, .top_logprobs = 1}, kHead);
  v1::GenerateEvent event;
  google::protobuf::TextFormat::ParseFromString(
      R"(text { text: "y" token_ids: 2 logprobs { token_id: 2 text: "y" logprob: -3.5 }
                top_logprobs { tokens { token_id: 1 text: "x" logprob: -0.5 } } })",
      &event);
  answer.Add(event);
  EXPECT_EQ(Json::parse(answer.Body())["choices"][0]["logprobs"]["top_logprobs"],
            Json::parse(R"([{"x": -0.5, "y": -3.5}])"));
}

TEST(GenerationAnswerTest, OfTokensWithOneTextACompletionTellsTheMostLikely) {
  GenerationAnswer answer({.chat = false, .logprobs = true, .top_logprobs = 3}, kHead);
  v1::GenerateEvent event;
  google::protobuf::TextFormat::ParseFromString(
      R"(text { text: "x" token_ids: 1 logprobs { token_id: 1 text: "x" logprob: -1.5 }
                top_logprobs { tokens { token_id: 7 text: "\357\277\275" logprob: -0.5 }
                               tokens { token_id: 1 text: "x" logprob: -1.5 }
                               tokens { token_id: 8 text: "\357\277\275" logprob: -2.5 } } })",
      &event);
  answer.Add(event);
  EXPECT_EQ(Json::parse(answer.Body())["choices"][0]["logprobs"]["top_logprobs"],
            Json::parse("[{\"\uFFFD\": -0.5, \"x\": -1.5}]"));
}

TEST(GenerationAnswerTest, AChatAsAStream) {
  const std::vector<Json> objects = Stream({.chat = true, .stream = true, .include_usage = true});
  ASSERT_EQ(objects.size(), 5);
  for (const Json& object : objects) {
    EXPECT_EQ(object["id"], "id-1");
    EXPECT_EQ(object["object"], "chat.completion.chunk");
  }
  EXPECT_EQ(objects[0]["choices"][0]["delta"], Json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(objects[1]["choices"][0]["delta"], Json::parse(R"({"content": "Os"})"));
  EXPECT_EQ(objects[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(objects[1]["usage"], nullptr);
  EXPECT_EQ(objects[2]["choices"][0]["delta"], Json::parse(R"({"content": "lo\""})"));
  EXPECT_EQ(objects[3]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(objects[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(objects[3]["kvblend"]["prompt"]["reused_tokens"], 4);
  EXPECT_EQ(objects[4]["choices"], Json::array());
  EXPECT_EQ(objects[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 12);
}

TEST(GenerationAnswerTest, EventsAreOneLineForAllReaders) {
  // Such as those that cut a text at whatever Unicode takes for the end of a line.
  const std::string text = "a\u2028b\u2029c\u0085d\u00a0\u2027\u202a\n";
  GenerationAnswer answer({.chat = true, .stream = true}, kHead);
  v1::GenerateEvent event;
  event.mutable_text()->set_text(text);
  const std::string sent = answer.Add(event);
  EXPECT_THAT(sent, ::testing::HasSubstr("a\\u2028b\\u2029c\\u0085d\u00a0\u2027\u202a\\n"));
  EXPECT_EQ(Json::parse(absl::StripPrefix(sent, "data: "))["choices"][0]["delta"]["content"], text);
  EXPECT_THAT(ServerSentEvent("{\"label\":\"\u2028\"}"), ::testing::HasSubstr("\\u2028"));
}

TEST(GenerationAnswerTest, ATextCompletionAsAStream) {
  const std::vector<Json> objects = Stream({.chat = false, .stream = true, .logprobs = true});
  ASSERT_EQ(objects.size(), 3);
  EXPECT_EQ(objects[1]["choices"][0]["text"], "lo\"");
  EXPECT_EQ(objects[1]["choices"][0]["logprobs"]["text_offset"], Json::array({2}));
  EXPECT_EQ(objects[1]["choices"][0]["logprobs"]["top_logprobs"], Json::array({nullptr}));
  EXPECT_EQ(objects[2]["choices"][0]["text"], "");
  EXPECT_FALSE(objects[2].contains("usage"));
}

TEST(GenerationAnswerTest, ReasonsToEndAreOpenAIs) {
  for (const auto& [reason, name] :
       {std::pair{v1::FINISH_REASON_END_OF_TEXT, "stop"}, std::pair{v1::FINISH_REASON_STOP_STRING, "stop"},
        std::pair{v1::FINISH_REASON_MAX_TOKENS, "length"},
        std::pair{v1::FINISH_REASON_CONTEXT_FULL, "length"}}) {
    GenerationAnswer answer({}, kHead);
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason(reason);
    answer.Add(event);
    EXPECT_EQ(Json::parse(answer.Body())["choices"][0]["finish_reason"], name);
  }
}

TEST(GenerationAnswerTest, HeadersTellOfThePrompt) {
  const auto headers = ReportHeaders(Events()[0].prompt());
  EXPECT_THAT(headers, ::testing::Contains(::testing::Pair("kvblend-reused-tokens", "4")));
  EXPECT_THAT(headers, ::testing::Contains(::testing::Pair("kvblend-prompt-tokens", "15")));
}

}  // namespace
}  // namespace kvblend::server::openai
