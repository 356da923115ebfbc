// How a connection to a node begins.
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/redis_node.h"

namespace kvblend::store::redis {

absl::StatusOr<Reply> CallNow(Connection& connection, const Wire& wire, int64_t max_reply_bytes,
                              absl::Time deadline) {
  KVBLEND_RETURN_IF_ERROR(connection.Write(AsBytes(wire.head), deadline));
  RespReader reader;
  reader.ExpectNext({}, max_reply_bytes);
  std::array<std::byte, 1 << 14> buffer;
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(const size_t count, connection.Read(absl::MakeSpan(buffer), deadline));
    KVBLEND_RETURN_IF_ERROR(reader.Feed(absl::MakeConstSpan(buffer).first(count)));
    KVBLEND_ASSIGN_OR_RETURN(std::optional<Reply> reply, reader.Next());
    if (reply.has_value()) return *std::move(reply);
  }
}

absl::StatusOr<std::unique_ptr<Connection>> ConnectAndAuthenticate(Transport& transport,
                                                                   const Endpoint& endpoint,
                                                                   const NodeOptions& options) {
  constexpr int64_t kMaxReplyBytes = 1 << 14;
  const absl::Time deadline = options.now() + options.connect_timeout;
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, transport.Connect(endpoint, deadline));
  if (!options.password.empty()) {
    const Wire auth = options.user.empty() ? FormatCommand({"AUTH", options.password})
                                           : FormatCommand({"AUTH", options.user, options.password});
    KVBLEND_ASSIGN_OR_RETURN(const Reply reply, CallNow(*connection, auth, kMaxReplyBytes, deadline));
    if (!reply.is_ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat(endpoint.ToString(), " refuses the password: ", reply.text));
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const Reply reply,
                           CallNow(*connection, FormatCommand({"PING"}), kMaxReplyBytes, deadline));
  // LOADING, NOAUTH, too many clients.
  if (reply.is_error()) {
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), " answers: ", reply.text));
  }
  if (reply.type != Reply::Type::kStatus || reply.text != "PONG") {
    return absl::DataLossError(absl::StrCat(endpoint.ToString(), " does not talk like a Redis node"));
  }
  return connection;
}

}  // namespace kvblend::store::redis
