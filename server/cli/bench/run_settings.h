// What results must have in common to stand in one table.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblend/v1/admin.pb.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// Which questions were asked is no part of it, nor where their chunks were stored meanwhile.
// NOLINTNEXTLINE(bugprone-exception-escape): moving JSON throws nothing
struct RunSettings {
  OrderedJson engine;  // what computed: version, model, backend, formats of KV, correction
  BenchOptions options;

  /// "MODEL on BACKEND".
  std::string Title() const;
};

RunSettings MakeRunSettings(const v1::GetInfoResponse& info, const BenchOptions& options);
/// The part of the engine that full prefill depends on: not how chunks are stored or corrected.
OrderedJson FullPrefillEngine(const v1::GetInfoResponse& info);

OrderedJson ToJson(const RunSettings& settings);
/// Reads what ToJson wrote. kInvalidArgument, naming the key, for anything else.
absl::StatusOr<RunSettings> RunSettingsFromJson(const OrderedJson& json);

/// kFailedPrecondition, naming what differs and both values.
absl::Status CheckSameSettings(const RunSettings& ours, const RunSettings& theirs);

}  // namespace kvblend::server::cli
