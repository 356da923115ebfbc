// What is looked at once a request's headers are there, before any of its body is read. For this room's
// sources only.
#pragma once

#include "server/http/allowed_hosts.h"
#include "server/http/http_message.h"
#include "server/http/request_parser.h"

namespace kvblend::server {

/// Headers that must come once at most, and name a host that is allowed. REQUIRES of all here:
/// parser.header_done().
RequestParser::Problem CheckSingleHeaders(RequestParser& parser, const AllowedHosts& allowed_hosts);

/// How the body is sent: in a coding that this server and whoever stands before it understand alike.
RequestParser::Problem CheckTransferEncoding(RequestParser& parser);

/// Puts the target's path and query into the request.
RequestParser::Problem TakeTarget(RequestParser& parser);

/// Only POST has a body, and that is JSON, whose length is told. What else the client expects is nothing.
RequestParser::Problem CheckExpectAndBody(RequestParser& parser);

}  // namespace kvblend::server
