#include "server/cli/precompute/document_split.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/fake_calls.h"

namespace kvblend::server::cli {
namespace {

using testing::HasSubstr;

SplitCall Of(FakeCalls& calls) {
  return [&](const v1::SplitDocumentRequest& request) { return calls.Split(request, {}); };
}

struct Part {
  int64_t begin;
  int64_t end;
  int64_t own_bytes;
};

absl::Status Split(FakeCalls& calls, std::string_view text, int32_t chunk_tokens, std::vector<Part>& parts) {
  v1::SplitDocumentRequest request;
  request.set_chunk_tokens(chunk_tokens);
  request.set_lead_in("L");
  return SplitInPieces(Of(calls), request, text, [&](const v1::DocumentChunk& chunk, int64_t own_bytes) {
    parts.push_back({chunk.begin_byte(), chunk.end_byte(), own_bytes});
    return absl::OkStatus();
  });
}

TEST(DocumentSplitTest, LongDocumentsGoInPiecesThatCutNoCharacter) {
  std::string text;
  while (text.size() < 200000) text += "\xE4\xB8\x96x";
  FakeCalls calls;
  std::vector<Part> parts;
  ASSERT_TRUE(Split(calls, text, 100, parts).ok());
  EXPECT_GT(calls.split.size(), 3u);
  int64_t own_bytes = 0;
  int64_t end = 0;
  for (const Part& part : parts) {
    EXPECT_EQ(part.begin, end);
    end = part.end;
    own_bytes += part.own_bytes;
  }
  EXPECT_EQ(end, static_cast<int64_t>(text.size()));
  EXPECT_EQ(own_bytes, end);
  EXPECT_EQ(parts.size(), (text.size() + 99) / 100);
  for (const v1::SplitDocumentRequest& request : calls.split) {
    EXPECT_EQ(request.lead_in(), "L");
    EXPECT_LE(request.text().size(), 40000u);
  }
  EXPECT_FALSE(calls.split.back().goes_on());
}

TEST(DocumentSplitTest, APieceWithoutAChunkGrows) {
  const std::string text(300000, 'a');
  FakeCalls calls;
  std::vector<Part> parts;
  calls.bytes_per_token = 10000;  // no chunk ends in the first piece
  ASSERT_TRUE(Split(calls, text, 16, parts).ok());
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].end, 160000);
  EXPECT_EQ(parts[1].end, 300000);
}

TEST(DocumentSplitTest, ErrorsEndIt) {
  FakeCalls calls;
  std::vector<Part> parts;
  calls.split_status = absl::InvalidArgumentError("chunk_tokens is 3");
  EXPECT_THAT(std::string(Split(calls, "text", 3, parts).message()), HasSubstr("chunk_tokens is 3"));
  calls.split_status = absl::OkStatus();
  const absl::Status stopped = SplitInPieces(
      Of(calls), {}, "text", [](const v1::DocumentChunk&, int64_t) { return absl::CancelledError(""); });
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Split(calls, "", 3, parts).ok());
  EXPECT_TRUE(parts.empty());
}

TEST(DocumentSplitTest, AnEngineThatMakesNoSenseIsAnError) {
  FakeCalls calls;
  calls.next_byte_offset = 1;
  std::vector<Part> parts;
  EXPECT_EQ(Split(calls, "some text", 100, parts).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kvblend::server::cli
