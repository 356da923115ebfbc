// Connections over TCP.
#pragma once

#include <memory>

#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

/// Connects over TCP, to the first of the host's addresses that answers. Looking a name up happens on a
/// thread of its own, so that a name server that does not answer holds nobody up beyond the deadline.
std::unique_ptr<Transport> MakeSocketTransport();

}  // namespace kvblend::store::redis
