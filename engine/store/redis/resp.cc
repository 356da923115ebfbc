#include "engine/store/redis/resp.h"

#include <hiredis/read.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::store::redis {

bool Reply::is_error(std::string_view code) const {
  return type == Type::kError && text.size() >= code.size() && text.compare(0, code.size(), code) == 0 &&
         (text.size() == code.size() || text[code.size()] == ' ');
}

namespace {

void Append(std::string& out, std::string_view argument) {
  absl::StrAppend(&out, "$", argument.size(), "\r\n");
  out.append(argument).append("\r\n");
}

}  // namespace

Wire FormatCommand(absl::Span<const std::string_view> arguments) {
  Wire wire;
  wire.head = absl::StrCat("*", arguments.size(), "\r\n");
  for (const std::string_view argument : arguments) Append(wire.head, argument);
  return wire;
}

Wire FormatCommand(std::initializer_list<std::string_view> before, absl::Span<const std::byte> payload,
                   std::initializer_list<std::string_view> after) {
  Wire wire;
  wire.head = absl::StrCat("*", before.size() + 1 + after.size(), "\r\n");
  for (const std::string_view argument : before) Append(wire.head, argument);
  absl::StrAppend(&wire.head, "$", payload.size(), "\r\n");
  wire.payload = payload;
  wire.tail = "\r\n";
  for (const std::string_view argument : after) Append(wire.tail, argument);
  return wire;
}

/// hiredis calls these while it parses. Elements are made in their parent's vector; hiredis owns the root.
struct RespReader::Functions {
  static RespReader& Self(const redisReadTask* task) { return *static_cast<RespReader*>(task->privdata); }

  static Reply* Make(const redisReadTask* task) {
    if (task->parent == nullptr) return new Reply;
    auto* parent = static_cast<Reply*>(task->parent->obj);
    if (parent == nullptr || task->idx < 0 || task->idx >= static_cast<int>(parent->elements.size())) {
      return nullptr;
    }
    return &parent->elements[task->idx];
  }

  static void* String(const redisReadTask* task, char* data, size_t size) {
    Reply* reply = Make(task);
    if (reply == nullptr) return nullptr;
    switch (task->type) {
      case REDIS_REPLY_ERROR:
        reply->type = Reply::Type::kError;
        break;
      case REDIS_REPLY_STATUS:
        reply->type = Reply::Type::kStatus;
        break;
      default: {
        reply->type = Reply::Type::kString;
        const bool is_root = task->parent == nullptr;
        const bool is_element = !is_root && task->parent->parent == nullptr;
        const auto place = static_cast<size_t>(is_root ? 0 : task->idx);
        const auto& destinations = Self(task).destinations_;
        if ((is_root || is_element) && place < destinations.size() && destinations[place].size() == size) {
          if (size > 0) std::memcpy(destinations[place].data(), data, size);
          reply->at_destination = true;
          return reply;
        }
      }
    }
    reply->text.assign(data, size);
    return reply;
  }

  static void* Array(const redisReadTask* task, int elements) {
    // A few bytes may ask for a lot of memory.
    int32_t& all = Self(task).num_elements_;
    if (task->parent == nullptr) all = 0;
    all = elements < 0 || elements > kMaxElements - all ? kMaxElements + 1 : all + elements;
    if (all > kMaxElements) return nullptr;
    int32_t depth = 1;
    for (const redisReadTask* above = task->parent; above != nullptr; above = above->parent) ++depth;
    if (depth > kMaxDepth) return nullptr;
    Reply* reply = Make(task);
    if (reply == nullptr) return nullptr;
    reply->type = Reply::Type::kArray;
    reply->elements.resize(elements);
    return reply;
  }

  static void* Integer(const redisReadTask* task, long long value) {
    Reply* reply = Make(task);
    if (reply == nullptr) return nullptr;
    reply->type = Reply::Type::kInteger;
    reply->integer = value;
    return reply;
  }

  static void* Nil(const redisReadTask* task) { return Make(task); }

  static void Free(void* reply) { delete static_cast<Reply*>(reply); }

  static redisReplyObjectFunctions Table() { return {String, Array, Integer, Nil, Free}; }
};

void RespReader::FreeReader::operator()(redisReader* reader) const { redisReaderFree(reader); }

RespReader::RespReader() {
  static redisReplyObjectFunctions functions = Functions::Table();
  reader_.reset(redisReaderCreateWithFunctions(&functions));
  if (reader_ != nullptr) reader_->privdata = this;
}

RespReader::~RespReader() = default;

void RespReader::ExpectNext(absl::Span<const absl::Span<std::byte>> destinations, int64_t max_bytes) {
  destinations_.assign(destinations.begin(), destinations.end());
  max_bytes_ = max_bytes;
}

absl::Status RespReader::Feed(absl::Span<const std::byte> bytes) {
  if (reader_ == nullptr) return absl::ResourceExhaustedError("no memory for replies");
  if (redisReaderFeed(reader_.get(), reinterpret_cast<const char*>(bytes.data()), bytes.size()) != REDIS_OK) {
    return absl::DataLossError(absl::StrCat("bad reply: ", reader_->errstr));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Reply>> RespReader::Next() {
  if (reader_ == nullptr) return absl::ResourceExhaustedError("no memory for replies");
  void* taken = nullptr;
  if (redisReaderGetReply(reader_.get(), &taken) != REDIS_OK) {
    if (num_elements_ > kMaxElements) {
      return absl::DataLossError(absl::StrCat("bad reply: too many elements; allowed: ", kMaxElements));
    }
    return absl::DataLossError(absl::StrCat("bad reply: ", reader_->errstr));
  }
  if (taken == nullptr) {
    const auto waiting = static_cast<int64_t>(reader_->len - reader_->pos);
    if (waiting > max_bytes_) {
      return absl::DataLossError(
          absl::StrCat("bad reply: ", waiting, " bytes and no end; allowed: ", max_bytes_));
    }
    return std::optional<Reply>();
  }
  const std::unique_ptr<Reply> reply(static_cast<Reply*>(taken));
  return std::optional<Reply>(std::move(*reply));
}

}  // namespace kvblend::store::redis
