// The HTTP API over an engine whose every event the test decides.
#include <httplib.h>

#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/api/routes.h"
#include "server/calls/call_log.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/convert/message_json.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/fake_engine.h"

namespace kvblend::server {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kQuestion[] = R"({"messages": [{"role": "user", "content": "why?"}]})";
constexpr char kStreamed[] = R"({"messages": [{"role": "user", "content": "why?"}], "stream": true})";

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpServerOptions options;
    options.address = {"127.0.0.1", 0};
    options.max_body_bytes = 1 << 20;
    auto server = HttpServer::Start(
        options, ApiRoutes({.calls = &calls_, .metrics = &metrics_, .model_id = "the-model"}), ApiErrorPage);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_->port());
    client_->set_read_timeout(60);
  }
  void Serve() { engine_slot_.Serve(&engine_); }

  httplib::Result Post(const std::string& path, const std::string& body) {
    return client_->Post(path, body, "application/json");
  }
  /// Posts while the test plays the engine.
  httplib::Result PostAndPlay(const std::string& body,
                              const std::function<void(testing::FakeGenerate&)>& play) {
    std::optional<httplib::Result> result;
    std::thread poster([&] { result = Post("/v1/chat/completions", body); });
    const auto call = engine_.NextGenerate();
    if (call != nullptr) play(*call);
    poster.join();
    return *std::move(result);
  }
  static TextDelta Text(const std::string& text) {
    TextDelta delta;
    delta.text = text;
    return delta;
  }

  // Destroyed from the bottom up: the server before what it uses.
  Metrics metrics_;
  EngineSlot engine_slot_;
  EngineCalls calls_{&engine_slot_, {.engine_options = {}, .max_message_bytes = 1 << 20}};
  testing::FakeEngine engine_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(ApiTest, AWholeAnswer) {
  Serve();
  const auto result = PostAndPlay(kQuestion, [](testing::FakeGenerate& call) {
    EXPECT_EQ(call.request.prompt.question, "why?");
    EXPECT_EQ(call.request.sampling.temperature, 1);
    EXPECT_EQ(call.request.caller.fairness_key, "\nipv4:127.0.0.1");
    call.observer->OnPrompt({});
    call.observer->OnText(Text("be"));
    call.observer->OnText(Text("cause"));
    call.Finish(absl::OkStatus(), GenerateResult());
  });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("kvblend-reused-tokens"), "0");
  const json body = json::parse(result->body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "because");
  EXPECT_EQ(body["model"], "the-model");
  EXPECT_EQ(result->get_header_value("x-request-id"), body["id"]);
  EXPECT_THAT(metrics_.Expose(),
              HasSubstr("kvblend_http_calls_total{code=\"OK\",method=\"ChatCompletions\"} 1"));
}

TEST_F(ApiTest, StreamsComeAsTheyAreMade) {
  Serve();
  std::string seen;
  std::shared_ptr<testing::FakeGenerate> call;
  std::thread engine_thread([&] {
    call = engine_.NextGenerate();
    call->observer->OnPrompt({});
    call->observer->OnText(Text("first"));
  });
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.set_header("Content-Type", "application/json");
  request.body = kStreamed;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    const bool had_first = seen.find("first") != std::string::npos;
    seen.append(data, size);
    if (!had_first && seen.find("first") != std::string::npos) {
      engine_thread.join();
      call->Finish(absl::InternalError("broken"), GenerateResult());
    }
    return true;
  };
  const auto result = client_->send(request);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_THAT(seen, HasSubstr("data: {\"error\":{\"code\":null,\"message\":\"broken\""));
}

TEST_F(ApiTest, ErrorsBeforeTheFirstEventAreStatuses) {
  const auto starting = Post("/v1/chat/completions", kQuestion);
  EXPECT_EQ(starting->status, 503);
  EXPECT_EQ(starting->get_header_value("Retry-After"), "1");
  EXPECT_EQ(client_->Get("/v1/models")->status, 503);
  Serve();
  engine_.RefuseWith(absl::ResourceExhaustedError("the queue is full"));
  const auto full = Post("/v1/chat/completions", kStreamed);
  EXPECT_EQ(full->status, 429);
  EXPECT_EQ(full->get_header_value("Retry-After"), "1");
  EXPECT_EQ(full->get_header_value("retry-after-ms"), "1000");
  EXPECT_EQ(json::parse(full->body)["error"]["type"], "rate_limit_error");
  engine_.RefuseWith(absl::OkStatus());
  const auto late = PostAndPlay(kStreamed, [](testing::FakeGenerate& call) {
    call.Finish(absl::InternalError("broken"), GenerateResult());
  });
  EXPECT_EQ(late->status, 500);
  EXPECT_THAT(late->get_header_value("x-request-id"), StartsWith("chatcmpl-"));
  EXPECT_THAT(full->get_header_value("x-request-id"), StartsWith("chatcmpl-"));
  EXPECT_THAT(Post("/v1/completions", "{}")->get_header_value("x-request-id"), StartsWith("cmpl-"));
  const auto cohere = Post("/v2/chat", "{}");
  EXPECT_EQ(cohere->get_header_value("x-request-id"), json::parse(cohere->body)["id"]);
  EXPECT_EQ(json::parse(late->body)["error"]["message"], "broken");
}

TEST_F(ApiTest, RequestsThatAreGivenUpWaitedAndHadNoFirstToken) {
  Serve();
  PostAndPlay(kQuestion, [](testing::FakeGenerate& call) {
    call.request.caller.on_dequeued(3);
    call.Finish(absl::CancelledError("gone"), GenerateResult());
  });
  PostAndPlay(kQuestion, [](testing::FakeGenerate& call) {
    call.request.caller.on_dequeued(4);
    call.observer->OnPrompt({});
    call.Finish(absl::CancelledError("gone while the answer was written"), GenerateResult());
  });
  const std::string page = metrics_.Expose();
  EXPECT_THAT(page, HasSubstr("kvblend_request_queue_time_seconds_sum 7\n"));
  EXPECT_THAT(page, HasSubstr("kvblend_request_queue_time_seconds_count 2\n"));
  EXPECT_THAT(page, HasSubstr("kvblend_requests_without_first_token_total{code=\"CANCELLED\"} 1\n"));
}

TEST_F(ApiTest, TheLogNamesRequestsAsTheirClientsDo) {
  Serve();
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  client_->set_default_headers({{"x-request-id", "order-7/2"}});
  const auto chat = PostAndPlay(kQuestion, [](testing::FakeGenerate& call) {
    call.Finish(absl::InternalError("broken"), GenerateResult());
  });
  EXPECT_THAT(log.str(), HasSubstr(absl::StrCat(", request ", chat->get_header_value("x-request-id"),
                                                ", client's request order-7/2, trace ")));
  client_->set_default_headers({{"x-request-id", "7, trace \"x\""}});
  const auto models = client_->Get("/v1/models");
  EXPECT_THAT(models->get_header_value("x-request-id"), StartsWith("req-"));
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(),
              HasSubstr(absl::StrCat(", request ", models->get_header_value("x-request-id"), ", trace ")));
}

TEST(LoggableIdTest, HasNothingThatALineCouldBeMistakenFor) {
  EXPECT_EQ(LoggableId("req_1-a.b:c/d+e=f@g~H"), "req_1-a.b:c/d+e=f@g~H");
  EXPECT_EQ(LoggableId(std::string(128, 'x')).size(), 128);
  for (const std::string& id :
       {std::string(129, 'x'), std::string("a b"), std::string("a,b"), std::string("a\"b"),
        std::string("a\\b"), std::string("a\nb"), std::string("\xC3\xBC")}) {
    EXPECT_EQ(LoggableId(id), "") << id;
  }
}

TEST_F(ApiTest, AClientThatGoesCancelsItsRequest) {
  Serve();
  for (const char* body : {kQuestion, kStreamed}) {
    std::shared_ptr<testing::FakeGenerate> call;
    {
      httplib::Client going("127.0.0.1", server_->port());
      std::thread poster([&] { going.Post("/v1/chat/completions", body, "application/json"); });
      call = engine_.NextGenerate();
      ASSERT_NE(call, nullptr);
      going.stop();
      poster.join();
    }
    EXPECT_TRUE(call->WaitUntilCancelled());
    call->Finish(absl::CancelledError("cancelled"), GenerateResult());
  }
}

TEST_F(ApiTest, ModelsAreOne) {
  Serve();
  EXPECT_EQ(json::parse(client_->Get("/v1/models")->body)["data"][0]["id"], "the-model");
  EXPECT_EQ(json::parse(client_->Get("/v1/models/the-model")->body)["object"], "model");
  const auto other = client_->Get("/v1/models/other/model");
  EXPECT_EQ(other->status, 404);
  EXPECT_EQ(json::parse(other->body)["error"]["code"], "model_not_found");
  EXPECT_EQ(client_->Get("/v1/models?limit=1")->status, 400);
  EXPECT_EQ(client_->Get("/v1/models/the-model?limit=1")->status, 400);
  for (const char* counted :
       {"{code=\"OK\",method=\"ListModels\"} 1", "{code=\"INVALID_ARGUMENT\",method=\"ListModels\"} 1",
        "{code=\"OK\",method=\"GetModel\"} 1", "{code=\"NOT_FOUND\",method=\"GetModel\"} 1"}) {
    EXPECT_THAT(metrics_.Expose(), HasSubstr(absl::StrCat("kvblend_http_calls_total", counted)));
  }
  const auto asked = Post("/v1/completions", R"({"model": "other", "prompt": "x"})");
  EXPECT_EQ(asked->status, 404);
}

TEST_F(ApiTest, InfoIsWhatGrpcTells) {
  EXPECT_EQ(client_->Get("/v1/info")->status, 503);
  Serve();
  engine_.StoreChunk("n", 1, 7, "label");
  const auto answer = client_->Get("/v1/info");
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
  v1::GetInfoResponse told;
  ASSERT_TRUE(ParseJson(answer->body, told).ok()) << answer->body;
  v1::GetInfoResponse expected = *calls_.GetInfo({});
  EXPECT_EQ(expected.store().entries(), 1);
  EXPECT_GT(expected.load().requests_waiting(), 0);
  told.clear_uptime_seconds();
  expected.clear_uptime_seconds();
  EXPECT_EQ(told.DebugString(), expected.DebugString());
  const auto refused = client_->Get("/v1/info?namespace=n");
  EXPECT_EQ(refused->status, 400);
  EXPECT_THAT(refused->body, HasSubstr("namespace is not known in a query here; allowed: none"));
}

TEST_F(ApiTest, ChunksAreStoredListedAndRemoved) {
  Serve();
  const std::string key = engine_.StoreChunk("n", 1, 7, "label").ToHex();
  json list = json::parse(client_->Get("/v1/chunks?namespace=n&page_size=10")->body);
  ASSERT_EQ(list["chunks"].size(), 1);
  EXPECT_EQ(list["chunks"][0]["key"], key);
  EXPECT_EQ(json::parse(client_->Get("/v1/chunks")->body)["chunks"].size(), 0);
  EXPECT_EQ(client_->Get("/v1/chunks?page_size=x")->status, 400);
  EXPECT_EQ(client_->Get("/v1/chunks?page_size=5000")->status, 400);
  // What is not known is not overlooked: it would have been another namespace.
  for (const char* query : {"?namspace=n", "?namespace=n&namespace=m", "?namespace=%zz", "?namespace=%ff"}) {
    EXPECT_EQ(client_->Get(absl::StrCat("/v1/chunks", query))->status, 400) << query;
    EXPECT_EQ(client_->Get(absl::StrCat("/v1/chunks/", key, query))->status, 400) << query;
    EXPECT_EQ(client_->Delete(absl::StrCat("/v1/chunks/", key, query))->status, 400) << query;
  }

  EXPECT_EQ(json::parse(client_->Get(absl::StrCat("/v1/chunks/", key, "?namespace=n"))->body)["label"],
            "label");
  EXPECT_EQ(client_->Get(absl::StrCat("/v1/chunks/", key))->status, 404);
  EXPECT_EQ(client_->Get("/v1/chunks/abc")->status, 400);

  const std::string keys = absl::StrCat(R"({"namespace": "n", "keys": [")", key, R"("]})");
  EXPECT_EQ(json::parse(Post("/v1/chunks/pin", keys)->body)["changed"], "1");
  EXPECT_EQ(json::parse(Post("/v1/chunks/stat", keys)->body)["chunks"][0]["pinned"], true);
  EXPECT_EQ(Post("/v1/chunks/stat", R"({"kees": []})")->status, 400);
  EXPECT_EQ(Post("/v1/chunks/delete", R"({"namespace": "n", "all": "yes"})")->status, 400);
  EXPECT_EQ(client_->Delete(absl::StrCat("/v1/chunks/", key, "?namespace=n"))->status, 200);
  EXPECT_EQ(client_->Delete(absl::StrCat("/v1/chunks/", key, "?namespace=n"))->status, 404);
  EXPECT_EQ(json::parse(Post("/v1/chunks/delete", keys)->body)["missing_keys"].size(), 1);
}

TEST_F(ApiTest, QueriesOfPostsAreRefused) {
  Serve();
  const std::string key = engine_.StoreChunk("", 1, 7, "label").ToHex();
  const std::pair<const char*, std::string> calls[] = {
      {"/v1/chunks", R"({"chunks": ["a"]})"},
      {"/v1/chunks/delete", R"({"all": true})"},
      {"/v1/chunks/pin", absl::StrCat(R"({"keys": [")", key, R"("]})")},
      {"/v1/chunks/stat", absl::StrCat(R"({"keys": [")", key, R"("]})")},
      {"/v1/chunks/split", R"({"text": "a"})"},
      {"/v1/chunks/prefetch", R"({"chunks": ["a"]})"},
      {"/v1/chat/completions", kQuestion},
      {"/v1/completions", R"({"prompt": "x"})"},
      {"/v2/chat", kQuestion}};
  for (const auto& [path, body] : calls) {
    const auto refused = Post(absl::StrCat(path, "?namespace=a"), body);
    EXPECT_EQ(refused->status, 400) << path;
    EXPECT_THAT(refused->body, HasSubstr("namespace is not known in a query here; allowed: none")) << path;
  }
  EXPECT_EQ(client_->Get(absl::StrCat("/v1/chunks/", key))->status, 200) << "deleted in another namespace";
}

TEST_F(ApiTest, WhatRequestsHoldIsToldToTheClientAndNotToTheLog) {
  Serve();
  const std::pair<const char*, const char*> bodies[] = {
      {"/v1/completions", R"({"prompt": "x", "suffix": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "seed": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "top_p": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "stream": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "max_tokens": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "best_of": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "service_tier": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "SECRET": 1})"},
      {"/v1/completions", R"({"prompt": "x", "SECRET": 1, "SECRET": 2})"},
      {"/v1/completions", R"({"prompt": "x", "model": "SECRET"})"},
      {"/v1/completions", R"({"prompt": "x", "logit_bias": {"SECRET": 1}})"},
      {"/v1/completions", R"({"prompt": "x", "logit_bias": {"1": "SECRET"}})"},
      {"/v1/completions", R"({"prompt": "x", "kvblend": {"priority": "SECRET"}})"},
      {"/v1/completions", R"({"prompt": "x", "kvblend": {"blend": {"policy": "SECRET"}}})"},
      {"/v1/completions", R"({"prompt": "x", "kvblend": {"blend": {"SECRET": 1}}})"},
      {"/v1/chat/completions", R"({"messages": ["SECRET"]})"},
      {"/v1/chat/completions", R"({"messages": [{"role": "SECRET", "content": "x"}]})"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x", "name": "SECRET"}]})"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": ["SECRET"]}]})"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "SECRET"}]}]})"},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": [{"type": "document", "context": "SECRET"}]}]})"},
      {"/v2/chat", R"({"messages": [{"role": "user", "content": "x"}], "safety_mode": "SECRET"})"},
      {"/v2/chat",
       R"({"messages": [{"role": "user", "content": "x"}], "citation_options": {"mode": "SECRET"}})"},
      {"/v2/chat",
       R"({"messages": [{"role": "user", "content": "x"}], "documents": [{"data": {"SECRET": []}}]})"},
      {"/v1/chunks", R"({"chunks": ["x"], "SECRET": 1})"},
      {"/v1/chunks/pin", R"({"keys": [], "SECRET": 1})"},
  };
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (const auto& [path, body] : bodies) {
    const auto refused = Post(path, body);
    EXPECT_THAT(refused->status, AnyOf(400, 404)) << body;
    EXPECT_THAT(refused->body, HasSubstr("SECRET")) << body;
  }
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(), Not(HasSubstr("SECRET")));
  for (const char* logged :
       {"suffix is something else; allowed: none", "messages[0] is something else; allowed: an object",
        "the body has a field that this server does not know"}) {
    EXPECT_THAT(log.str(), HasSubstr(logged));
  }
}

TEST_F(ApiTest, PutTellsOfEachChunkWhenAsked) {
  Serve();
  for (const bool stream : {false, true}) {
    std::optional<httplib::Result> posted;
    std::thread poster([&] {
      posted = Post("/v1/chunks", json({{"chunks", {"a", "b"}}, {"stream", stream}}).dump());
    });
    const auto call = engine_.NextPutChunks();
    EXPECT_EQ(call->request.chunks.size(), 2);
    PutChunkProgress progress;
    progress.num_tokens = 3;
    call->observer->OnProgress(progress);
    progress.index = 1;
    call->observer->OnProgress(progress);
    call->Finish(absl::OkStatus());
    poster.join();
    const httplib::Result& result = *posted;
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 200);
    if (stream) {
      EXPECT_THAT(result->body, ::testing::EndsWith("\n\ndata: [DONE]\n\n"));
    } else {
      EXPECT_EQ(json::parse(result->body)["chunks"][1]["index"], 1);
    }
  }
}

TEST_F(ApiTest, OtherPathsAreNotFoundInOpenAIsForm) {
  const auto embeddings = Post("/v1/embeddings", "{}");
  EXPECT_EQ(embeddings->status, 404);
  EXPECT_EQ(json::parse(embeddings->body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json::parse(client_->Get("/openapi.json")->body)["openapi"], "3.1.0");
}

}  // namespace
}  // namespace kvblend::server
