// Bodies of the HTTP API, sound or not: each gives a request, or an error that says why; and citations of
// what Cohere's bodies hold. Input: one byte that chooses the path, then the body.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/text/utf8.h"
#include "server/cohere/chat_request.h"
#include "server/cohere/citations.h"
#include "server/json/json.h"
#include "server/openai/chunk_request.h"
#include "server/openai/error.h"
#include "server/openai/generation_request.h"
#include "tests/fuzz/check.h"

namespace kvblend::server::openai {
namespace {

using test_support::Check;

void CheckError(const absl::Status& status) {
  Check(status.code() == absl::StatusCode::kInvalidArgument, "the error's code");
  Check(!status.message().empty(), "an error says why");
  const Json error = Json::parse(ToJson(ErrorOf(status)), /*cb=*/nullptr, /*allow_exceptions=*/false);
  Check(error.is_object() && error["error"]["message"].is_string(), "the error is JSON, whatever it quotes");
}

void CheckGeneration(const absl::StatusOr<GenerationRequest>& parsed) {
  if (!parsed.ok()) return CheckError(parsed.status());
  const v1::Prompt& prompt = parsed->request.prompt();
  Check(!prompt.question().empty(), "there is a question");
  Check(!text::FirstInvalidUtf8(prompt.question()).has_value(), "the question is UTF-8");
  for (const std::string& chunk : prompt.chunks()) {
    Check(!text::FirstInvalidUtf8(chunk).has_value(), "chunks are UTF-8");
  }
  Check(!parsed->request.SerializeAsString().empty(), "the request is a message");
}

/// The chunks are looked up in themselves.
void CheckCohere(const absl::StatusOr<cohere::ChatRequest>& parsed) {
  if (!parsed.ok()) return CheckError(parsed.status());
  const v1::Prompt& prompt = parsed->request.prompt();
  Check(static_cast<int>(parsed->sources.size()) == prompt.chunks_size(), "each chunk has a source");
  const cohere::CitationFinder finder({prompt.chunks().begin(), prompt.chunks().end()}, prompt.question());
  for (const std::string& chunk : prompt.chunks()) {
    int64_t end = 0;
    for (const cohere::Citation& citation : finder.Find(chunk)) {
      Check(end <= citation.begin_byte && citation.begin_byte < citation.end_byte,
            "citations follow each other");
      end = citation.end_byte;
      Check(end <= static_cast<int64_t>(chunk.size()) && !citation.documents.empty(),
            "a citation has a source");
      Check(!text::FirstInvalidUtf8(chunk.substr(citation.begin_byte, end - citation.begin_byte)).has_value(),
            "a citation is whole characters");
    }
  }
}

}  // namespace
}  // namespace kvblend::server::openai

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvblend::server;
  using namespace kvblend::server::openai;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      if ((data[0] & 4) != 0) {
        CheckCohere(cohere::ParseChatRequest(body));
      } else {
        CheckGeneration(ParseChatRequest(body));
      }
      break;
    case 1:
      CheckGeneration(ParseCompletionRequest(body));
      break;
    case 2: {
      const auto put = ParsePutRequest(body);
      if (!put.ok()) CheckError(put.status());
      break;
    }
    default: {
      kvblend::v1::StatChunksRequest request;
      const absl::Status parsed = ParseMessageBody(body, &request);
      if (!parsed.ok()) CheckError(parsed);
    }
  }
  return 0;
}
