#include "tests/support/fake_redis.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/store/redis/topology.h"
#include "gtest/gtest.h"

namespace kvblend::store {
namespace {

using redis::Connection;
using redis::Endpoint;

constexpr char kWrongType[] = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

std::string Bulk(const std::string& text) { return absl::StrCat("$", text.size(), "\r\n", text, "\r\n"); }
std::string Integer(int64_t value) { return absl::StrCat(":", value, "\r\n"); }
std::string ArrayOf(size_t size) { return absl::StrCat("*", size, "\r\n"); }

/// Takes one command off the front of what a client wrote; nothing when it is not complete.
std::optional<FakeRedis::Arguments> TakeCommand(std::string& input) {
  size_t at = 0;
  const auto number = [&](char kind) -> std::optional<size_t> {
    const size_t end = input.find("\r\n", at);
    if (end == std::string::npos) return std::nullopt;
    size_t value = 0;
    EXPECT_EQ(input[at], kind) << "the client wrote no RESP";
    EXPECT_TRUE(absl::SimpleAtoi(input.substr(at + 1, end - at - 1), &value));
    at = end + 2;
    return value;
  };
  const std::optional<size_t> count = number('*');
  if (!count.has_value()) return std::nullopt;
  FakeRedis::Arguments arguments;
  for (size_t i = 0; i < *count; ++i) {
    const std::optional<size_t> size = number('$');
    if (!size.has_value() || input.size() < at + *size + 2) return std::nullopt;
    arguments.push_back(input.substr(at, *size));
    at += *size + 2;
  }
  input.erase(0, at);
  return arguments;
}

}  // namespace

class FakeConnection final : public Connection {
 public:
  FakeConnection(FakeRedis& redis, int32_t node, uint64_t incarnation)
      : redis_(redis), node_(node), incarnation_(incarnation) {}

  absl::Status Write(absl::Span<const std::byte> bytes, absl::Time deadline) override {
    if (IsDead()) return absl::UnavailableError("reset");
    if (stalled_ && output_.empty()) {
      redis_.clock_.AdvanceTo(deadline);
      return absl::DeadlineExceededError("stalled");
    }
    input_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    while (!stalled_ && !reset_) {
      const auto command = TakeCommand(input_);
      if (!command.has_value()) break;
      Handle(*command);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> Read(absl::Span<std::byte> buffer, absl::Time deadline) override {
    if (IsDead()) return absl::UnavailableError("reset");
    if (output_.empty()) {
      if (reset_) return absl::UnavailableError("reset");
      redis_.clock_.AdvanceTo(deadline);
      return absl::DeadlineExceededError("stalled");
    }
    const size_t count = std::min(output_.size(), buffer.size());
    std::memcpy(buffer.data(), output_.data(), count);
    output_.erase(0, count);
    return count;
  }

 private:
  bool IsDead() {
    absl::MutexLock lock(&redis_.mutex_);
    return redis_.nodes_[node_].incarnation != incarnation_;
  }

  void Handle(const FakeRedis::Arguments& arguments) {
    FakeRedis::Script script;
    {
      absl::MutexLock lock(&redis_.mutex_);
      ++redis_.num_commands_;
      script = redis_.script_;
    }
    FakeReply reply;
    if (script) reply = script(node_, arguments);
    std::string bytes;
    if (reply.execute) bytes = Execute(arguments);
    if (reply.instead.has_value()) bytes = *reply.instead;
    if (reply.keep_bytes < bytes.size()) bytes.resize(reply.keep_bytes);
    output_ += bytes;
    stalled_ = reply.then == FakeReply::Then::kStall;
    reset_ = reply.then == FakeReply::Then::kReset;
  }

  std::string Execute(const FakeRedis::Arguments& arguments) {
    const std::string name = absl::AsciiStrToUpper(arguments[0]);
    absl::MutexLock lock(&redis_.mutex_);
    if (name == "AUTH") {
      const std::string user = arguments.size() == 3 ? arguments[1] : "";
      authenticated_ = arguments.back() == redis_.password_ && user == redis_.user_;
      return authenticated_ ? "+OK\r\n" : "-WRONGPASS invalid username-password pair\r\n";
    }
    if (!redis_.password_.empty() && !authenticated_) return "-NOAUTH Authentication required.\r\n";
    const bool asking = std::exchange(asking_, name == "ASKING");
    if (name == "ASKING") return "+OK\r\n";
    return redis_.Execute(node_, arguments, asking);
  }

  FakeRedis& redis_;
  const int32_t node_;
  const uint64_t incarnation_;
  std::string input_;
  std::string output_;
  bool stalled_ = false;
  bool reset_ = false;
  bool authenticated_ = false;
  bool asking_ = false;
};

class FakeRedis::Transport final : public redis::Transport {
 public:
  explicit Transport(FakeRedis& redis) : redis_(redis) {}

  absl::StatusOr<std::unique_ptr<Connection>> Connect(const Endpoint& endpoint,
                                                      absl::Time deadline) override {
    absl::MutexLock lock(&redis_.mutex_);
    for (int32_t i = 0; i < static_cast<int32_t>(redis_.nodes_.size()); ++i) {
      if (EndpointOf(i) != endpoint) continue;
      switch (redis_.nodes_[i].connect_fault) {
        case ConnectFault::kRefused:
          return absl::UnavailableError("connection refused");
        case ConnectFault::kTimeout:
          redis_.clock_.AdvanceTo(deadline);
          return absl::DeadlineExceededError("no answer");
        case ConnectFault::kNone:
          return std::make_unique<FakeConnection>(redis_, i, redis_.nodes_[i].incarnation);
      }
    }
    return absl::UnavailableError(absl::StrCat("no route to ", endpoint.ToString()));
  }

 private:
  FakeRedis& redis_;
};

FakeRedis::FakeRedis(int32_t num_nodes)
    : is_cluster_(num_nodes > 0), nodes_(std::max(1, num_nodes)), owners_(redis::kNumSlots) {
  for (int32_t slot = 0; slot < redis::kNumSlots; ++slot) {
    owners_[slot] = static_cast<int32_t>(slot * nodes_.size() / redis::kNumSlots);
  }
}

std::unique_ptr<redis::Transport> FakeRedis::NewTransport() { return std::make_unique<Transport>(*this); }

Endpoint FakeRedis::EndpointOf(int32_t node) { return {absl::StrCat("10.0.0.", node), 7000}; }

void FakeRedis::SetScript(Script script) {
  absl::MutexLock lock(&mutex_);
  script_ = std::move(script);
}

void FakeRedis::ReplyTo(const std::string& command, const FakeReply& reply) {
  SetScript(
      [=](int32_t, const Arguments& arguments) { return arguments[0] == command ? reply : FakeReply{}; });
}

void FakeRedis::SetConnectFault(int32_t node, ConnectFault fault) {
  absl::MutexLock lock(&mutex_);
  nodes_[node].connect_fault = fault;
}

void FakeRedis::Kill(int32_t node) {
  absl::MutexLock lock(&mutex_);
  nodes_[node].connect_fault = ConnectFault::kRefused;
  ++nodes_[node].incarnation;
}

void FakeRedis::Revive(int32_t node) { SetConnectFault(node, ConnectFault::kNone); }

void FakeRedis::RequirePassword(std::string user, std::string password) {
  absl::MutexLock lock(&mutex_);
  user_ = std::move(user);
  password_ = std::move(password);
}

void FakeRedis::MoveSlots(int32_t from, int32_t to) {
  absl::MutexLock lock(&mutex_);
  std::replace(owners_.begin(), owners_.end(), from, to);
  nodes_[to].values.merge(nodes_[from].values);
}

std::vector<std::string> FakeRedis::Keys() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (Node& node : nodes_) {
    for (const auto& [key, value] : node.values) keys.push_back(key);
  }
  return keys;
}

std::optional<std::string> FakeRedis::Get(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const Value* value = Find(nodes_[OwnerOf(key)], key);
  return value == nullptr ? std::nullopt : std::optional(value->text);
}

void FakeRedis::Set(const std::string& key, std::string value) {
  absl::MutexLock lock(&mutex_);
  nodes_[OwnerOf(key)].values[key].text = std::move(value);
}

void FakeRedis::Erase(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  nodes_[OwnerOf(key)].values.erase(key);
}

int64_t FakeRedis::TtlSeconds(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const Value* value = Find(nodes_[OwnerOf(key)], key);
  if (value == nullptr) return -2;
  if (value->expires == absl::InfiniteFuture()) return -1;
  return absl::ToInt64Seconds(value->expires - clock_.Now());
}

std::set<std::string> FakeRedis::Members(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const Value* value = Find(nodes_[OwnerOf(key)], key);
  return value == nullptr ? std::set<std::string>() : value->members;
}

void FakeRedis::AddMember(const std::string& key, const std::string& member) {
  absl::MutexLock lock(&mutex_);
  Value& value = nodes_[OwnerOf(key)].values[key];
  value.is_set = true;
  value.members.insert(member);
}

int32_t FakeRedis::NodeOf(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  return OwnerOf(key);
}

int32_t FakeRedis::OwnerOf(const std::string& key) const { return owners_[redis::SlotOf(key)]; }

FakeRedis::Value* FakeRedis::Find(Node& node, const std::string& key) {
  const auto found = node.values.find(key);
  if (found == node.values.end()) return nullptr;
  if (found->second.expires > clock_.Now()) return &found->second;
  node.values.erase(found);
  return nullptr;
}

std::string FakeRedis::ClusterSlots() const {
  std::string ranges;
  size_t num_ranges = 0;
  for (int32_t first = 0; first < redis::kNumSlots;) {
    int32_t last = first;
    while (last + 1 < redis::kNumSlots && owners_[last + 1] == owners_[first]) ++last;
    const Endpoint endpoint = EndpointOf(owners_[first]);
    absl::StrAppend(&ranges, ArrayOf(3), Integer(first), Integer(last), ArrayOf(3), Bulk(endpoint.host),
                    Integer(endpoint.port), Bulk(std::string(40, 'a')));
    ++num_ranges;
    first = last + 1;
  }
  return ArrayOf(num_ranges) + ranges;
}

std::string FakeRedis::Execute(int32_t node, const Arguments& arguments, bool asking) {
  const std::string name = absl::AsciiStrToUpper(arguments[0]);
  if (name == "PING") return "+PONG\r\n";
  if (name == "CLUSTER") {
    return is_cluster_ ? ClusterSlots() : "-ERR This instance has cluster support disabled\r\n";
  }
  if (arguments.size() < 2) return "-ERR unknown command\r\n";
  if (const int32_t owner = OwnerOf(arguments[1]); owner != node && !asking) {
    return absl::StrCat("-MOVED ", redis::SlotOf(arguments[1]), " ", EndpointOf(owner).ToString(), "\r\n");
  }
  return ExecuteOnKeys(nodes_[node], arguments);
}

std::string FakeRedis::ExecuteOnKeys(Node& node, const Arguments& arguments) {
  const std::string name = absl::AsciiStrToUpper(arguments[0]);
  const std::string& key = arguments[1];
  Value* value = Find(node, key);
  const auto expiry = [&](const std::string& seconds) {
    int64_t count = 0;
    EXPECT_TRUE(absl::SimpleAtoi(seconds, &count) && count > 0) << "EXPIRE " << seconds;
    return clock_.Now() + absl::Seconds(count);
  };
  if (name == "SET") {
    Value set{.text = arguments.at(2), .members = {}, .is_set = false, .expires = absl::InfiniteFuture()};
    if (arguments.size() == 5 && arguments[3] == "EX") set.expires = expiry(arguments[4]);
    node.values[key] = std::move(set);
    return "+OK\r\n";
  }
  if (value != nullptr && value->is_set && (name == "GET" || name == "STRLEN")) return kWrongType;
  if (name == "GET" || name == "MGET") {
    std::string reply = name == "GET" ? "" : ArrayOf(arguments.size() - 1);
    for (size_t i = 1; i < arguments.size(); ++i) {
      const Value* found = Find(node, arguments[i]);
      reply += found == nullptr || found->is_set ? "$-1\r\n" : Bulk(found->text);
    }
    return reply;
  }
  if (name == "STRLEN") {
    return Integer(value == nullptr ? 0 : static_cast<int64_t>(value->text.size()));
  }
  if (name == "EXISTS" || name == "UNLINK") {
    int64_t count = 0;
    for (size_t i = 1; i < arguments.size(); ++i) {
      count += Find(node, arguments[i]) != nullptr ? 1 : 0;
      if (name == "UNLINK") node.values.erase(arguments[i]);
    }
    return Integer(count);
  }
  if (name == "EXPIRE") {
    if (value != nullptr) value->expires = expiry(arguments.at(2));
    return Integer(value != nullptr ? 1 : 0);
  }
  if (name == "PTTL") {
    if (value == nullptr) return Integer(-2);
    if (value->expires == absl::InfiniteFuture()) return Integer(-1);
    return Integer(absl::ToInt64Milliseconds(value->expires - clock_.Now()));
  }
  if (value != nullptr && !value->is_set) return kWrongType;
  if (name == "ZADD") {
    Value& set = node.values[key];
    set.is_set = true;
    return Integer(set.members.insert(arguments.at(3)).second ? 1 : 0);
  }
  std::vector<std::string> members;
  if (value != nullptr) members.assign(value->members.begin(), value->members.end());
  if (name == "ZRANGE") {
    const size_t last = std::min<size_t>(members.size(), std::stoul(arguments.at(3)) + 1);
    std::string reply = ArrayOf(last);
    for (size_t i = 0; i < last; ++i) reply += Bulk(members[i]);
    return reply;
  }
  if (name == "ZREM") {
    for (size_t i = 2; value != nullptr && i < arguments.size(); ++i) value->members.erase(arguments[i]);
    return Integer(1);
  }
  if (name == "ZREMRANGEBYRANK") {
    for (size_t i = std::stoul(arguments.at(2)); i < members.size(); ++i) value->members.erase(members[i]);
    return Integer(0);
  }
  return absl::StrCat("-ERR unknown command '", arguments[0], "'\r\n");
}

}  // namespace kvblend::store
