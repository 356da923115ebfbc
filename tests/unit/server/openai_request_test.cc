#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/prompt_too_long.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/openai/chunk_request.h"
#include "server/openai/error.h"
#include "server/openai/generation_request.h"
#include "tests/support/message_text.h"

namespace kvblend::server::openai {
namespace {

using ::testing::HasSubstr;

std::string Ask(const std::string& more) {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": "Q"}])", more.empty() ? "" : ", ", more,
                      "}");
}

#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
/// Parses a body for which the address space has no room: 100 if that was refused, as the exit code of a
/// process of its own.
[[noreturn]] void ParseWithoutMemory() {
  const std::string body = absl::StrCat(R"({"prompt": ")", std::string(64 << 20, 'x'), "\"}");
  rlimit room;
  getrlimit(RLIMIT_AS, &room);
  room.rlim_cur = 1 << 20;  // less than is in use
  setrlimit(RLIMIT_AS, &room);
  const absl::Status status = ParseCompletionRequest(body).status();
  std::_Exit(absl::IsResourceExhausted(status) ? 100 : 101);
}
#endif

TEST(ParseRequestDeathTest, WithoutMemoryForItABodyIsRefused) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "the sanitizer ends a process that gets no memory";
#else
  EXPECT_EXIT(ParseWithoutMemory(), testing::ExitedWithCode(100), "");
#endif
}

TEST(ParseChatRequestTest, ReadsEverySamplingField) {
  const auto parsed = ParseChatRequest(Ask(R"(
      "model": "m", "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false},
      "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "repetition_penalty": 1.5, "seed": 7, "stop": ["a", "b"],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "ignore_eos": true, "n": 1, "presence_penalty": 0.5,
      "frequency_penalty": -1, "logit_bias": {"7": -100, "8": 0.5}, "user": "u", "metadata": {"a": "b"}, "store": false, "tools": [],
      "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"], "service_tier": "auto",
      "parallel_tool_calls": true)"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->model, "m");
  EXPECT_TRUE(parsed->form.chat);
  EXPECT_TRUE(parsed->form.stream);
  EXPECT_TRUE(parsed->form.include_usage);
  EXPECT_TRUE(parsed->form.logprobs);
  EXPECT_EQ(parsed->form.top_logprobs, 3);
  test_support::ExpectMessage(parsed->request, R"(
      prompt { question: "Q" }
      sampling { temperature: 0.5  top_p: 0.25  top_k: 0  min_p: 0.125  repetition_penalty: 1.5  seed: 7  stop: [ "a", "b" ]
                 max_tokens: 9  top_logprobs: 3  ignore_eos: true  presence_penalty: 0.5  frequency_penalty: -1
                 logit_bias { key: 7  value: -100 }  logit_bias { key: 8  value: 0.5 } })");
}

TEST(ParseChatRequestTest, DefaultsAreOpenAIs) {
  const auto parsed = ParseChatRequest(Ask(""));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->form.stream);
  test_support::ExpectMessage(parsed->request, R"(prompt { question: "Q" } sampling { temperature: 1 })");
}

TEST(ParseChatRequestTest, EverySeedIsOne) {
  const auto seed = [](const std::string& value) {
    const auto parsed = ParseChatRequest(Ask(absl::StrCat("\"seed\": ", value)));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->request.sampling().seed();
  };
  EXPECT_EQ(seed("-1"), 18446744073709551615u);
  EXPECT_EQ(seed("-9223372036854775808"), 9223372036854775808u);
  EXPECT_EQ(seed("18446744073709551615"), 18446744073709551615u);
  EXPECT_EQ(seed("17000000000000000000"), 17000000000000000000u);
  EXPECT_EQ(seed("\"17000000000000000000\""), 17000000000000000000u) << "as reports write it";
  EXPECT_NE(seed("0"), 0) << "0 asks the engine to choose";
  EXPECT_EQ(seed(absl::StrCat(seed("0"))), seed("0")) << "told, and sent back";
  EXPECT_EQ(
      ParseCompletionRequest(R"({"prompt": "Q", "seed": 17000000000000000000})")->request.sampling().seed(),
      17000000000000000000u);
}

TEST(ParseChatRequestTest, WholeNumbersMayBeWrittenAsOthers) {
  const auto parsed = ParseChatRequest(Ask(R"("max_tokens": 3.0, "seed": 7.0, "top_k": 5e0, "n": 1.0)"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->request.sampling().max_tokens(), 3);
  EXPECT_EQ(parsed->request.sampling().seed(), 7);
  EXPECT_EQ(parsed->request.sampling().top_k(), 5);
  for (const std::string field :
       {R"("max_tokens": 1e10)", R"("max_tokens": 0.0)", R"("seed": 1e17)", R"("seed": 1e300)"})
    EXPECT_FALSE(ParseChatRequest(Ask(field)).ok()) << field;
}

TEST(ParseChatRequestTest, ValuesThatAskForNothingAreAccepted) {
  for (const std::string fields :
       {R"("store": null, "service_tier": null, "prediction": null)",
        R"("store": false, "service_tier": "default", "prediction": {})", R"("service_tier": "auto")"}) {
    EXPECT_TRUE(ParseChatRequest(Ask(fields)).ok()) << fields;
  }
}

TEST(ParseChatRequestTest, MessagesBecomeThePartsOfAPrompt) {
  const auto parsed = ParseChatRequest(R"({"messages": [
      {"role": "system", "content": "S"}, {"role": "developer", "content": [{"type": "text", "text": "D"}]},
      {"role": "user", "content": [{"type": "text", "text": "u1 "}, {"type": "text", "text": "u2"}]},
      {"role": "assistant", "content": "a", "refusal": null, "tool_calls": null, "annotations": []},
      {"role": "user", "content": [
        {"type": "text", "text": "lead "}, {"type": "text", "text": "in"},
        {"type": "document", "title": "T", "citations": {"enabled": false},
         "source": {"type": "text", "media_type": "text/plain", "data": "document"}},
        {"type": "text", "text": "between", "cache_control": {"type": "ephemeral"}},
        {"type": "search_result", "source": "https://example.org", "title": "R",
         "content": [{"type": "text", "text": "result "}, {"type": "text", "text": "text\n"}]},
        {"type": "document", "source": {"type": "content", "content": "inner"}},
        {"type": "text", "text": "question?"}]}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  test_support::ExpectMessage(parsed->request, R"(
      prompt { system_text: "S\n\nD"
               history { role: ROLE_USER chunks: "u1 " text: "u2" } history { role: ROLE_ASSISTANT text: "a" }
               lead_in: "lead in"
               chunks: [ "T\ndocument\n\n", "between", "R\nresult text\n", "inner\n\n" ]  question: "question?" }
      sampling { temperature: 1 })");
}

TEST(ParseChatRequestTest, EarlierTurnsKeepTheirParts) {
  const std::string first = R"({"role": "user", "content": [
      {"type": "text", "text": "lead in"}, {"type": "document", "source": {"type": "text", "data": "one"}},
      {"type": "text", "text": "between"}, {"type": "search_result", "title": "T", "content": "two\n"},
      {"type": "text", "text": "question?"}]})";
  const std::string parts = R"(
      lead_in: "lead in" chunks: [ "one\n\n", "between", "T\ntwo\n" ])";
  const auto once = ParseChatRequest(absl::StrCat(R"({"messages": [)", first, "]}"));
  ASSERT_TRUE(once.ok()) << once.status();
  test_support::ExpectMessage(
      once->request,
      absl::StrCat("prompt {", parts, R"( question: "question?" } sampling { temperature: 1 })"));
  const auto twice = ParseChatRequest(absl::StrCat(R"({"messages": [)", first, R"(,
      {"role": "assistant", "content": [{"type": "text", "text": "an"}, {"type": "text", "text": "swer"}]},
      {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "alone"}}]},
      {"role": "assistant", "content": "a"}, {"role": "user", "content": "next?"}]})"));
  ASSERT_TRUE(twice.ok()) << twice.status();
  test_support::ExpectMessage(
      twice->request, absl::StrCat("prompt { history { role: ROLE_USER text: \"question?\"", parts, R"( }
          history { role: ROLE_ASSISTANT text: "answer" }
          history { role: ROLE_USER chunks: "alone\n\n" } history { role: ROLE_ASSISTANT text: "a" }
          question: "next?" } sampling { temperature: 1 })"));
}

TEST(ParseChatRequestTest, TextsBeforeTheLastAreChunksWhenThereAreNoDocuments) {
  const auto parsed = ParseChatRequest(R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "c1"}, {"type": "text", "text": "c2"}, {"type": "text", "text": "q"}]}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  test_support::ExpectMessage(parsed->request.prompt(), R"(chunks: [ "c1", "c2" ] question: "q")");
}

TEST(ParseChatRequestTest, DocumentsAndTheExtension) {
  const auto parsed =
      ParseChatRequest(Ask(R"("documents": [{"title": "T", "text": "x", "id": 5}, {"text": "y\n"}, "z"],
      "kvblend": {"namespace": "n", "lead_in": "L", "priority": "low", "split": "none", "attribution": true,
                  "blend": {"policy": "hkvd", "ratio": 0.5, "read_namespaces": ["c"]}})"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  test_support::ExpectMessage(parsed->request, R"(
      namespace: "n"
      prompt { lead_in: "L" chunks: [ "T\nx\n\n", "y\n", "z\n\n" ] question: "Q" split: PROMPT_SPLIT_NONE }
      blend { policy: POLICY_HKVD ratio: 0.5 read_namespaces: "c" }
      sampling { temperature: 1 attribution: true } priority: PRIORITY_LOW)");
}

TEST(ParseChatRequestTest, WhatCannotBeDoneIsRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("n": 2)", "n"},
      {R"("presence_penalty": "much")", "presence_penalty"},
      {R"("logit_bias": [1, 2])", "logit_bias"},
      {R"("logit_bias": {"the": 2})", "logit_bias"},
      {R"("logit_bias": {"1": "2"})", "logit_bias"},
      {R"("logit_bias": {"05": 2})", "logit_bias"},
      {R"("logit_bias": {" 5": 2})", "logit_bias"},
      {R"("response_format": {"type": "json_object"})", "response_format.type"},
      {R"("response_format": {"type": "text", "schema": {}})", "response_format.schema"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"other": 1})", "stream_options.other"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": 5000000000)", "max_tokens"},
      {R"("max_tokens": 1, "max_completion_tokens": 2)", "max_tokens"},
      {R"("seed": 18446744073709551616)", "seed"},
      {R"("seed": -9223372036854775809)", "seed"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": "-1")", "seed"},
      {R"("seed": " 1")", "seed"},
      {R"("seed": true)", "seed"},
      {R"("store": true)", "store"},
      {R"("service_tier": "flex")", "service_tier"},
      {R"("service_tier": "priority")", "service_tier"},
      {R"("service_tier": 1)", "service_tier"},
      {R"("prediction": {"type": "content", "content": "x"})", "prediction"},
      {R"("reasoning_effort": "low")", "reasoning_effort"},
      {R"("verbosity": "high")", "verbosity"},
      {R"("moderation": {"model": "m"})", "moderation"},
      {R"("audio": {"voice": "v"})", "audio"},
      {R"("modalities": ["text", "audio"])", "modalities"},
      {R"("web_search_options": {"search_context_size": "low"})", "web_search_options"},
      {R"("stop": [1])", "stop"},
      {R"("stop": {})", "stop"},
      {R"("temperature": "hot")", "temperature"},
      {R"("stream": 1)", "stream"},
      {R"("model": 1)", "model"},
      {R"("documents": {})", "documents"},
      {R"("documents": [{"title": "only"}])", "documents[0].text"},
      {R"("documents": ["a", {"text": "b", "body": "c"}])", "documents[1].body"},
      {R"("documents": [1])", "documents[0]"},
      {R"("kvblend": {"blend": {"polcy": "hkvd"}})", "kvblend.blend"},
      {R"("kvblend": {"blend": 1})", "kvblend.blend"},
      {R"("kvblend": {"ratio": 1})", "kvblend.ratio"},
      {R"("something": null)", "something"},
  };
  for (const auto& [fields, param] : cases) {
    const auto parsed = ParseChatRequest(Ask(fields));
    ASSERT_FALSE(parsed.ok()) << fields;
    const Error error = ErrorOf(parsed.status());
    EXPECT_EQ(error.http_status, 400);
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.message, HasSubstr(param.substr(0, param.find('.')))) << fields;
  }
}

TEST(ParseChatRequestTest, ADocumentMayBeAStringSaysWhatRefusesOne) {
  EXPECT_THAT(ParseChatRequest(Ask(R"("documents": [1])")).status().message(),
              HasSubstr("documents[0] is no document; allowed: an object or a string"));
}

TEST(ParseChatRequestTest, NoMessagesAreToldFromWhatIsNoArray) {
  EXPECT_EQ(ParseChatRequest(R"({"messages": []})").status().message(),
            "messages is empty; allowed: one message or more");
  EXPECT_EQ(ParseChatRequest(R"({"messages": "x"})").status().message(),
            "messages is no array; allowed: an array of one message or more");
}

TEST(ParseChatRequestTest, MessagesThatAreNoPromptAreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {R"([])", "messages"},
      {R"("x")", "messages"},
      {R"(["x"])", "messages[0]"},
      {R"([{"role": "tool", "content": "x"}])", "messages[0].role"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": "assistant", "content": "x"}])", "messages[0].role"},
      {R"([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}])", "messages[1].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": ""}])", "messages[0].content"},
      {R"([{"role": "user", "content": []}])", "messages[0].content"},
      {R"([{"role": "user", "content": "x", "name": "Ada"}])", "messages[0].name"},
      {R"([{"role": "user", "content": "x", "mood": "bad"}])", "messages[0].mood"},
      {R"([{"role": "assistant", "content": "x", "tool_calls": [1]}, {"role": "user", "content": "x"}])",
       "messages[0].tool_calls"},
      {R"([{"role": "assistant", "content": "x", "tool_plan": "I will"}, {"role": "user", "content": "x"}])",
       "messages[0].tool_plan"},
      {R"([{"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "document",
            "source": {"type": "text", "data": "x"}}]}, {"role": "user", "content": "x"}])",
       "messages[0].content[1].type"},
      {R"([{"role": "assistant", "content": [{"type": "search_result", "content": "x"}]}, {"role": "user", "content": "x"}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user", "content": "x", "citations": []}])", "messages[0].citations"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
      {R"([{"role": "user", "content": [7]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}])",
       "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "document"}]}])", "messages[0].content[0].source"},
      {R"([{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]}])",
       "messages[0].content[0].source.type"},
      {R"([{"role": "user", "content": [{"type": "document", "citations": {"enabled": true}, "source": {}}]}])",
       "messages[0].content[0].citations.enabled"},
      {R"([{"role": "user", "content": [{"type": "search_result", "content": 1}]}])",
       "messages[0].content[0].content"},
  };
  for (const auto& [messages, param] : cases) {
    const auto parsed = ParseChatRequest(absl::StrCat(R"({"messages": )", messages, "}"));
    ASSERT_FALSE(parsed.ok()) << messages;
    EXPECT_EQ(ErrorOf(parsed.status()).param, param) << messages << ": " << parsed.status();
  }
  EXPECT_EQ(ErrorOf(ParseChatRequest("{}").status()).param, "messages");
  EXPECT_EQ(ParseChatRequest(R"({"messages": [{"content": "x"}]})").status().message(),
            "messages[0].role is not set; allowed: 'system', 'developer', 'user', 'assistant'");
}

TEST(ParseChatRequestTest, JsonIsBounded) {
  const auto message = [](const std::string& body) {
    return std::string(ParseChatRequest(body).status().message());
  };
  EXPECT_EQ(message("[1]"), "the body is no JSON object");
  EXPECT_EQ(message("{\"a\": "), "the body is no JSON: wrong at byte 7");
  EXPECT_EQ(message("{\"a\": \"\xFF\"}"), "the body is no JSON: wrong at byte 8");
  EXPECT_EQ(message("{\"a\": 1, \"a\": 2}"), "the body's JSON has the member 'a' twice");
  EXPECT_EQ(message("{\"a\": 1e999}"), "the body's JSON has a number beyond what a double holds");
  EXPECT_EQ(message(absl::StrCat("{\"a\": ", std::string(1'000'000, '['))),
            "the body's JSON is nested more than 32 deep");
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 250'000; ++i) many += ",0";
  EXPECT_EQ(message(many + "]}"), "the body's JSON has more than 100000 values");
  // Were reading it the square of the number of objects, as it was, each of these would take 20 seconds.
  std::string objects = "{\"a\": {\"x\": {}";
  for (int i = 0; i < 50'000; ++i) objects += absl::StrCat(",\"", i, "\": {}");
  for (int i = 0; i < 10; ++i) EXPECT_THAT(message(objects + "}}"), testing::HasSubstr("messages"));
}

TEST(ParseCompletionRequestTest, ThePromptIsTheQuestion) {
  const auto parsed =
      ParseCompletionRequest(R"({"prompt": ["Q"], "logprobs": 2, "stop": "x", "best_of": 1, "echo": false})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->form.chat);
  EXPECT_TRUE(parsed->form.logprobs);
  test_support::ExpectMessage(parsed->request, R"(prompt { question: "Q" }
      sampling { temperature: 1 max_tokens: 16 top_logprobs: 2 stop: "x" })");
  for (const auto& [body, param] :
       {std::pair<std::string, std::string>{R"({"prompt": ["a", "b"]})", "prompt"},
        {R"({"prompt": [1, 2]})", "prompt"},
        {R"({"prompt": ""})", "prompt"},
        {R"({})", "prompt"},
        {R"({"prompt": "a", "echo": true})", "echo"},
        {R"({"prompt": "a", "best_of": 2})", "best_of"},
        {R"({"prompt": "a", "store": true})", "store"},
        {R"({"prompt": "a", "messages": []})", "messages"}}) {
    EXPECT_EQ(ErrorOf(ParseCompletionRequest(body).status()).param, param) << body;
  }
  EXPECT_THAT(ParseCompletionRequest(R"({"prompt": "a", "echo": true})").status().message(),
              HasSubstr("allowed: false"));
}

TEST(ParsePutRequestTest, IsTheMessageWithDocuments) {
  const auto parsed = ParsePutRequest(R"({"namespace": "n", "chunks": ["a"], "pin": true, "stream": true,
                                          "documents": [{"title": "T", "text": "b"}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->stream);
  test_support::ExpectMessage(parsed->request, R"(namespace: "n" chunks: [ "a", "T\nb\n\n" ] pin: true)");
  EXPECT_THAT(std::string(ParsePutRequest(R"({"chnks": []})").status().message()), HasSubstr("chnks"));
  EXPECT_FALSE(ParsePutRequest(R"({"stream": "yes"})").ok());
}

TEST(ErrorTest, StatusesAreOpenAIs) {
  EXPECT_EQ(
      ToJson(ErrorOf(absl::InvalidArgumentError("top_p is 7; allowed: above 0 to 1"))),
      R"({"error":{"code":null,"message":"top_p is 7; allowed: above 0 to 1","param":"top_p","type":"invalid_request_error"}})");
  EXPECT_EQ(
      ToJson(ErrorOf(ModelNotFound("a", "b"))),
      R"({"error":{"code":"model_not_found","message":"model is 'a'; allowed: 'b'","param":null,"type":"invalid_request_error"}})");
  EXPECT_EQ(ErrorOf(ModelNotFound("a", "b")).http_status, 404);
  EXPECT_EQ(ErrorOf(absl::ResourceExhaustedError("full")).http_status, 429);
  EXPECT_EQ(ErrorOf(absl::ResourceExhaustedError("full")).code, "rate_limit_exceeded");
  EXPECT_EQ(ErrorOf(PromptTooLongError(9, 8)).code, "context_length_exceeded");
  EXPECT_EQ(ErrorOf(absl::InvalidArgumentError("the prompt has no question")).code, "");
  EXPECT_EQ(ErrorOf(absl::UnavailableError("starting")).http_status, 503);
  EXPECT_EQ(ErrorOf(absl::CancelledError("gone")).http_status, 499);
  EXPECT_EQ(ErrorOf(absl::DeadlineExceededError("late")).http_status, 504);
  EXPECT_EQ(ErrorOf(absl::InternalError("broken")).http_status, 500);
  EXPECT_EQ(ErrorOf(absl::InternalError("broken")).type, "server_error");
  EXPECT_EQ(ErrorOf(absl::UnauthenticatedError("who")).http_status, 401);
}

}  // namespace
}  // namespace kvblend::server::openai
