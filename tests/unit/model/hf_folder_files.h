// Hugging Face folders of tests/fixtures/hf, whole and changed, read from memory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/files/hf_folder.h"
#include "tests/fuzz/folder_exercise.h"

namespace kvblend::model {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUnknown = absl::StatusCode::kUnimplemented;
inline constexpr auto kDamaged = absl::StatusCode::kDataLoss;

inline const std::string kFixtures = KVBLEND_SOURCE_DIR "/tests/fixtures/hf/";

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::map<std::string, std::string> ReadFolder(const std::string& model) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures + model)) {
    files[entry.path().filename()] = ReadWhole(entry.path());
  }
  return files;
}

inline absl::StatusOr<GgufFile> Present(std::map<std::string, std::string> files) {
  return PresentFolder(std::make_shared<MemoryFolder>(std::move(files)), "folder");
}

inline std::vector<float> AllRows(const GgufTensor& tensor) {
  std::vector<float> values(tensor.rows() * tensor.cols());
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    EXPECT_TRUE(tensor.ReadRow(row, absl::MakeSpan(values).subspan(row * tensor.cols(), tensor.cols())).ok());
  }
  return values;
}

inline void ExpectRefused(std::map<std::string, std::string> files, absl::StatusCode code,
                          const std::string& fragment) {
  const auto file = Present(std::move(files));
  EXPECT_EQ(file.status().code(), code) << fragment << ": " << file.status();
  EXPECT_THAT(std::string(file.status().message()), ::testing::HasSubstr(fragment));
}

// The folder with `from` replaced by `to` in one file.
inline std::map<std::string, std::string> Changed(const std::string& model, const std::string& file,
                                                  const std::string& from, const std::string& to) {
  auto files = ReadFolder(model);
  const size_t at = files[file].find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) files[file].replace(at, from.size(), to);
  return files;
}

// A folder of tests/fixtures/make_architectures.py, with `from` replaced by `to` in its config.json.
inline std::map<std::string, std::string> ChangedArchitecture(const std::string& model,
                                                              const std::string& from,
                                                              const std::string& to) {
  const std::string folder = KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/folders/";
  std::map<std::string, std::string> files;
  for (const std::string file : {"config.json", "model.safetensors"}) {
    files[file] = ReadWhole(folder + model + "/" + file);
  }
  files["tokenizer.json"] = ReadWhole(folder + "tokenizer.json");
  std::string& config = files["config.json"];
  const size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) config.replace(at, from.size(), to);
  return files;
}

// The header of a safetensors file changed, and two numbers put behind its data.
inline std::string ChangedHeader(const std::string& file,
                                 const std::function<void(nlohmann::json&, size_t)>& change) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  nlohmann::json header = nlohmann::json::parse(file.substr(sizeof(size), size));
  const std::string data = file.substr(sizeof(size) + size);
  change(header, data.size());
  const std::string text = header.dump();
  size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data + std::string(4, '\0');
}

}  // namespace kvblend::model
