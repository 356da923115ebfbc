#include "server/cli/precompute/document_split.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {
namespace {

// Far below servers' limits, and enough text for many chunks.
constexpr size_t kPieceBytes = size_t{32} << 10;
constexpr size_t kPieceBytesPerToken = 16;

bool IsInsideCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

absl::Status SplitInPieces(
    const SplitCall& split, v1::SplitDocumentRequest request, std::string_view text,
    const std::function<absl::Status(const v1::DocumentChunk& chunk, int64_t own_bytes)>& on_chunk) {
  const size_t usual_bytes =
      std::max(kPieceBytes, kPieceBytesPerToken * static_cast<size_t>(std::max(request.chunk_tokens(), 0)));
  size_t piece_bytes = usual_bytes;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = std::min(begin + piece_bytes, text.size());
    while (end < text.size() && IsInsideCharacter(text[end])) ++end;
    request.set_text(std::string(text.substr(begin, end - begin)));
    request.set_goes_on(end < text.size());
    KVBLEND_ASSIGN_OR_RETURN(const v1::SplitDocumentResponse piece, split(request));
    const auto size = static_cast<int64_t>(end - begin);
    const int64_t split_bytes = piece.next_byte();
    if (split_bytes < 0 || split_bytes > size || (!request.goes_on() && split_bytes != size)) {
      return absl::InternalError(absl::StrCat("of ", size, " bytes of a document, the engine says that ",
                                              split_bytes, " were split"));
    }
    for (int i = 0; i < piece.chunks_size(); ++i) {
      v1::DocumentChunk chunk = piece.chunks(i);
      const int64_t next = i + 1 < piece.chunks_size() ? piece.chunks(i + 1).begin_byte() : split_bytes;
      if (chunk.begin_byte() < 0 || chunk.begin_byte() > chunk.end_byte() || chunk.end_byte() > size) {
        return absl::InternalError(absl::StrCat("the engine says that a chunk has the bytes ",
                                                chunk.begin_byte(), " to ", chunk.end_byte(), " of ", size));
      }
      const int64_t own_bytes = std::max<int64_t>(next - chunk.begin_byte(), 0);
      chunk.set_begin_byte(chunk.begin_byte() + static_cast<int64_t>(begin));
      chunk.set_end_byte(chunk.end_byte() + static_cast<int64_t>(begin));
      KVBLEND_RETURN_IF_ERROR(on_chunk(chunk, own_bytes));
    }
    begin += static_cast<size_t>(split_bytes);
    // Tokens may be long: what was too little for a chunk is sent again with more.
    piece_bytes = split_bytes == 0 ? 2 * piece_bytes : usual_bytes;
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
