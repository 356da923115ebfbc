// The command line from arguments to exit code, over a fake engine.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/cli/app.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/cli/fake_client.h"

namespace kvblend::server::cli {

/// Lends the test's client to the command.
class Borrowed : public EngineClient {
 public:
  explicit Borrowed(FakeClient& client) : client_(client) {}
  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request,
                                          const GenerateCallbacks& callbacks) override {
    return client_.Generate(request, callbacks);
  }
  absl::StatusOr<Scores> Score(const ScoreRequest& request) override { return client_.Score(request); }
  absl::Status PutChunks(const PutChunksRequest& request,
                         const std::function<void(const PutChunkProgress&)>& on_progress) override {
    return client_.PutChunks(request, on_progress);
  }
  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override {
    return client_.SplitDocument(request);
  }
  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(const PrefetchChunksRequest& request) override {
    return client_.PrefetchChunks(request);
  }
  absl::StatusOr<StatResult> StatChunks(const std::string& tenant,
                                        absl::Span<const std::string> keys) override {
    return client_.StatChunks(tenant, keys);
  }
  absl::StatusOr<ChunkPage> ListChunks(const std::string& tenant, int32_t size,
                                       const std::string& token) override {
    return client_.ListChunks(tenant, size, token);
  }
  absl::StatusOr<ChangeResult> DeleteChunks(const std::string& tenant,
                                            absl::Span<const std::string> keys) override {
    return client_.DeleteChunks(tenant, keys);
  }
  absl::StatusOr<ChangeResult> DeleteAllChunks(const std::string& tenant) override {
    return client_.DeleteAllChunks(tenant);
  }
  absl::StatusOr<ChangeResult> PinChunks(const std::string& tenant, absl::Span<const std::string> keys,
                                         bool pinned) override {
    return client_.PinChunks(tenant, keys, pinned);
  }
  absl::StatusOr<Info> GetInfo() override { return client_.GetInfo(); }
  absl::Status CheckHealth() override { return client_.CheckHealth(); }

 private:
  FakeClient& client_;
};

class CommandsTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("KVBLEND_SERVER"); }

  int Run(const std::vector<std::string>& arguments) {
    out_.str("");
    err_.str("");
    Terminal terminal{out_, err_};
    return RunCommandLine(arguments, terminal, cancellation_,
                          [this](const Connection& connection, Cancellation&,
                                 Terminal&) -> absl::StatusOr<std::unique_ptr<EngineClient>> {
                            connection_ = connection;
                            if (!connect_status_.ok()) return connect_status_;
                            return std::make_unique<Borrowed>(client_);
                          });
  }

  std::string File(const std::string& name, const std::string& content) {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path) << content;
    return path.string();
  }

  std::string Out() const { return out_.str(); }
  std::string Err() const { return err_.str(); }

  /// Every line of standard output, which must all be JSON objects.
  std::vector<OrderedJson> OutJson() const {
    std::vector<OrderedJson> objects;
    const std::vector<std::string> lines = absl::StrSplit(Out(), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      objects.push_back(OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(objects.back().is_object()) << line;
    }
    return objects;
  }

  FakeClient client_;
  Cancellation cancellation_;
  Connection connection_;
  absl::Status connect_status_;
  std::ostringstream out_;
  std::ostringstream err_;
  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = temporary_folder_.path();
};

}  // namespace kvblend::server::cli
