// Folders of the real file system for one test alone, whatever runs beside it; gone after the test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace kvblend::test_support {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = ::testing::TempDir() + "kvblend-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed: " << path_;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The path of a file in a folder that all tests of this process share and that goes with it.
inline std::string TemporaryPath(const std::string& name) {
  static const TemporaryFolder folder;
  return folder.path() + "/" + name;
}

}  // namespace kvblend::test_support
