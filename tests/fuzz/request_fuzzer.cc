// Request messages as a client may send them, sound or not: parsing and converting gives a request or an
// error that says why. Input: one byte
// that chooses the message, then its bytes on the wire.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/strings/ascii.h"
#include "engine/text/utf8.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"
#include "server/convert/parse_message.h"
#include "server/convert/requests.h"
#include "tests/fuzz/check.h"

namespace kvblend::server {
namespace {

using test_support::Check;

void CheckError(const absl::Status& status) {
  Check(status.code() == absl::StatusCode::kInvalidArgument, "the error's code");
  Check(!status.message().empty(), "an error says why");
  Check(!text::FirstInvalidUtf8({status.message().data(), status.message().size()}).has_value(),
        "errors are UTF-8: gRPC sends them as text");
}

template <typename Message>
bool Parse(std::string_view bytes, Message* message) {
  const absl::Status parsed = ParseMessage(bytes, message);
  if (!parsed.ok()) CheckError(parsed);
  return parsed.ok();
}

template <typename Message>
void ExerciseRequest(std::string_view bytes) {
  Message message;
  if (!Parse(bytes, &message)) return;
  const auto request = FromProto(Message(message));
  if (!request.ok()) return CheckError(request.status());
  Check(request->caller.tenant_namespace == message.namespace_(), "the namespace arrives");
}

}  // namespace
}  // namespace kvblend::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvblend;
  using namespace kvblend::server;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      ExerciseRequest<v1::GenerateRequest>(bytes);
      break;
    case 1:
      ExerciseRequest<v1::ScoreRequest>(bytes);
      break;
    case 2:
      ExerciseRequest<v1::PutChunksRequest>(bytes);
      break;
    case 3:
      ExerciseRequest<v1::SplitDocumentRequest>(bytes);
      break;
    case 4:
      ExerciseRequest<v1::PrefetchChunksRequest>(bytes);
      break;
    default: {
      v1::DeleteChunksRequest request;
      if (!Parse(bytes, &request)) break;
      const auto keys = ParseKeys(request.keys());
      if (!keys.ok()) {
        CheckError(keys.status());
        break;
      }
      Check(static_cast<int>(keys->size()) == request.keys_size(), "a key for each of the request's");
      for (int i = 0; i < request.keys_size(); ++i) {
        Check((*keys)[i].ToHex() == absl::AsciiStrToLower(request.keys(i)), "the key that was written");
      }
    }
  }
  return 0;
}
