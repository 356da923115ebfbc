// The chunks of a load, in the store while it is measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/schedule/clock.h"
#include "server/cli/client.h"
#include "server/cli/load/conversations.h"

namespace kvblend::server::cli {

/// Not thread-safe. What is given must outlive it.
class StoredChunks {
 public:
  using Progress = std::function<void(int64_t done, int64_t total, std::string_view what)>;

  /// `keep`: nothing is removed.
  StoredChunks(Client& client, schedule::Clock& clock, std::string tenant_namespace, bool keep);

  /// Puts the chunks of all conversations, behind the texts that each of them has, as the modes look for
  /// them. After an error, Ctrl-C among them, it finds what the put has stored beyond what it has reported,
  /// and waits no longer than kPatience for a server that answers nothing any more.
  absl::Status Put(const std::vector<Conversation>& conversations, const std::vector<BenchVariant>& modes,
                   const Progress& progress);
  /// Removes what was put and was not there before.
  void Remove();

  static constexpr absl::Duration kPatience = absl::Seconds(30);

 private:
  /// Whether everything that the interrupted put has stored is known now.
  bool FindUnreported(v1::PutChunksRequest interrupted);
  /// Whether a put of the same client is over, behind which the one before is over too.
  bool PutEnds(v1::PutChunksRequest request);

  Client& client_;
  schedule::Clock& clock_;
  const std::string namespace_;
  const bool keep_;
  const std::string label_;  // of the chunks that are put
  std::vector<std::string> new_keys_;
};

}  // namespace kvblend::server::cli
