// Passages in a pasted text, and chunks of namespaces that a caller may read: what the engine makes of them.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class PassagesTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.split_prompts = "passages";
    return options;
  }
  static std::string Passage(char letter) {
    return absl::StrCat(std::string(1, letter), " is in Italy", std::string(130, letter), ".");
  }
  /// As a chain pastes them.
  static GenerateRequest Pasted(const std::string& letters, std::optional<PromptSplit> split = std::nullopt) {
    GenerateRequest request = Request({});
    request.prompt.lead_in = "";
    request.prompt.split = split;
    request.prompt.question = "Use these passages.\n\n";
    for (const char letter : letters) absl::StrAppend(&request.prompt.question, Passage(letter), "\n\n");
    request.prompt.question += "Where is Paris?";
    return request;
  }
  /// The same prompt as chunks.
  static GenerateRequest Explicit(const std::string& letters) {
    GenerateRequest request = Pasted("");
    request.prompt.question = "\n\nWhere is Paris?";
    for (const char letter : letters) {
      request.prompt.chunks.emplace_back(request.prompt.chunks.empty() ? "Use these passages.\n\n" : "\n\n");
      request.prompt.chunks.push_back(Passage(letter));
    }
    return request;
  }
  /// A request behind whatever is stored behind the ones before.
  void WaitForStores() { ASSERT_TRUE(Put({"anything"})->status.ok()); }
  std::vector<ChunkSource> SourcesOfPassages(const GenerateRecorder& recorder) {
    std::vector<ChunkSource> sources;
    const std::vector<ChunkReport>& chunks = recorder.prompts[0].chunks;
    for (size_t i = 1; i < chunks.size(); i += 2) sources.push_back(chunks[i].source);
    return sources;
  }
};

TEST_F(PassagesTest, APastedPromptIsTheSameAsOneWithChunks) {
  GenerateRequest pasted = Pasted("abc"), as_chunks = Explicit("abc");
  pasted.blend.reuse = as_chunks.blend.reuse = Reuse::kNothing;
  const auto one = Generate(pasted), other = Generate(as_chunks);
  ASSERT_TRUE(one->status.ok()) << one->status;
  ASSERT_EQ(one->prompts[0].chunks.size(), 6);
  ASSERT_EQ(other->prompts[0].chunks.size(), 6);
  EXPECT_EQ(one->prompts[0].prompt_tokens, other->prompts[0].prompt_tokens);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(one->prompts[0].chunks[i].num_tokens, other->prompts[0].chunks[i].num_tokens) << i;
  }
  for (int i = 1; i < 6; i += 2) EXPECT_EQ(one->prompts[0].chunks[i].key, other->prompts[0].chunks[i].key);
  EXPECT_EQ(one->token_ids, other->token_ids);
  // Without the split the same text is one piece.
  EXPECT_TRUE(Generate(Pasted("abc", PromptSplit::kNone))->prompts[0].chunks.empty());
}

TEST_F(PassagesTest, TheSecondRequestReusesThePassagesOfTheFirstAndNotTheTextBetween) {
  const auto first = Generate(Pasted("abc"));
  EXPECT_THAT(SourcesOfPassages(*first), Each(ChunkSource::kMiss));
  while (engine_->Stats().background_chunks_stored < 4) WaitForStores();  // the anchor and three passages
  const auto second = Generate(Pasted("cadb"));
  EXPECT_THAT(SourcesOfPassages(*second), ElementsAre(ChunkSource::kBlended, ChunkSource::kBlended,
                                                      ChunkSource::kMiss, ChunkSource::kBlended));
  for (const ChunkReport& chunk : second->prompts[0].chunks) {
    if (chunk.index % 2 == 0) {
      EXPECT_EQ(chunk.source, ChunkSource::kMiss);
      EXPECT_EQ(chunk.key, "") << "text between has no entry";
    }
  }
  // Also in the middle of a line, where a paragraph would not be seen.
  GenerateRequest inside = Pasted("", PromptSplit::kStored);
  inside.prompt.question = absl::StrCat("Context: ", Passage('b'), " Where is Paris?");
  EXPECT_THAT(SourcesOfPassages(*Generate(inside)), ElementsAre(ChunkSource::kBlended));
}

TEST_F(PassagesTest, AnothersPassagesAreNotFound) {
  ASSERT_TRUE(Generate(Pasted("abc"))->status.ok());
  GenerateRequest other = Pasted("abc", PromptSplit::kStored);
  other.caller.tenant_namespace = "other";
  EXPECT_TRUE(Generate(other)->prompts[0].chunks.empty());
  other.blend.read_namespaces = {""};
  EXPECT_EQ(Generate(other)->prompts[0].chunks.size(), 6) << "which it may read";
}

TEST_F(PassagesTest, SplitIsOnlyForPromptsWithoutChunks) {
  GenerateRequest request = Request();
  EXPECT_EQ(Generate(request)->prompts[0].chunks.size(), 2) << "the server's setting leaves them alone";
  request.prompt.split = PromptSplit::kStored;
  const absl::Status refused = engine_->Generate(request, std::make_shared<GenerateRecorder>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("prompt.split is stored and chunks has 2 entries"));
}

TEST_F(PassagesTest, ReadableNamespacesComeBehindOnesOwn) {
  PutChunksRequest put;
  put.caller.tenant_namespace = "corpus";
  put.system_text = "Answer.";
  put.lead_in = "Passages:\n\n";
  put.chunks = {Passage('a'), Passage('b')};
  const auto stored = std::make_shared<PutRecorder>();
  ASSERT_TRUE(engine_->PutChunks(put, stored).ok());
  ASSERT_TRUE(stored->Wait().status.ok());
  put.caller.tenant_namespace = "own";
  put.chunks = {Passage('b')};
  const auto own = std::make_shared<PutRecorder>();
  ASSERT_TRUE(engine_->PutChunks(put, own).ok());
  ASSERT_TRUE(own->Wait().status.ok());

  GenerateRequest request = Request({"Rome is in Italy.\n", Passage('a'), Passage('b')});
  request.caller.tenant_namespace = "own";
  const auto sources = [](const GenerateRecorder& recorder) {
    std::vector<ChunkSource> all;
    for (const ChunkReport& chunk : recorder.prompts[0].chunks) all.push_back(chunk.source);
    return all;
  };
  request.blend.store_misses = false;
  EXPECT_THAT(sources(*Generate(request)),
              ElementsAre(ChunkSource::kMiss, ChunkSource::kMiss, ChunkSource::kBlended));
  request.blend.store_misses = true;
  request.blend.read_namespaces = {"corpus"};
  const int64_t before = engine_->chunks().Stat("own", *ChunkKey::FromHex(own->progress[0].key))->hits;
  EXPECT_THAT(sources(*Generate(request)),
              ElementsAre(ChunkSource::kMiss, ChunkSource::kBlended, ChunkSource::kBlended));
  EXPECT_EQ(engine_->chunks().Stat("corpus", *ChunkKey::FromHex(stored->progress[0].key))->hits, 1);
  EXPECT_EQ(engine_->chunks().Stat("corpus", *ChunkKey::FromHex(stored->progress[1].key))->hits, 0);
  EXPECT_EQ(engine_->chunks().Stat("own", *ChunkKey::FromHex(own->progress[0].key))->hits, before + 1);
  // What is missing is stored in one's own, and what the other has is not.
  while (engine_->Stats().background_chunks_stored < 1) WaitForStores();
  EXPECT_EQ(engine_->chunks().List("corpus", "", 100)->chunks.size(), 3);  // with the anchor
  EXPECT_EQ(engine_->chunks().List("own", "", 100)->chunks.size(), 3);

  PrefetchChunksRequest prefetch;
  prefetch.caller.tenant_namespace = "own";
  prefetch.system_text = put.system_text;
  prefetch.lead_in = put.lead_in;
  prefetch.chunks = {Passage('a'), Passage('b'), "none"};
  prefetch.read_namespaces = {"corpus"};
  const auto found = engine_->PrefetchChunks(prefetch);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)[0].key, stored->progress[0].key);
  EXPECT_EQ((*found)[1].key, own->progress[0].key);
  EXPECT_EQ((*found)[2].tier, Tier::kNone);
}

TEST_F(PassagesTest, ReadableNamespacesHaveLimits) {
  GenerateRequest request = Request();
  const auto refused = [&] {
    return std::string(engine_->Generate(request, std::make_shared<GenerateRecorder>()).status().message());
  };
  request.blend.read_namespaces.assign(kMaxReadNamespaces + 1, "x");
  EXPECT_THAT(refused(), HasSubstr("blend.read_namespaces has 9 entries; allowed: at most 8"));
  request.blend.read_namespaces = {"x", std::string(129, 'x')};
  EXPECT_THAT(refused(), HasSubstr("blend.read_namespaces[1] has 129 bytes"));
  request.blend.read_namespaces = {"\xff"};
  EXPECT_THAT(refused(), HasSubstr("blend.read_namespaces[0] is not valid UTF-8"));
}

}  // namespace
}  // namespace kvblend
