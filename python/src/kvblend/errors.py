"""What a call may end with, the same over both protocols."""

from __future__ import annotations

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


_CODE_OF_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
                   408: "DEADLINE_EXCEEDED", 413: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 431: "INVALID_ARGUMENT",
                   499: "CANCELLED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


def of_http_status(status: int, message: str, retry_after: str | None = None) -> Error:
    """retry_after: the header of that name."""
    code = _CODE_OF_STATUS.get(status, "INVALID_ARGUMENT" if 400 <= status < 500 else "INTERNAL")
    return Error(code, message, float(retry_after) if retry_after and retry_after.isdigit() else None)


def of_grpc(error: grpc.RpcError) -> Error:
    """The error for what a call through grpc's stub or stream has ended with."""
    metadata: Any = error.trailing_metadata() or ()
    milliseconds = dict(metadata).get("retry-after-ms")
    return Error(error.code().name, error.details() or "", float(milliseconds) / 1000 if milliseconds else None)
