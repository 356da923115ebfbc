#include "server/cli/precompute/corpus_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/text/utf8.h"
#include "nlohmann/json.hpp"
#include "server/cli/files.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {
namespace {

namespace fs = std::filesystem;

std::string Extension(const std::string& path) {
  return absl::AsciiStrToLower(fs::path(path).extension().string());
}

template <typename... Parts>
absl::Status BadInput(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

/// Why a text is of no use as a document; OK when it is.
absl::Status CheckText(std::string_view text) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return BadInput("is binary: byte ", zero, " is zero");
  }
  if (const auto invalid = text::FirstInvalidUtf8(text)) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(*invalid), '\n');
    return BadInput("line ", line, " is not valid UTF-8, at byte ", *invalid);
  }
  text.remove_prefix(ByteOrderMarkSize(text));
  if (text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos) {
    return absl::InvalidArgumentError(text.empty() ? "is empty" : "is nothing but white space");
  }
  return absl::OkStatus();
}

void LeaveOutByteOrderMark(Document& document) {
  const size_t size = ByteOrderMarkSize(document.text);
  document.begin_byte = static_cast<int64_t>(size);
  document.text.erase(0, size);
}

}  // namespace

std::string Document::Name() const { return id.empty() ? path : absl::StrCat(path, "#", id); }

absl::StatusOr<CorpusReader> CorpusReader::Open(Options options, OnBad on_bad) {
  CorpusReader reader(std::move(options), std::move(on_bad));
  for (const std::string& path : reader.options_.paths) KVBLEND_RETURN_IF_ERROR(reader.AddPath(path));
  return reader;
}

absl::Status CorpusReader::AddPath(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": no such file or folder"));
  }
  if (fs::is_directory(status)) return AddFolder(path);
  if (!options_.skipped_file.empty() && fs::is_regular_file(status) &&
      fs::equivalent(path, options_.skipped_file, error)) {
    return BadInput("--output is ", options_.skipped_file, ", which is an input too and would be replaced; ",
                    "allowed: another file");
  }
  AddFile(path, Allowed::kFileOrStream);
  return absl::OkStatus();
}

absl::Status CorpusReader::AddFolder(const std::string& folder) {
  std::vector<std::string> found;
  // Links come last, so that what they lead to and the folder has anyway is named as it is there.
  std::vector<std::string> folders = {folder}, links;
  for (size_t i = 0; !folders.empty() || i < links.size();) {
    std::string path;
    if (folders.empty()) {
      path = links[i++];
    } else {
      path = std::move(folders.back());
      folders.pop_back();
    }
    KVBLEND_RETURN_IF_ERROR(LookInto(path, found, folders, links));
  }
  std::sort(found.begin(), found.end());
  for (const std::string& path : found) {
    const std::string extension = Extension(path);
    std::error_code error;
    if (!options_.skipped_file.empty() && fs::equivalent(path, options_.skipped_file, error)) continue;
    if (extension != ".txt" && extension != ".md" && extension != ".jsonl") {
      ++num_ignored_files_;
    } else {
      AddFile(path, Allowed::kFile);
    }
  }
  return absl::OkStatus();
}

absl::Status CorpusReader::LookInto(const std::string& folder, std::vector<std::string>& files,
                                    std::vector<std::string>& folders, std::vector<std::string>& links) {
  struct stat status;
  if (stat(folder.c_str(), &status) == 0 && !visited_.insert({status.st_dev, status.st_ino}).second) {
    return absl::OkStatus();
  }
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator item(folder, error);
  for (; !error && item != fs::directory_iterator(); item.increment(error)) entries.push_back(*item);
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    std::error_code ignored;
    std::vector<std::string>& list = !entry.is_directory(ignored) ? files
                                     : entry.is_symlink(ignored)  ? links
                                                                  : folders;
    list.push_back(entry.path().string());
  }
  if (error) return on_bad_(BadInput("cannot read ", folder, ": ", error.message()), 0);
  return absl::OkStatus();
}

void CorpusReader::AddFile(const std::string& path, Allowed allowed) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  const int64_t bytes = error ? 0 : static_cast<int64_t>(size);
  total_bytes_ += bytes;
  files_.push_back(
      {.path = path, .bytes = bytes, .is_json_lines = Extension(path) == ".jsonl", .allowed = allowed});
}

absl::StatusOr<std::optional<Document>> CorpusReader::Next() {
  while (true) {
    if (lines_ != nullptr) {
      KVBLEND_ASSIGN_OR_RETURN(std::optional<Document> document, NextLine());
      if (document.has_value()) return document;
      lines_ = nullptr;
    }
    if (next_file_ == files_.size()) return std::nullopt;
    const InputFile& file = files_[next_file_++];
    if (file.is_json_lines) {
      const absl::Status opened = OpenLines(file);
      if (!opened.ok()) KVBLEND_RETURN_IF_ERROR(on_bad_(opened, file.bytes));
      continue;
    }
    absl::StatusOr<Document> document = ReadTextFile(file);
    if (document.ok()) return *std::move(document);
    KVBLEND_RETURN_IF_ERROR(on_bad_(document.status(), file.bytes));
  }
}

absl::StatusOr<Document> CorpusReader::ReadTextFile(const InputFile& file) const {
  Document document{.path = file.path, .id = "", .text = "", .input_bytes = file.bytes};
  KVBLEND_ASSIGN_OR_RETURN(document.text, ReadNamed(file.path, file.allowed));
  if (const absl::Status status = CheckText(document.text); !status.ok()) {
    return BadInput(file.path, ": ", status.message());
  }
  LeaveOutByteOrderMark(document);
  return document;
}

absl::Status CorpusReader::OpenLines(const InputFile& file) {
  absl::StatusOr<server::Descriptor> opened = OpenToRead(file.path, file.allowed);
  if (!opened.ok()) return absl::InvalidArgumentError(opened.status().message());
  decltype(lines_) lines(fdopen(opened->get(), "rb"));
  if (lines == nullptr) return BadInput("cannot read ", file.path, ": ", std::strerror(errno));
  opened->Release();
  const int first = std::fgetc(lines.get());
  if (first == EOF) return BadInput(file.path, ": is empty");
  std::ungetc(first, lines.get());
  lines_ = std::move(lines);
  line_number_ = 0;
  return absl::OkStatus();
}

bool CorpusReader::ReadLine() {
  line_.clear();
  const auto most = static_cast<size_t>(options_.max_line_bytes);
  for (int byte = getc_unlocked(lines_.get()); byte != EOF; byte = getc_unlocked(lines_.get())) {
    line_.push_back(static_cast<char>(byte));
    if (byte == '\n' || line_.size() > most) break;
  }
  return !line_.empty();
}

absl::StatusOr<std::optional<Document>> CorpusReader::NextLine() {
  const InputFile& file = files_[next_file_ - 1];
  while (ReadLine()) {
    ++line_number_;
    const auto line_bytes = static_cast<int64_t>(line_.size());
    if (line_bytes > options_.max_line_bytes) {
      // It may have no end.
      line_ = std::string();
      KVBLEND_RETURN_IF_ERROR(
          on_bad_(BadInput(file.path, " line ", line_number_, ": has more than ", options_.max_line_bytes,
                           " bytes; the rest of the file is not read"),
                  line_bytes));
      return std::nullopt;
    }
    const std::string line(absl::StripSuffix(line_, "\n"));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<Document> document = ParseLine(file, line);
    if (document.ok()) {
      document->input_bytes = line_bytes;
      return *std::move(document);
    }
    KVBLEND_RETURN_IF_ERROR(
        on_bad_(BadInput(file.path, " line ", line_number_, ": ", document.status().message()), line_bytes));
  }
  if (std::ferror(lines_.get()) != 0) {
    KVBLEND_RETURN_IF_ERROR(on_bad_(BadInput(file.path, " line ", line_number_ + 1, ": cannot be read"), 0));
  }
  return std::nullopt;
}

absl::StatusOr<Document> CorpusReader::ParseLine(const InputFile& file, const std::string& line) const {
  if (const auto invalid = text::FirstInvalidUtf8(line)) {
    return BadInput("not valid UTF-8, at byte ", *invalid, " of the line");
  }
  const auto json = nlohmann::json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("no JSON");
  Document document{
      .path = file.path, .id = absl::StrCat("line ", line_number_), .text = "", .input_bytes = 0};
  if (json.is_string()) {
    document.text = json.get<std::string>();
  } else if (json.is_object()) {
    const auto text = json.find(options_.text_field);
    if (text == json.end() || !text->is_string()) {
      return BadInput("no string \"", options_.text_field, "\" in it");
    }
    document.text = text->get<std::string>();
    if (const auto id = json.find(options_.id_field); id != json.end()) {
      if (id->is_string()) document.id = id->get<std::string>();
      if (id->is_number_integer()) document.id = id->dump();
    }
  } else {
    return absl::InvalidArgumentError("neither a JSON string nor an object");
  }
  if (const absl::Status status = CheckText(document.text); !status.ok()) {
    return BadInput("its text ", status.message());
  }
  LeaveOutByteOrderMark(document);
  return document;
}

}  // namespace kvblend::server::cli
