// An engine that learns a correction from chunks that it never saw.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {

class CorrectionLearningTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.chunk_disk_path = (folder_ / "chunks").string();
    return options;
  }
  test_support::TinyModelSpec ModelSpec() override { return {.num_layers = 3}; }

  void TearDown() override { engine_.reset(); }  // before the folder goes

  static std::string Text(int number) {
    std::string text = absl::StrCat("Passage ", number, ":");
    uint32_t state = 77u * static_cast<uint32_t>(number) + 5;
    for (int word = 0; word < 12; ++word) {
      state = state * 1664525u + 1013904223u;
      absl::StrAppend(&text, " ", state >> 12);
    }
    return text + "\n";
  }

  /// Asks a question over three chunks that were never seen.
  PromptReport AskOverNewChunks() {
    const int first = 3 * asked_++;
    expected_ += 3;
    return Ask({Text(first), Text(first + 1), Text(first + 2)});
  }
  PromptReport Ask(std::vector<std::string> chunks, Policy policy = Policy::kNone) {
    GenerateRequest request = Request(std::move(chunks));
    request.sampling.max_tokens = 1;
    request.blend.policy = policy;
    return Generate(std::move(request))->prompts.at(0);
  }

  CorrectionStats Show() { return *engine_->UpdateCorrection(CorrectionAction::kShow); }

  /// Until nothing is computed behind a response, and nothing waits to be learned from.
  CorrectionStats Settle() {
    while (true) {
      const EngineStats stats = engine_->Stats();
      const bool idle = stats.background_unfinished == 0 && stats.correction.waiting_chunks == 0 &&
                        stats.background_chunks_stored + stats.background_chunks_failed >= expected_;
      if (idle) return stats.correction;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  /// Asks until a correction is in force.
  CorrectionStats LearnOne() {
    for (int i = 0; i < 60; ++i) {
      AskOverNewChunks();
      if (const CorrectionStats stats = Settle(); !stats.version.empty()) return stats;
    }
    ADD_FAILURE() << "nothing was learned";
    return {};
  }

  /// The same model, folder and options.
  void Restart(const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
    EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
    engine_.reset();
    expected_ = 0;
    EngineOptions options = Options();
    options.model_path = test_support::TemporaryPath("engine_test.gguf");
    change(options);
    auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
  }

  std::string MomentsPath() const { return (folder_ / "chunks/learned.kvmoments").string(); }
  std::string LearnedPath() const { return (folder_ / "chunks/learned.kvcorrection").string(); }

  int asked_ = 0;
  int64_t expected_ = 1;  // entries stored behind responses since the engine started: the first is the anchor
  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = temporary_folder_.path();
};

}  // namespace kvblend
