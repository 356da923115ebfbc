// What openapi.json says of bodies, against what reads them. tests/e2e/test_http_api.py holds the rest to a
// server.
#include "server/api/openapi.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "server/cohere/chat_request.h"
#include "server/json/json.h"
#include "server/openai/generation_request.h"

namespace kvblend::server {
namespace {

Json Document() { return Json::parse(OpenApiDocument()); }

std::set<std::string> PropertiesOf(const std::string& schema) {
  const Json document = Document();
  std::set<std::string> names;
  for (const auto& [name, unused] : document["components"]["schemas"][schema]["properties"].items())
    names.insert(name);
  return names;
}

template <typename Message>
std::set<std::string> FieldsOf(std::set<std::string> and_these = {}) {
  std::set<std::string> names = std::move(and_these);
  for (int i = 0; i < Message::descriptor()->field_count(); ++i)
    names.insert(std::string(Message::descriptor()->field(i)->name()));
  return names;
}

TEST(OpenApiTest, BodiesOfChunksHaveTheFieldsOfTheirMessages) {
  EXPECT_EQ(PropertiesOf("PutRequest"), FieldsOf<v1::PutChunksRequest>({"documents", "stream"}));
  EXPECT_EQ(PropertiesOf("PrefetchRequest"), FieldsOf<v1::PrefetchChunksRequest>());
  EXPECT_EQ(PropertiesOf("SplitRequest"), FieldsOf<v1::SplitDocumentRequest>());
  EXPECT_EQ(PropertiesOf("KeysRequest"), FieldsOf<v1::StatChunksRequest>());
  EXPECT_EQ(PropertiesOf("DeleteRequest"), FieldsOf<v1::DeleteChunksRequest>());
  EXPECT_EQ(PropertiesOf("PinRequest"), FieldsOf<v1::PinChunksRequest>());
}

TEST(OpenApiTest, InfoHasTheFieldsOfItsMessages) {
  EXPECT_EQ(PropertiesOf("Info"), FieldsOf<v1::GetInfoResponse>());
  EXPECT_EQ(PropertiesOf("Load"), FieldsOf<v1::Load>());
}

TEST(OpenApiTest, BodiesOfAnswersHaveNoFieldThatIsNotKnown) {
  const std::string messages = R"("messages": [{"role": "user", "content": "Q"}])",
                    prompt = R"("prompt": "Q")";
  const auto with = [](const std::string& body, const std::string& name) {
    const bool has_it = absl::StartsWith(body, absl::StrCat("\"", name, "\""));
    return has_it ? absl::StrCat("{", body, "}") : absl::StrCat("{", body, ", \"", name, "\": null}");
  };
  // A field that is null is absent; one that nobody knows is refused all the same.
  for (const char* schema : {"ChatRequest", "CompletionRequest", "CohereRequest"})
    EXPECT_GT(PropertiesOf(schema).size(), 10) << schema;
  for (const std::string& name : PropertiesOf("ChatRequest"))
    EXPECT_TRUE(openai::ParseChatRequest(with(messages, name)).ok()) << name;
  for (const std::string& name : PropertiesOf("CompletionRequest"))
    EXPECT_TRUE(openai::ParseCompletionRequest(with(prompt, name)).ok()) << name;
  for (const std::string& name : PropertiesOf("CohereRequest"))
    EXPECT_TRUE(cohere::ParseChatRequest(with(messages, name)).ok()) << name;
  EXPECT_FALSE(openai::ParseChatRequest(with(messages, "something")).ok());
}

TEST(OpenApiTest, SeedsAreThoseThatAreRead) {
  for (const char* schema : {"ChatRequest", "CompletionRequest", "CohereRequest"}) {
    const Json document = Document();
    const Json& seed = document["components"]["schemas"][schema]["properties"]["seed"]["oneOf"][0];
    for (const char* bound : {"minimum", "maximum"}) {
      const std::string body = absl::StrCat(R"({"messages": [{"role": "user", "content": "Q"}], "seed": )",
                                            ToText(seed[bound]), "}");
      EXPECT_TRUE(openai::ParseChatRequest(body).ok()) << body;
      EXPECT_TRUE(cohere::ParseChatRequest(body).ok()) << body;
    }
  }
}

TEST(OpenApiTest, AKeyMayBeShown) {
  const Json document = Document();
  EXPECT_EQ(document["security"], Json::parse(R"([{}, {"key": []}])"));
  EXPECT_TRUE(document["components"]["securitySchemes"].contains("key"));
}

}  // namespace
}  // namespace kvblend::server
