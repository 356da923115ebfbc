// What full prefill gave, kept on disk: the bench's costly part, which does not depend on the rows.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// One thing that full prefill was asked for: scores of tokens, or a text.
struct ReferencePart {
  v1::PromptReport prompt;  // the counts of tokens alone: times are those of one run, and are never kept
  std::vector<v1::ScoredToken> tokens;
  std::string text;
};

/// A folder with one file per key:
///     magic line, XXH3-128 of all that follows (hex, newline), key (JSON line),
///     then PromptReport, TextDelta and any number of ScoredToken, each with its size before it (protobuf)
/// Several processes may use one folder: each writes under a name of its own first, which ends in its number.
/// Not thread-safe.
class ReferenceCache {
 public:
  /// Makes the folder, and removes from it what was left half written more than an hour ago. kInvalidArgument
  /// when it cannot be made. `warn` is told of files that are of no use.
  static absl::StatusOr<ReferenceCache> Open(std::string folder, std::function<void(std::string_view)> warn);

  /// The part that is kept under the key; `compute` makes it and it is kept, where there is none or it is
  /// damaged or another key's. Errors are those of `compute`, and kInvalidArgument when the file cannot be
  /// written.
  absl::StatusOr<ReferencePart> GetOrCompute(const OrderedJson& key,
                                             const std::function<absl::StatusOr<ReferencePart>()>& compute);

  /// Parts so far that were there, and that were not.
  int found() const { return found_; }
  int computed() const { return computed_; }

 private:
  ReferenceCache(std::string folder, std::function<void(std::string_view)> warn)
      : folder_(std::move(folder)), warn_(std::move(warn)) {}

  std::string folder_;
  std::function<void(std::string_view)> warn_;
  int found_ = 0;
  int computed_ = 0;
};

}  // namespace kvblend::server::cli
