// gRPC's threads for callbacks, kept from the first use to the end of the process.
#pragma once

namespace kvblend::server {

/// gRPC 1.51 starts the threads that call callbacks with the first server or channel that needs them, and
/// ends them with the last one. Their end is a race in which a process now and then aborts ("ref_counted.h:
/// assertion failed: prior > 0", in grpc_cq_internal_unref). After this call there is always one more user.
/// Thread-safe.
void KeepCallbackThreads();

}  // namespace kvblend::server
