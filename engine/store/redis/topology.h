// Which node of a cluster has which keys.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/redis/resp.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

inline constexpr int32_t kNumSlots = 16384;

/// CRC16 (XMODEM) of the key, or of what lies between its first '{' and the next '}' when that is not empty.
int32_t SlotOf(std::string_view key);

struct Topology {
  static constexpr uint16_t kNone = 0xffff;

  std::vector<Endpoint> masters;
  std::array<uint16_t, kNumSlots> slots;  // indices of masters; kNone: nobody has it

  Topology() { slots.fill(kNone); }
  /// One server with everything.
  static Topology Single(const Endpoint& endpoint);
};

/// Reads the reply to CLUSTER SLOTS. `asked`: who replied, for entries that leave the host out.
/// kDataLoss: it is not of that form. Slots that nobody has are no error.
absl::StatusOr<Topology> ParseClusterSlots(const Reply& reply, const Endpoint& asked);

/// Where a MOVED or ASK error sends its command.
struct Redirect {
  bool ask = false;
  int32_t slot = 0;
  Endpoint endpoint;
};
/// Nothing: not a redirection, or not one that can be followed. `asked` as above.
std::optional<Redirect> ParseRedirect(const Reply& reply, const Endpoint& asked);

}  // namespace kvblend::store::redis
