#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "server/cli/commands/chunks_commands.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"

namespace kvblend::server::cli {
namespace {

absl::Status ReadJsonLines(const std::string& path, std::vector<std::string>& chunks) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(path));
  int number = 0;
  const std::vector<std::string> lines = absl::StrSplit(content, '\n');
  for (const std::string& line : lines) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    KVBLEND_RETURN_IF_ERROR(CheckUtf8Of(absl::StrCat(path, " line ", number), line));
    const auto json = nlohmann::json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (json.is_string()) {
      chunks.push_back(json.get<std::string>());
    } else if (json.is_object() && json.contains("text") && json["text"].is_string()) {
      chunks.push_back(json["text"].get<std::string>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, " must be a JSON string or an object with a string \"text\""));
    }
    chunks.back().erase(0, ByteOrderMarkSize(chunks.back()));
    if (chunks.back().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, " has an empty text; allowed: the text of a chunk"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadChunkTexts(const ChunkTextFlags& flags) {
  std::vector<std::string> chunks;
  for (const std::string& path : flags.files) {
    KVBLEND_ASSIGN_OR_RETURN(std::string text, ReadTextOrStdin(path));
    if (text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path == "-" ? "standard input" : path, " is empty; allowed: the text of a chunk"));
    }
    chunks.push_back(std::move(text));
  }
  if (!flags.jsonl.empty()) KVBLEND_RETURN_IF_ERROR(ReadJsonLines(flags.jsonl, chunks));
  if (chunks.empty()) {
    return absl::InvalidArgumentError("no chunks: name files, or a --jsonl file that is not empty");
  }
  return chunks;
}

void AddChunkTextFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields,
                       ChunkTextFlags& flags) {
  command.add_option("files", flags.files, "Files that hold one chunk each; - reads one from standard input");
  command.add_option("--jsonl", flags.jsonl, "A chunk per line: a JSON string or an object with \"text\"")
      ->type_name("FILE");
  AddAnchorFlags(command, message, fields);
}

}  // namespace kvblend::server::cli
