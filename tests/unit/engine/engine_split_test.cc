// Documents cut by the engine: the keys are those under which the chunks are stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::Field;
using testing::HasSubstr;
using testing::SizeIs;

class EngineSplitTest : public EngineFixture {
 protected:
  static SplitDocumentRequest Document(int sentences = 40) {
    SplitDocumentRequest request;
    request.system_text = "Answer.";
    request.lead_in = "Passages:\n\n";
    for (int i = 0; i < sentences; ++i) request.text += "Town " + std::to_string(i) + " lies by the sea. ";
    request.chunk_tokens = 64;
    request.overlap_tokens = 16;
    return request;
  }
  static std::vector<std::string> Texts(const SplitDocumentRequest& document, const DocumentChunks& split) {
    std::vector<std::string> texts;
    for (const DocumentChunk& chunk : split.chunks) {
      texts.push_back(document.text.substr(chunk.begin_byte, chunk.end_byte - chunk.begin_byte));
    }
    return texts;
  }
  std::string Error(const SplitDocumentRequest& request) {
    const auto split = engine_->SplitDocument(request);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(split.status().message());
  }
};

TEST_F(EngineSplitTest, KeysAndTokensAreThoseOfPutChunks) {
  const SplitDocumentRequest document = Document();
  const auto split = engine_->SplitDocument(document);
  ASSERT_TRUE(split.ok()) << split.status();
  ASSERT_GT(split->chunks.size(), 5u);
  EXPECT_EQ(split->next_byte, static_cast<int64_t>(document.text.size()));
  EXPECT_THAT(split->chunks, Each(Field("stored", &DocumentChunk::stored, false)));
  EXPECT_EQ(engine_->Stats().store.entries, 0) << "nothing is computed";

  const std::vector<std::string> texts = Texts(document, *split);
  const auto put = Put(texts);
  ASSERT_THAT(put->progress, SizeIs(texts.size()));
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(put->progress[i].key, split->chunks[i].key.ToHex());
    EXPECT_EQ(put->progress[i].num_tokens, split->chunks[i].num_tokens);
    const auto stored = engine_->chunks().Stat("", split->chunks[i].key);
    ASSERT_TRUE(stored.ok());
    EXPECT_GE(stored->bytes, split->chunks[i].stored_bytes);
    EXPECT_LE(stored->bytes, split->chunks[i].stored_bytes + 1024) << "but for the bookkeeping";
  }
  EXPECT_THAT(engine_->SplitDocument(document)->chunks, Each(Field("stored", &DocumentChunk::stored, true)));

  SplitDocumentRequest elsewhere = document;
  elsewhere.caller.tenant_namespace = "other";
  EXPECT_THAT(engine_->SplitDocument(elsewhere)->chunks,
              Each(Field("stored", &DocumentChunk::stored, false)));
  SplitDocumentRequest isolated = document;
  isolated.anchoring = Anchoring::kIsolated;
  EXPECT_THAT(engine_->SplitDocument(isolated)->chunks, Each(Field("stored", &DocumentChunk::stored, false)));
}

TEST_F(EngineSplitTest, TheOverlapFollowsTheChunksWhereNoneIsGiven) {
  SplitDocumentRequest document = Document();
  document.overlap_tokens.reset();
  for (const auto& [chunk_tokens, overlap_tokens] :
       {std::pair(64, 32), std::pair(101, 50), std::pair(128, 64)}) {
    document.chunk_tokens = chunk_tokens;
    SplitDocumentRequest same = document;
    same.overlap_tokens = overlap_tokens;
    const auto split = engine_->SplitDocument(document);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_THAT(Texts(document, *split), ElementsAreArray(Texts(same, *engine_->SplitDocument(same))));
  }
}

TEST_F(EngineSplitTest, PiecesOfADocument) {
  const SplitDocumentRequest document = Document();
  const auto whole = engine_->SplitDocument(document);
  SplitDocumentRequest front = document;
  front.text.resize(900);
  front.goes_on = true;
  const auto piece = engine_->SplitDocument(front);
  ASSERT_TRUE(piece.ok()) << piece.status();
  ASSERT_GT(piece->chunks.size(), 0u);
  ASSERT_LT(piece->chunks.size(), whole->chunks.size());
  for (size_t i = 0; i < piece->chunks.size(); ++i) EXPECT_EQ(piece->chunks[i].key, whole->chunks[i].key);
  EXPECT_EQ(piece->next_byte, whole->chunks[piece->chunks.size()].begin_byte);
}

TEST_F(EngineSplitTest, EndsWhenItsClientHasGone) {
  SplitDocumentRequest document = Document();
  int asked = 0;
  document.gone = [&] { return ++asked == 3; };
  EXPECT_EQ(engine_->SplitDocument(document).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3) << "between chunks, and not once more";
  document.gone = [] { return false; };
  EXPECT_TRUE(engine_->SplitDocument(document).ok());
}

TEST_F(EngineSplitTest, WhatIsWrongIsNamed) {
  SplitDocumentRequest request = Document();
  request.chunk_tokens = 3;
  EXPECT_THAT(Error(request), HasSubstr("chunk_tokens is 3; allowed: 16 and up"));
  request.chunk_tokens = engine_->info().max_context_tokens;
  EXPECT_THAT(Error(request), HasSubstr("behind an anchor of"));
  request.anchoring = Anchoring::kIsolated;
  EXPECT_TRUE(engine_->SplitDocument(request).ok());
  request = Document();
  request.overlap_tokens = 33;
  EXPECT_THAT(Error(request), HasSubstr("overlap_tokens is 33; allowed: 0 to half of chunk_tokens, 32"));
  request = Document();
  request.text = "bad \xFF";
  EXPECT_THAT(Error(request), HasSubstr("text is not valid UTF-8 at byte 4"));
  request.text.assign(9 << 20, 'a');
  EXPECT_THAT(Error(request), HasSubstr("allowed: at most 8388608"));
  request = Document();
  request.caller.tenant_namespace.assign(129, 'n');
  EXPECT_THAT(Error(request), HasSubstr("namespace has 129 bytes"));
}

TEST_F(EngineSplitTest, EachChunkMayHaveItsOwnLabel) {
  PutChunksRequest request;
  request.chunks = {"one", "two"};
  request.label = "unused";
  request.chunk_labels = {"a@0", "b@7"};
  auto recorder = std::make_shared<test_support::PutRecorder>();
  ASSERT_TRUE(engine_->PutChunks(request, recorder).ok());
  recorder->Wait();
  std::vector<std::string> labels;
  for (const PutChunkProgress& chunk : recorder->progress) {
    labels.push_back(engine_->chunks().Stat("", *ChunkKey::FromHex(chunk.key))->label);
  }
  EXPECT_THAT(labels, ElementsAre("a@0", "b@7"));
  request.chunk_labels.pop_back();
  EXPECT_THAT(std::string(engine_->PutChunks(request, recorder).status().message()),
              HasSubstr("chunk_labels has 1 entries; allowed: none, or one for each of 2 chunks"));
  request.chunk_labels = {"a", std::string(257, 'x')};
  EXPECT_THAT(std::string(engine_->PutChunks(request, recorder).status().message()),
              HasSubstr("chunk_labels[1] has 257 bytes"));
}

TEST_F(EngineSplitTest, WithoutADiskChunksAreReportedAtOnce) {
  PutChunksRequest request;
  request.anchoring = Anchoring::kIsolated;
  request.chunks = {"one", "two", "three"};
  const auto recorder = std::make_shared<PutRecorder>();
  std::vector<int64_t> stored;  // when each was reported
  recorder->on_progress = [&] { stored.push_back(engine_->Stats().store.insertions); };
  ASSERT_TRUE(engine_->PutChunks(request, recorder).ok());
  EXPECT_TRUE(recorder->Wait().status.ok());
  EXPECT_THAT(stored, ElementsAre(1, 2, 3));
}

class EngineSplitOnDiskTest : public EngineSplitTest {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineSplitTest::Options();
    options.chunk_disk_path = folder_.path();
    return options;
  }
  void TearDown() override { engine_.reset(); }

  const test_support::TemporaryFolder folder_;
};

TEST_F(EngineSplitOnDiskTest, StoredMeansDurable) {
  const SplitDocumentRequest document = Document(4);
  const auto split = engine_->SplitDocument(document);
  ASSERT_TRUE(split.ok()) << split.status();
  const std::vector<std::string> texts = Texts(document, *split);
  ASSERT_FALSE(texts.empty());
  const auto put = Put(texts);
  ASSERT_THAT(put->progress, SizeIs(texts.size()));
  for (const PutChunkProgress& chunk : put->progress) EXPECT_TRUE(chunk.durable);
  EXPECT_THAT(engine_->SplitDocument(document)->chunks, Each(Field("stored", &DocumentChunk::stored, true)));
  // Somebody removes the files under the server's feet. What is in memory still is not stored either: a
  // restart would lose it.
  ASSERT_GT(std::filesystem::remove_all(folder_.path() + "/entries"), 0u);
  EXPECT_THAT(engine_->SplitDocument(document)->chunks, Each(Field("stored", &DocumentChunk::stored, false)));
  Put(texts);
  EXPECT_THAT(engine_->SplitDocument(document)->chunks, Each(Field("stored", &DocumentChunk::stored, true)));
}

}  // namespace
}  // namespace kvblend
