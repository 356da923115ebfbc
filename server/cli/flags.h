// Groups of flags that several commands share. A flag that was not given leaves what a request file or the
// engine's defaults say.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cli/command.h"
#include "server/cli/field_flags.h"

namespace kvblend::server::cli {

enum class InProcess : uint8_t { kAllowed, kServerOnly };

/// --server, and with kAllowed --model and the engine's options.
void AddConnectionFlags(CLI::App& command, InProcess in_process, Connection& connection);

/// --timeout of commands whose calls are no streams.
void AddUnaryTimeoutFlag(CLI::App& command, Connection& connection);

/// --namespace and, where the request has one, --priority, among its `fields`.
void AddCallerFields(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields);

/// Who calls, for all requests.
struct CallerFlags {
  std::optional<double> timeout_seconds;

  absl::Time deadline() const;
  /// What became of a call with that deadline; where it was too late, with the flag that set it.
  absl::Status Explain(const absl::Status& status) const;
};
/// AddCallerFields; and --timeout, of streams.
void AddCallerFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields,
                    CallerFlags& flags);

/// --system, --lead-in and, excluding these, --isolated: what stands before chunks that are to be stored.
void AddAnchorFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields);

/// The flags of a prompt and of how it is answered.
struct RequestFlags {
  std::string request_file;
  std::vector<std::string> chunk_texts;
  std::vector<std::string> chunk_files;
  std::optional<std::string> ratio;  // a number, or "auto"
  FieldFlags fields;                 // of v1::GenerateRequest
  CallerFlags caller;
};
enum class Sampling : uint8_t { kYes, kNo };
void AddRequestFlags(CLI::App& command, Sampling sampling, RequestFlags& flags);

/// The request file's content (if one is named) with the flags on top. Chunks of flags come after the file's:
/// first --chunk, then --chunk-file. kInvalidArgument when there is no question.
absl::StatusOr<v1::GenerateRequest> BuildRequest(const RequestFlags& flags);

}  // namespace kvblend::server::cli
