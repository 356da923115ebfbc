#include "server/cli/precompute/stored_check.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/terminal.h"
#include "server/cli/tier_stats.h"

namespace kvblend::server::cli {
namespace {

constexpr int kKeysPerCall = 1000;  // the most that Stat takes

absl::StatusOr<v1::StatChunksResponse> Stat(Calls& calls, CallGate& gate,
                                            const v1::StatChunksRequest& request) {
  return gate.Ask<v1::StatChunksResponse>([&] { return calls.Stat(request); });
}

absl::Status CheckBatch(Calls& calls, CallGate& gate, v1::StatChunksRequest& request, StoredCheck& check) {
  KVBLEND_ASSIGN_OR_RETURN(v1::StatChunksResponse answer, Stat(calls, gate, request));
  if (request.durable() && answer.missing_keys_size() > 0) {
    v1::StatChunksRequest anywhere;
    anywhere.set_namespace_(request.namespace_());
    anywhere.mutable_keys()->Swap(answer.mutable_missing_keys());
    KVBLEND_ASSIGN_OR_RETURN(answer, Stat(calls, gate, anywhere));
    check.not_durable += answer.chunks_size();
  }
  check.missing += answer.missing_keys_size();
  request.clear_keys();
  return absl::OkStatus();
}

std::string CountedOf(int64_t part, int64_t chunks, const char* what) {
  return absl::StrCat(part, " of ", Counted(chunks, "chunk"), part == 1 ? " is " : " are ", what);
}

}  // namespace

absl::StatusOr<StoredCheck> CheckStored(Calls& calls, CallGate& gate, const std::string& chunk_namespace,
                                        const std::unordered_set<std::string>& keys, bool has_disk) {
  StoredCheck check;
  v1::StatChunksRequest request;
  request.set_namespace_(chunk_namespace);
  request.set_durable(has_disk);
  for (const std::string& key : keys) {
    request.add_keys(key);
    if (request.keys_size() == kKeysPerCall) KVBLEND_RETURN_IF_ERROR(CheckBatch(calls, gate, request, check));
  }
  if (request.keys_size() > 0) KVBLEND_RETURN_IF_ERROR(CheckBatch(calls, gate, request, check));
  return check;
}

absl::Status Explain(const StoredCheck& check, int64_t chunks, int64_t bytes,
                     const v1::GetInfoResponse& info) {
  if (check.total() == 0) return absl::OkStatus();
  std::string message;
  if (check.missing > 0) message = CountedOf(check.missing, chunks, "not in the store at the end");
  if (check.not_durable > 0) {
    absl::StrAppend(&message, message.empty() ? "" : ", and ",
                    CountedOf(check.not_durable, chunks, "in memory but not on disk"));
  }
  const int64_t room = info.store().namespace_byte_limit();
  const v1::TierInfo* disk = FindTier(info, v1::TIER_DISK);
  if (disk != nullptr && disk->failing()) {
    absl::StrAppend(&message, ": the disk is full or failing");
  } else if (bytes > room) {
    absl::StrAppend(&message, ": together they take ", HumanBytes(bytes), " of the ", HumanBytes(room),
                    " that the namespace may take");
  } else if (check.missing > 0) {
    absl::StrAppend(&message, ": they made room for others, or somebody has removed them");
  } else {
    absl::StrAppend(&message, ": there was no room beside what is pinned, or somebody has removed them");
  }
  return absl::UnavailableError(message);
}

}  // namespace kvblend::server::cli
