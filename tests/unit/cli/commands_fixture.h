// The command line from arguments to exit code, over fake calls.
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
#include "tests/unit/cli/fake_calls.h"

namespace kvblend::server::cli {

class CommandsTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("KVBLEND_SERVER"); }

  int Run(const std::vector<std::string>& arguments) {
    out_.str("");
    err_.str("");
    Terminal terminal{out_, err_};
    return RunCommandLine(arguments, "1.2.3", terminal, cancellation_,
                          [this](const Connection& connection, Cancellation&,
                                 Terminal&) -> absl::StatusOr<std::shared_ptr<Calls>> {
                            connection_ = connection;
                            if (!connect_status_.ok()) return connect_status_;
                            return calls_.Lend();
                          });
  }

  /// The words of `line` are the arguments.
  int RunLine(const std::string& line) {
    return Run(absl::StrSplit(line, absl::ByAnyChar(" \n"), absl::SkipEmpty()));
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

  FakeCalls calls_;
  Cancellation cancellation_;
  Connection connection_;
  absl::Status connect_status_;
  std::ostringstream out_;
  std::ostringstream err_;
  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = temporary_folder_.path();
};

}  // namespace kvblend::server::cli
