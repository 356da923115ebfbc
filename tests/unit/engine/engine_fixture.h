#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/api/engine.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend {

using test_support::GenerateRecorder;
using test_support::PutRecorder;
using test_support::ScoreRecorder;

/// An answer that waits, its prompt prefilled, until it may go on; the engine thread waits with it.
struct HeldAnswer {
  HeldAnswer() {
    recorder->on_prompt = [this] {
      started.Notify();
      go_on.WaitForNotification();
    };
  }
  const std::shared_ptr<GenerateRecorder> recorder = std::make_shared<GenerateRecorder>();
  absl::Notification started, go_on;
};

/// A small random model of a family, of those that tests/integration/architectures_test.cc compares with
/// others' logits.
inline std::string ArchitecturePath(const std::string& name) {
  return KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/" + name + ".gguf";
}

/// Writes that model with another window in its layers that have one.
inline void WriteWithWindow(const std::string& name, uint32_t window, const std::string& path) {
  std::ifstream file(ArchitecturePath(name), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string key = name + ".attention.sliding_window";
  const size_t begin = bytes.find(key);
  ASSERT_NE(begin, std::string::npos) << name;
  // Behind the key comes the type of its value, in four bytes as this.
  bytes.replace(begin + key.size() + 4, 4, reinterpret_cast<const char*>(&window), 4);
  std::ofstream(path, std::ios::binary) << bytes;
}

/// An engine on the reference backend with a tiny random model, in fp32.
class EngineFixture : public testing::Test {
 protected:
  virtual EngineOptions Options() {
    EngineOptions options;
    options.device = "reference";
    options.kv_dtype = "f32";
    options.chunk_store_bytes = int64_t{64} << 20;
    options.self_check = false;  // has its own test
    return options;
  }
  virtual test_support::TinyModelSpec ModelSpec() { return {}; }

  void SetUp() override {
    EngineOptions options = Options();
    if (options.model_path.empty()) {
      options.model_path = test_support::TemporaryPath("engine_test.gguf");
      ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, ModelSpec()).ok());
    }
    auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
  }

  static GenerateRequest Request(std::vector<std::string> chunks = {"Paris is in France.\n",
                                                                    "Rome is in Italy.\n"}) {
    GenerateRequest request;
    request.prompt.system_text = "Answer.";
    request.prompt.lead_in = "Passages:\n\n";
    request.prompt.chunks = std::move(chunks);
    request.prompt.question = "Where is Paris?";
    request.sampling.max_tokens = 8;
    request.sampling.ignore_eos = true;  // a random model ends when it likes
    return request;
  }

  std::shared_ptr<GenerateRecorder> Generate(GenerateRequest request) {
    return Finished<GenerateRecorder>(&Engine::Generate, std::move(request));
  }

  std::shared_ptr<ScoreRecorder> Score(ScoreRequest request) {
    return Finished<ScoreRecorder>(&Engine::Score, std::move(request));
  }

  std::shared_ptr<PutRecorder> Put(std::vector<std::string> chunks,
                                   Anchoring anchoring = Anchoring::kAnchored) {
    PutChunksRequest request;
    request.system_text = "Answer.";
    request.lead_in = "Passages:\n\n";
    request.anchoring = anchoring;
    request.chunks = std::move(chunks);
    return Finished<PutRecorder>(&Engine::PutChunks, std::move(request));
  }

  std::unique_ptr<Engine> engine_;

 private:
  /// Submits the request, and waits for its end when it was accepted.
  template <typename Recorder, typename Call, typename Request>
  std::shared_ptr<Recorder> Finished(Call submit, Request request) {
    auto recorder = std::make_shared<Recorder>();
    const auto handle = (*engine_.*submit)(std::move(request), recorder);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) recorder->Wait();
    return recorder;
  }
};

}  // namespace kvblend
