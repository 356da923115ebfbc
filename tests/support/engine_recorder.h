// Observers that record what an engine reports, and wait for the end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/api/engine.h"

namespace kvblend::test_support {

/// Everything is to be read after Wait, but for the hooks, which run on the engine's thread.
struct GenerateRecorder final : GenerateObserver {
  std::vector<PromptReport> prompts;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TextDelta> deltas;
  absl::Status status = absl::UnknownError("not done");
  GenerateResult result;
  std::function<void()> on_prompt = [] {};
  absl::Notification done;

  void OnPrompt(const PromptReport& report) override {
    prompts.push_back(report);
    on_prompt();
  }
  void OnText(const TextDelta& delta) override {
    text += delta.text;
    token_ids.insert(token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    deltas.push_back(delta);
  }
  void OnDone(const absl::Status& final_status, const GenerateResult& final_result) override {
    status = final_status;
    result = final_result;
    done.Notify();  // a second call would crash, as it should
  }
  GenerateRecorder& Wait() {
    done.WaitForNotification();
    return *this;
  }
};

struct ScoreRecorder final : ScoreObserver {
  std::vector<PromptReport> prompts;
  std::vector<ScoredToken> tokens;
  absl::Status status = absl::UnknownError("not done");
  absl::Notification done;

  void OnPrompt(const PromptReport& report) override { prompts.push_back(report); }
  void OnToken(const ScoredToken& token) override { tokens.push_back(token); }
  void OnDone(const absl::Status& final_status) override {
    status = final_status;
    done.Notify();
  }
  ScoreRecorder& Wait() {
    done.WaitForNotification();
    return *this;
  }
};

struct PutRecorder final : PutChunksObserver {
  std::vector<PutChunkProgress> progress;
  absl::Status status = absl::UnknownError("not done");
  std::function<void()> on_progress = [] {};
  absl::Notification done;

  void OnProgress(const PutChunkProgress& chunk) override {
    progress.push_back(chunk);
    on_progress();
  }
  void OnDone(const absl::Status& final_status) override {
    status = final_status;
    done.Notify();
  }
  PutRecorder& Wait() {
    done.WaitForNotification();
    return *this;
  }
};

}  // namespace kvblend::test_support
