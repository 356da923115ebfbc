// Requests and reports as JSON. Requests have the field names of proto/kvblend/v1/inference.proto; an
// enumeration is written "query" or "POLICY_QUERY". Unknown fields and wrong types are errors that name the
// field.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "server/cli/client.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// A kvblend.v1.GenerateRequest. Missing fields keep their defaults; ranges are left to the engine.
absl::StatusOr<GenerateRequest> ParseGenerateRequest(std::string_view json);

OrderedJson ToJson(const PromptReport& report);
OrderedJson ToJson(const TextDelta& delta);
OrderedJson ToJson(const GenerateResult& result);
OrderedJson ToJson(const ScoredToken& token);  // without the distribution
OrderedJson ToJson(const ChunkInfo& chunk);
OrderedJson ToJson(const PutChunkProgress& progress);
OrderedJson ToJson(const Info& info);

}  // namespace kvblend::server::cli
