// What arrives from a Redis node, in pieces: replies, maps of slots, redirections, names of chunks. Whatever
// the bytes are, nothing is read out of bounds, no memory is taken beyond what the bytes justify, and what is
// accepted is what its definition allows.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/resp.h"
#include "engine/store/redis/topology.h"

namespace {

using kvblend::store::redis::Endpoint;
using kvblend::store::redis::kNumSlots;
using kvblend::store::redis::Reply;
using kvblend::store::redis::RespReader;
using kvblend::store::redis::Topology;

void Require(bool condition) {
  if (!condition) std::abort();
}

int64_t CountElements(const Reply& reply) {
  auto count = static_cast<int64_t>(reply.elements.size());
  for (const Reply& element : reply.elements) count += CountElements(element);
  return count;
}

void CheckMember(const std::string& text) {
  const auto match = kvblend::store::redis::ParseContentMember(text);
  if (match.has_value()) Require(kvblend::store::redis::ContentMember(*match) == text);
}

void Use(const Reply& reply) {
  const Endpoint asked{"10.0.0.1", 6379};
  Require(CountElements(reply) <= RespReader::kMaxElements);
  const auto topology = kvblend::store::redis::ParseClusterSlots(reply, asked);
  if (topology.ok()) {
    for (const uint16_t index : topology->slots) {
      Require(index == Topology::kNone || index < topology->masters.size());
    }
    for (const Endpoint& endpoint : topology->masters) {
      Require(endpoint.port != 0);
      Require(*kvblend::store::redis::ParseEndpoint(endpoint.ToString()) == endpoint);
    }
  }
  if (const auto redirect = kvblend::store::redis::ParseRedirect(reply, asked)) {
    Require(reply.is_error() && redirect->slot >= 0 && redirect->slot < kNumSlots &&
            redirect->endpoint.port != 0);
  }
  CheckMember(reply.text);
  for (const Reply& element : reply.elements) CheckMember(element.text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxReplyBytes = 1 << 12;
  if (size < 3) return 0;
  // The first bytes say in what pieces the rest comes, and what is expected.
  const size_t piece = 1 + data[0];
  std::vector<std::byte> first(data[1] % 16);
  std::vector<std::byte> second(data[2] % 16);
  const std::vector<absl::Span<std::byte>> destinations = {absl::MakeSpan(first), absl::MakeSpan(second)};
  absl::Span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 3, size - 3);
  RespReader reader;
  reader.ExpectNext(destinations, kMaxReplyBytes);
  while (!rest.empty()) {
    const auto step = rest.subspan(0, piece);
    rest.remove_prefix(step.size());
    if (!reader.Feed(step).ok()) return 0;
    while (true) {
      const auto reply = reader.Next();
      if (!reply.ok()) return 0;
      if (!reply->has_value()) break;
      Use(**reply);
    }
  }
  CheckMember(std::string(reinterpret_cast<const char*>(data), size));
  kvblend::store::redis::SlotOf({reinterpret_cast<const char*>(data), size});
  kvblend::store::redis::ParseEndpoints({reinterpret_cast<const char*>(data), size}).status().IgnoreError();
  return 0;
}
