// What the backends have in common whose memory is the host's: buffers, streams, copies, plans and tables.
// Operations run before they return.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

class HostBackend : public Backend {
 public:
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) final;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() final;
  absl::Status CopyFromHost(Stream&, void* dst, const void* src, int64_t bytes) final;
  absl::Status CopyToHost(Stream&, void* dst, const void* src, int64_t bytes) final;
  absl::Status Synchronize(Stream&) final { return absl::OkStatus(); }

 protected:
  absl::StatusOr<std::unique_ptr<RopeTable>> DoCreateRopeTable(const RopeSpec& spec) final;
  absl::StatusOr<std::unique_ptr<BatchPlan>> DoPlanBatch(const BatchSpec& spec) final;
  absl::Status DoMassScores(Stream&, ConstMatrixView mass, ConstMatrixView lengths,
                            absl::Span<const ColumnRange> counted, absl::Span<const ColumnRange> wanted,
                            MatrixView out) final;
};

}  // namespace kvblend::kernels
