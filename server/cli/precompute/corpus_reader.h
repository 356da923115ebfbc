// Walks over the documents of a corpus: text files, Markdown files, and JSON Lines with a document per line.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {

struct Document {
  std::string path;         // the file, as the command line names it or the folder that it is in
  std::string id;           // of a line of JSON: its id, or its number ("line 7"); else empty
  std::string text;         // valid UTF-8, more than white space
  int64_t input_bytes = 0;  // what it takes of CorpusReader::total_bytes
  int64_t begin_byte = 0;   // of the text as the file has it: what is before it is a byte order mark

  /// "docs/a.md", "docs/corpus.jsonl#42": what people know it by.
  std::string Name() const;
};

/// One document after the other; memory for one at a time. Not thread-safe.
class CorpusReader {
 public:
  struct Options {
    /// Files of any name, and folders with everything in them that is .txt, .md or .jsonl. Links are
    /// followed; a folder to which several paths lead is read once, under its own name where that is one.
    std::vector<std::string> paths;
    std::string text_field = "text";  // of lines of JSON
    std::string id_field = "id";
    /// The file that the command writes. It is passed over where it lies in a folder of `paths`, and refused
    /// as one of `paths`. Empty: none.
    std::string skipped_file = {};
    int64_t max_line_bytes = kMaxStreamBytes;  // of JSON: more is not kept in memory
  };
  /// Told of each input that cannot be used, such as "docs/c.jsonl line 7: no string \"text\"" (code
  /// kInvalidArgument), and how many bytes it takes. What it returns ends the reading unless OK.
  using OnBad = std::function<absl::Status(const absl::Status& what, int64_t input_bytes)>;

  /// Looks through folders, in order of names; opens nothing. kNotFound: one of the paths is not there.
  /// kInvalidArgument: one of them is skipped_file.
  static absl::StatusOr<CorpusReader> Open(Options options, OnBad on_bad);

  /// Nothing at the end of the corpus. Errors are on_bad's.
  absl::StatusOr<std::optional<Document>> Next();

  int64_t num_files() const { return static_cast<int64_t>(files_.size()); }
  int64_t total_bytes() const { return total_bytes_; }
  /// Files in folders that are of none of the kinds.
  int64_t num_ignored_files() const { return num_ignored_files_; }

 private:
  struct InputFile {
    std::string path;
    int64_t bytes = 0;
    bool is_json_lines = false;
    Allowed allowed = Allowed::kFile;  // of what the command line names, streams too
  };

  CorpusReader(Options options, OnBad on_bad) : options_(std::move(options)), on_bad_(std::move(on_bad)) {}
  absl::Status AddPath(const std::string& path);
  absl::Status AddFolder(const std::string& folder);
  /// Appends what is in a folder to files, folders and links to folders; nothing where it was looked into
  /// before.
  absl::Status LookInto(const std::string& folder, std::vector<std::string>& files,
                        std::vector<std::string>& folders, std::vector<std::string>& links);
  void AddFile(const std::string& path, Allowed allowed);
  /// A whole file, or why it is none.
  absl::StatusOr<Document> ReadTextFile(const InputFile& file) const;
  absl::StatusOr<Document> ParseLine(const InputFile& file, const std::string& line) const;
  absl::StatusOr<std::optional<Document>> NextLine();
  absl::Status OpenLines(const InputFile& file);
  /// The next line, with its end, as `line_`; false: there is none.
  bool ReadLine();

  Options options_;
  OnBad on_bad_;
  std::vector<InputFile> files_;
  int64_t total_bytes_ = 0;
  int64_t num_ignored_files_ = 0;
  std::set<std::pair<dev_t, ino_t>> visited_;  // folders: links may lead in circles, or to the same one twice
  size_t next_file_ = 0;
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, CloseFile> lines_;  // files_[next_file_ - 1], while it is read line by line
  std::string line_;
  int64_t line_number_ = 0;
};

}  // namespace kvblend::server::cli
