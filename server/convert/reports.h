// Reports: from the engine's structs to the wire's messages. Stateless, thread-safe.
#pragma once

#include <vector>

#include "engine/api/chunk_info.h"
#include "engine/api/engine.h"
#include "engine/api/request.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {

v1::PromptReport ToProto(const PromptReport& report);
v1::TextDelta ToProto(const TextDelta& delta);
v1::GenerateFinished ToProto(const GenerateResult& result);
v1::ScoredToken ToProto(const ScoredToken& token);
v1::PutChunkProgress ToProto(const PutChunkProgress& progress);
v1::SplitDocumentResponse ToProto(const DocumentChunks& chunks);
v1::PrefetchChunksResponse ToProto(const std::vector<PrefetchedChunk>& chunks);
v1::ChunkInfo ToProto(const ChunkInfo& info);

v1::CorrectionInfo ToProto(const CorrectionStats& stats);

/// Limits come from the options that the engine was made with, the rest from what it says of itself.
v1::GetInfoResponse ToProto(const EngineInfo& info, const EngineStats& stats, const EngineOptions& options);

}  // namespace kvblend::server
