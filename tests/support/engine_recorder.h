// Observers that record what an engine reports, and wait for the end.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "engine/api/engine.h"

namespace kvblend::test_support {

/// Everything is to be read after Wait, but for the hooks, which run on the engine's thread.
template <typename Recorder, typename Observer>
struct EndRecorder : Observer {
  absl::Status status = absl::UnknownError("not done");
  absl::Notification done;

  Recorder& Wait() {
    done.WaitForNotification();
    return static_cast<Recorder&>(*this);
  }

 protected:
  void End(const absl::Status& final_status) {
    status = final_status;
    done.Notify();  // a second call would crash, as it should
  }
};

struct GenerateRecorder final : EndRecorder<GenerateRecorder, GenerateObserver> {
  std::vector<PromptReport> prompts;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TextDelta> deltas;
  GenerateResult result;
  std::function<void()> on_prompt = [] {};
  std::function<void()> on_text = [] {};

  void OnPrompt(const PromptReport& report) override {
    prompts.push_back(report);
    on_prompt();
  }
  void OnText(const TextDelta& delta) override {
    text += delta.text;
    token_ids.insert(token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    deltas.push_back(delta);
    on_text();
  }
  void OnDone(const absl::Status& final_status, const GenerateResult& final_result) override {
    result = final_result;
    End(final_status);
  }
};

struct ScoreRecorder final : EndRecorder<ScoreRecorder, ScoreObserver> {
  std::vector<PromptReport> prompts;
  std::vector<ScoredToken> tokens;

  void OnPrompt(const PromptReport& report) override { prompts.push_back(report); }
  void OnToken(const ScoredToken& token) override { tokens.push_back(token); }
  void OnDone(const absl::Status& final_status) override { End(final_status); }
};

struct PutRecorder final : EndRecorder<PutRecorder, PutChunksObserver> {
  std::vector<PutChunkProgress> progress;
  std::function<void()> on_progress = [] {};

  void OnProgress(const PutChunkProgress& chunk) override {
    progress.push_back(chunk);
    on_progress();
  }
  void OnDone(const absl::Status& final_status) override { End(final_status); }
};

}  // namespace kvblend::test_support
