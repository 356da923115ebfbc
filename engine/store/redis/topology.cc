#include "engine/store/redis/topology.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvblend::store::redis {
namespace {

constexpr std::array<uint16_t, 256> MakeCrcTable() {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000U) != 0 ? (crc << 1) ^ 0x1021U : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrcTable = MakeCrcTable();

constexpr size_t kMaxMasters = 1024;

absl::Status BadSlots(std::string_view what) {
  return absl::DataLossError(absl::StrCat("bad reply to CLUSTER SLOTS: ", std::string(what)));
}

/// What nodes announce as their host: nothing, when they don't know it.
absl::StatusOr<Endpoint> AnnouncedEndpoint(std::string_view host, int64_t port, const Endpoint& asked) {
  if (port < 1 || port > 65535) return BadSlots("port");
  if (host.empty()) return Endpoint{asked.host, static_cast<uint16_t>(port)};
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return ParseEndpoint(is_v6 ? absl::StrCat("[", std::string(host), "]:", port)
                             : absl::StrCat(std::string(host), ":", port));
}

}  // namespace

int32_t SlotOf(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  uint32_t crc = 0;
  for (const char c : key) {
    crc = ((crc << 8) ^ kCrcTable[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xffU]) & 0xffffU;
  }
  return static_cast<int32_t>(crc % kNumSlots);
}

Topology Topology::Single(const Endpoint& endpoint) {
  Topology topology;
  topology.masters = {endpoint};
  topology.slots.fill(0);
  return topology;
}

absl::StatusOr<Topology> ParseClusterSlots(const Reply& reply, const Endpoint& asked) {
  if (reply.type != Reply::Type::kArray) return BadSlots("no array");
  Topology topology;
  for (const Reply& range : reply.elements) {
    // first slot, last slot, [host, port, ...] of the master, then of its replicas
    if (range.type != Reply::Type::kArray || range.elements.size() < 3) return BadSlots("range");
    const Reply& first = range.elements[0];
    const Reply& last = range.elements[1];
    const Reply& master = range.elements[2];
    if (first.type != Reply::Type::kInteger || last.type != Reply::Type::kInteger || first.integer < 0 ||
        last.integer < first.integer || last.integer >= kNumSlots) {
      return BadSlots("slots");
    }
    if (master.type != Reply::Type::kArray || master.elements.size() < 2 ||
        master.elements[1].type != Reply::Type::kInteger) {
      return BadSlots("master");
    }
    const Reply& host = master.elements[0];
    if (host.type != Reply::Type::kString && host.type != Reply::Type::kNil) return BadSlots("host");
    if (host.text == "?") continue;  // its name is not known yet: as if nobody had these slots
    const absl::StatusOr<Endpoint> endpoint = AnnouncedEndpoint(host.text, master.elements[1].integer, asked);
    if (!endpoint.ok()) return BadSlots(std::string(endpoint.status().message()));
    auto place = std::find(topology.masters.begin(), topology.masters.end(), *endpoint);
    if (place == topology.masters.end()) {
      if (topology.masters.size() >= kMaxMasters) return BadSlots("too many masters");
      place = topology.masters.insert(place, *endpoint);
    }
    const auto index = static_cast<uint16_t>(place - topology.masters.begin());
    std::fill(topology.slots.begin() + first.integer, topology.slots.begin() + last.integer + 1, index);
  }
  return topology;
}

std::optional<Redirect> ParseRedirect(const Reply& reply, const Endpoint& asked) {
  const bool moved = reply.is_error("MOVED");
  if (!moved && !reply.is_error("ASK")) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(reply.text, ' ');  // MOVED 3999 127.0.0.1:6381
  if (words.size() != 3) return std::nullopt;
  Redirect redirect{.ask = !moved, .slot = 0, .endpoint = {}};
  if (!absl::SimpleAtoi(words[1], &redirect.slot) || redirect.slot < 0 || redirect.slot >= kNumSlots) {
    return std::nullopt;
  }
  // IPv6 addresses come without brackets.
  const size_t colon = words[2].rfind(':');
  int32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(words[2].substr(colon + 1), &port)) return std::nullopt;
  const std::string host = words[2].substr(0, colon);
  if (host == "?") return std::nullopt;
  const absl::StatusOr<Endpoint> endpoint = AnnouncedEndpoint(host, port, asked);
  if (!endpoint.ok()) return std::nullopt;
  redirect.endpoint = *endpoint;
  return redirect;
}

}  // namespace kvblend::store::redis
