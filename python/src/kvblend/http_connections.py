"""The connections of a blocking client over HTTP, which another thread may close and a forked process must
not share."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import httpcore
import httpx

from kvblend import errors
from kvblend.errors import Error

# A server that turns the client's certificate away says so behind the handshake, which httpx's asyncio does
# not make its own error.
FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError)


def failure(error: Exception) -> Error:
    """The kvblend.Error for one of FAILURES."""
    late = isinstance(error, httpx.TimeoutException)
    return Error("DEADLINE_EXCEEDED" if late else "UNAVAILABLE", str(error) or type(error).__name__)


class Connections:
    """An httpx.Client, the calls that use it, and the sockets that these have opened.

    httpx closes a socket under a thread that reads from it, which does not wake that thread, and frees a
    number that may be another file's by the time the thread looks again. So close() shuts sockets down, which
    ends every wait for them, and httpx's client is closed when the last call is over.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self.closed = False
        self._begin_with(make())
        _ALL.add(self)

    def _begin_with(self, http: httpx.Client | None) -> None:
        self._http = http
        self._calls = 0
        self._streams: weakref.WeakSet[httpcore.NetworkStream] = weakref.WeakSet()
        # To be taken again by the thread that has it: there the collector may find a stream that nobody reads
        # any more.
        self.lock = threading.RLock()
        self.process = os.getpid()

    def acquire(self) -> httpx.Client:
        """For one call, which release() ends."""
        with self.lock:
            if self.closed:
                raise errors.closed()
            self._http = self._http or self._make()
            self._calls += 1
            return self._http

    def release(self) -> None:
        with self.lock:
            self._calls -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.closed and self._calls == 0 and self._http is not None:
            self._http.close()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            for stream in self._streams:
                _shut_down(stream)
            self._close_if_unused()

    def trace(self, _: str, info: dict[str, Any]) -> None:
        """What httpx calls "trace": told of each step of a call, such as that a connection is made, or TLS
        upon one."""
        stream = info.get("return_value")
        if isinstance(stream, httpcore.NetworkStream):
            with self.lock:
                self._streams.add(stream)
                if self.closed:
                    _shut_down(stream)

    def forget(self) -> None:
        """In a forked child: the sockets are the parent's. They are not shut down, and TLS does not end on
        them."""
        for stream in self._streams:
            with suppress(OSError):
                os.close(stream.get_extra_info("socket").detach())
        # Not only the sockets: a thread of the parent, which the child has not, may have held any lock in
        # there.
        self._begin_with(None)


class Call:
    """The time from a request to the end of its answer. Inside, failures of httpx become kvblend.Error."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._process = connections.process
        self.http = connections.acquire()
        self.extensions = {"trace": connections.trace}

    def check(self) -> None:
        """Raises kvblend.Error where the rest of the answer is not for the caller, though it may be there."""
        if self._process != self._connections.process:
            raise Error("UNAVAILABLE", "the process was forked: the answer comes to the one that has asked for it")
        if self._connections.closed:
            raise errors.closed_during_call()

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._process == self._connections.process:
            self._connections.release()
        if isinstance(error, FAILURES):
            try:
                self.check()
            except Error as ended:
                raise ended from error
            raise failure(error) from error


def _shut_down(stream: httpcore.NetworkStream) -> None:
    connection = stream.get_extra_info("socket")
    with suppress(OSError):  # the other side was faster
        # Not SSLSocket's own, which makes a plain socket of it before: another thread could write to that.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


_ALL: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forget_all() -> None:
    for connections in _ALL:
        connections.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
