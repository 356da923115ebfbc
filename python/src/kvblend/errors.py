"""What a call may end with, the same over both protocols."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc


class Error(Exception):
    """A call that failed.

    code: the name of the gRPC status, such as "INVALID_ARGUMENT", over HTTP too.
    message: what the server says of it: the field, its value and what is allowed.
    retry_after_seconds: when to come back, if the server said so (RESOURCE_EXHAUSTED).
    """

    def __init__(self, code: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by what str() says of them, which does not make another of this class: a pool of processes would
        # break where a call fails.
        return type(self), (self.code, self.message, self.retry_after_seconds), self.__dict__


# What gRPC says of the same: messages and metadata above a limit are RESOURCE_EXHAUSTED there. 502: of a proxy.
_CODE_OF_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
                   405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 411: "INVALID_ARGUMENT",
                   413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 431: "RESOURCE_EXHAUSTED",
                   499: "CANCELLED", 500: "INTERNAL", 501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE",
                   504: "DEADLINE_EXCEEDED"}
_CODE_OF_TYPE = {"invalid_request_error": "INVALID_ARGUMENT", "authentication_error": "UNAUTHENTICATED",
                 "permission_error": "PERMISSION_DENIED", "not_found_error": "NOT_FOUND", "rate_limit_error": "RESOURCE_EXHAUSTED"}
# An error in a stream has no status, and its type is that of several: the server's words for what can end a stream tell them apart.
_CODE_OF_MESSAGE = {"invalid_request_error": {"the request was cancelled": "CANCELLED"},
                    "server_error": {"the engine is shutting down": "UNAVAILABLE", "the deadline": "DEADLINE_EXCEEDED"}}


def of_http_status(status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> Error:
    """headers: of the answer, with names in lower case. Of the two that say when to come back the one of milliseconds is exact."""
    code = _CODE_OF_STATUS.get(status, "INVALID_ARGUMENT" if 400 <= status < 500 else "INTERNAL")
    for name, per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "")
        if value.isdigit():
            return Error(code, message, int(value) / per_second)
    return Error(code, message)


def of_event(error: Any) -> Error:
    """error: what an event of a stream tells of it: type, code, message. A proxy may tell it in another form."""
    if not isinstance(error, dict):
        return Error("INTERNAL", str(error))
    kind, message = str(error.get("type")), str(error.get("message") or "")
    if error.get("code") == "model_not_found":
        return Error("NOT_FOUND", message)
    for begin, code in _CODE_OF_MESSAGE.get(kind, {}).items():
        if message.startswith(begin):
            return Error(code, message)
    return Error(_CODE_OF_TYPE.get(kind, "INTERNAL"), message)


def broken_off() -> Error:
    """The error for a stream that ended before it was over."""
    return Error("UNAVAILABLE", "the answer broke off: its stream ended without [DONE]")


def unreadable(error: Exception) -> Error:
    """The error for an answer that is another than kvblend gives, by what reading it has ended with."""
    return Error("INTERNAL", f"the answer is none of kvblend's HTTP API: {type(error).__name__}: {error}")


def closed() -> Error:
    """The error for a call of a client that was closed."""
    return Error("FAILED_PRECONDITION", "the client is closed")


def closed_during_call() -> Error:
    """The error for a call that was not over when its client was closed, from another thread or task."""
    return Error("CANCELLED", "the client was closed")


def of_grpc(error: grpc.RpcError) -> Error:
    """The error for what a call through grpc's stub or stream has ended with."""
    # Pair by pair: the metadata of grpc.aio calls itself a mapping, of which dict() makes nonsense where
    # keys() has pairs (1.76 to 1.78), and has a name twice where it was sent twice.
    metadata: Any = error.trailing_metadata() or ()
    milliseconds = next((str(value) for name, value in metadata if name == "retry-after-ms"), "")
    return Error(error.code().name, error.details() or "", int(milliseconds) / 1000 if milliseconds.isdigit() else None)
