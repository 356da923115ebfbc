#include "server/cli/bench/reference_cache.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "server/cli/content_hash.h"
#include "server/cli/files.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {
namespace {

using google::protobuf::util::ParseDelimitedFromZeroCopyStream;
using google::protobuf::util::SerializeDelimitedToOstream;

constexpr std::string_view kExtension = ".reference";
// What a process writes takes seconds.
constexpr std::chrono::hours kStale(1);

constexpr std::string_view kMagic = "kvblend bench reference 1\n";

/// The text up to the next newline, which is taken from `rest` with it.
std::string_view TakeLine(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  return line;
}

std::string Encode(std::string_view key, const ReferencePart& part) {
  std::ostringstream body;
  body << key << "\n";
  v1::TextDelta text;
  text.set_text(part.text);
  // Writing to memory does not fail.
  static_cast<void>(SerializeDelimitedToOstream(part.prompt, &body));
  static_cast<void>(SerializeDelimitedToOstream(text, &body));
  for (const v1::ScoredToken& token : part.tokens)
    static_cast<void>(SerializeDelimitedToOstream(token, &body));
  return std::string(kMagic) + ContentHash(body.str()) + "\n" + body.str();
}

absl::StatusOr<ReferencePart> Decode(std::string_view content, std::string_view key) {
  if (!content.starts_with(kMagic)) {
    return absl::DataLossError("it does not begin as a reference of kvblend bench");
  }
  content.remove_prefix(kMagic.size());
  const std::string_view hash = TakeLine(content);
  if (hash != ContentHash(content)) return absl::DataLossError("its checksum is wrong");
  if (TakeLine(content) != key) return absl::DataLossError("it belongs to another prompt or other settings");
  google::protobuf::io::ArrayInputStream stream(content.data(), static_cast<int>(content.size()));
  ReferencePart part;
  v1::TextDelta text;
  bool at_end = false;
  bool valid = ParseDelimitedFromZeroCopyStream(&part.prompt, &stream, nullptr) &&
               ParseDelimitedFromZeroCopyStream(&text, &stream, nullptr);
  while (valid) {
    v1::ScoredToken token;
    valid = ParseDelimitedFromZeroCopyStream(&token, &stream, &at_end);
    if (valid) part.tokens.push_back(std::move(token));
  }
  if (!at_end) return absl::DataLossError("its messages cannot be read");
  part.text = text.text();
  return part;
}

/// Whether it is the name of a file that a process of its own is writing, or was when it ended.
bool IsTemporary(const std::filesystem::path& path) {
  const std::string process = path.extension().string();
  return path.stem().extension() == kExtension && process.size() > 1 &&
         absl::c_all_of(process.substr(1), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

/// Removes what processes that were ended have left half written.
void RemoveStale(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const auto written = std::filesystem::last_write_time(entry->path(), ignored);
    if (ignored || !IsTemporary(entry->path())) continue;
    if (std::filesystem::file_time_type::clock::now() - written > kStale) {
      std::filesystem::remove(entry->path(), ignored);
    }
  }
}

}  // namespace

absl::StatusOr<ReferenceCache> ReferenceCache::Open(std::string folder,
                                                    std::function<void(std::string_view)> warn) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
  }
  RemoveStale(folder);
  return ReferenceCache(std::move(folder), std::move(warn));
}

absl::StatusOr<ReferencePart> ReferenceCache::GetOrCompute(
    const OrderedJson& key, const std::function<absl::StatusOr<ReferencePart>()>& compute) {
  const std::string key_text = JsonLine(key);
  const std::string path = absl::StrCat(folder_, "/", ContentHash(key_text), std::string(kExtension));
  const absl::StatusOr<std::string> content = ReadNamed(path, Allowed::kFile);
  if (content.ok()) {
    auto part = Decode(*content, key_text);
    if (part.ok()) {
      ++found_;
      return part;
    }
    warn_(absl::StrCat(path, " is computed again: ", part.status().message()));
  } else if (!absl::IsNotFound(content.status())) {
    warn_(absl::StrCat(content.status().message(), "; computed again"));
  }
  KVBLEND_ASSIGN_OR_RETURN(ReferencePart part, compute());
  ++computed_;
  // Written under a name of this process's own first, so that nobody reads half a file.
  const std::string temporary = absl::StrCat(path, ".", getpid());
  absl::Status written = WriteFile(temporary, Encode(key_text, part));
  std::error_code error;
  if (written.ok()) {
    std::filesystem::rename(temporary, path, error);
    if (!error) return part;
    written = absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", error.message()));
  }
  std::filesystem::remove(temporary, error);  // a full disk has no room for half a file
  return written;
}

}  // namespace kvblend::server::cli
