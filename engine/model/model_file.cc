#include "engine/model/model_file.h"

#include <filesystem>
#include <system_error>

#include "engine/model/files/hf_folder.h"

namespace kvblend::model {

absl::StatusOr<GgufFile> OpenModel(const std::string& path) {
  std::error_code ignored;  // if the path cannot be looked at, opening it as a file gives the error
  if (std::filesystem::is_directory(path, ignored)) return PresentFolder(MapFolder(path), path);
  return GgufFile::Open(path);
}

}  // namespace kvblend::model
