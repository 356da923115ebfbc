// The calls as the engine of this process answers them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "engine/api/options.h"
#include "server/calls/calls.h"
#include "server/calls/engine_slot.h"

namespace kvblend::server {

/// What GetInfo tells besides what the engine says of itself.
struct ServingInfo {
  EngineOptions engine_options;   // for limits
  int64_t max_message_bytes = 0;  // of one request; 0: no limit
};

/// All calls are kUnavailable while the slot has no engine.
class EngineCalls : public Calls {
 public:
  /// `engine_slot` must outlive this object.
  EngineCalls(EngineSlot* engine_slot, ServingInfo serving_info);

  Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                   std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override;
  Started Score(v1::ScoreRequest request, const CallerContext& caller,
                std::shared_ptr<EventSink<v1::ScoreEvent>> sink) override;
  Started Put(v1::PutChunksRequest request, const CallerContext& caller,
              std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) override;
  absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                  const CallerContext& caller) override;
  absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(v1::PrefetchChunksRequest request) override;
  absl::StatusOr<v1::StatChunksResponse> Stat(v1::StatChunksRequest request) override;
  absl::StatusOr<v1::ListChunksResponse> List(v1::ListChunksRequest request) override;
  absl::StatusOr<v1::DeleteChunksResponse> Delete(v1::DeleteChunksRequest request) override;
  absl::StatusOr<v1::PinChunksResponse> Pin(v1::PinChunksRequest request) override;
  absl::StatusOr<v1::GetInfoResponse> GetInfo(v1::GetInfoRequest request) override;
  absl::StatusOr<v1::CorrectionInfo> UpdateCorrection(v1::UpdateCorrectionRequest request) override;
  absl::Status CheckHealth() override;

 private:
  const EngineSlot& engine_slot_;
  const ServingInfo serving_info_;
  const absl::Time started_ = SteadyNow();
};

}  // namespace kvblend::server
