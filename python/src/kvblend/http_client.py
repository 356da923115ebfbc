"""Clients over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpcore
import httpx
from google.protobuf import json_format
from google.protobuf.message import Message

from kvblend import errors, openai_form
from kvblend.client import DEFAULT_TIMEOUT_SECONDS, AsyncClient, Client, Response, authorization_of, timeout_of
from kvblend.errors import Error
from kvblend.event_stream import Lines
from kvblend.http_connections import FAILURES, Call, Connections, failure
from kvblend.tls import Certificates
from kvblend.v1 import admin_pb2, chunks_pb2, inference_pb2

Done = TypeVar("Done")
# Of an answer that was read whole.
Read = tuple[httpx.Response, bytes]
# How many calls there may be at once is for the server to say. Of httpx's 100 connections, streams that are
# begun and not read would keep all other calls waiting.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)


def _check_url(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise Error("INVALID_ARGUMENT", f"base_url is '{base_url}': {error}") from error
    if url.userinfo:  # httpx would send them instead of the key; not told, since errors are logged
        raise Error("INVALID_ARGUMENT", "base_url has a user or a password; allowed: http://HOST:PORT or https://HOST:PORT, and "
                    "a key as api_key")
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) >= 1 << 16:
        raise Error("INVALID_ARGUMENT", f"base_url is '{base_url}'; allowed: http://HOST:PORT or https://HOST:PORT")


def _options(base_url: str, api_key: str | None, timeout: float | None, certificates: Certificates) -> dict[str, Any]:
    _check_url(base_url)
    authorization = authorization_of(api_key)
    headers = {"Authorization": authorization} if authorization else {}
    # Those who know OpenAI's clients give the URL with /v1.
    return {"base_url": base_url.rstrip("/").removesuffix("/v1"), "headers": headers, "timeout": timeout_of(timeout),
            "verify": certificates.for_http(base_url), "limits": _LIMITS}


class _Deadline:
    """The end of a call that may take no longer than `timeout` seconds; None: as long as bytes come in time."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout_of(timeout)
        self.end = None if self.timeout is None else time.monotonic() + self.timeout

    def waits(self) -> dict[str, Any]:
        """What httpx is told of each wait."""
        return {} if self.timeout is None else {"timeout": self.timeout}

    def left(self) -> float:
        """Seconds; DEADLINE_EXCEEDED where there are none."""
        left = math.inf if self.end is None else self.end - time.monotonic()
        if left <= 0:
            raise self._passed()
        return left

    def shorten_waits(self, answer: httpx.Response) -> None:
        """Of an answer whose body is to be read: no wait for it takes longer than what is left now."""
        left = self.left()
        if self.end is not None:
            answer.request.extensions["timeout"]["read"] = left

    async def within(self, step: Awaitable[Done],
                     cancel: Callable[[asyncio.Future[Done]], object] = lambda task: task.cancel()) -> Done:
        """What `step` comes to, if it does so in time; cancel: what is done about it else."""
        if self.end is None and not isinstance(step, asyncio.Future):
            return await step
        # asyncio.wait_for loses a cancellation, before Python 3.12, where the step ends in the same turn of the loop.
        task = asyncio.ensure_future(step)
        try:
            await asyncio.wait({task}, timeout=None if self.end is None else max(self.end - time.monotonic(), 0))
        finally:
            if not task.done():
                cancel(task)
                await asyncio.wait({task})
        if task.cancelled():
            raise self._passed()
        return task.result()

    def _passed(self) -> Error:
        return Error("DEADLINE_EXCEEDED", f"the answer was not over within {self.timeout} s")


def _deadline(of_client: float | None, of_call: float | None) -> _Deadline:
    """Of a call that begins. The client's timeout is for each wait, of which none is over in no time at
    all."""
    deadline = _Deadline(of_client if of_call is None and of_client is not None and of_client <= 0 else of_call)
    deadline.left()
    return deadline


def _request_of(method: str, request: Message) -> dict[str, Any]:
    """What httpx is told for a call of kvblend.v1.Chunks."""
    verb, path = openai_form.CHUNK_PATHS[method]
    fields = openai_form.json_of(request)
    if verb == "GET":
        # Not httpx's "+" for a space, which only forms read as one.
        return {"method": verb, "url": f"{path}?{urlencode(fields, quote_via=quote)}"}
    return {"method": verb, "url": path, "json": fields}


def _parsed(read: Read, response: type[Response]) -> Response:
    answer, body = read
    _check_status(answer, body)
    with openai_form.reading():
        return json_format.Parse(body, response(), ignore_unknown_fields=True)


def _models_of(read: Read) -> list[str]:
    answer, body = read
    _check_status(answer, body)
    with openai_form.reading():
        return [str(model["id"]) for model in json.loads(body)["data"]]


def _check_status(answer: httpx.Response, body: bytes) -> None:
    if answer.status_code != 200:
        raise openai_form.error_of(answer.status_code, body, answer.headers)


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class HttpClient(Client):
    """base_url: of the server, with or without /v1. timeout: seconds for each wait, for the server's next
    bytes; None: no limit. certificate_authorities: a PEM file of those whom an https:// server's certificate
    may be from; else well-known ones. client_certificate, client_key: PEM files of the client's own
    (--tls-client-ca of the server). model: as the server calls it, which refuses every other; empty: the one
    that it has."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float | None = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None,
                 client_certificate: Path | str | None = None, client_key: Path | str | None = None, model: str = "") -> None:
        certificates = Certificates(certificate_authorities, client_certificate, client_key)
        options = _options(base_url, api_key, timeout, certificates)
        self._connections = Connections(lambda: httpx.Client(**options))
        self._model = {"model": model} if model else {}
        self._timeout = timeout

    def _lines(self, path: str, body: dict[str, Any], timeout: float | None) -> Generator[str, None, None]:
        with Call(self._connections) as call:
            deadline = _deadline(self._timeout, timeout)
            with call.http.stream("POST", path, json=body, extensions=call.extensions, **deadline.waits()) as answer:
                deadline.shorten_waits(answer)
                if answer.status_code != 200:
                    _check_status(answer, self._body(answer, deadline))
                lines, ended = Lines(), False
                for piece in answer.iter_bytes():
                    deadline.left()
                    for line in lines.add(piece):
                        call.check()
                        ended = ended or openai_form.is_end(line)
                        yield line
                    call.check()
                yield from lines.end()
                if not ended:
                    call.check()
                    raise errors.broken_off()

    @staticmethod
    def _body(answer: httpx.Response, deadline: _Deadline) -> bytes:
        pieces = []
        for piece in answer.iter_bytes():
            deadline.left()
            pieces.append(piece)
        return b"".join(pieces)

    def stream_events(self, request: inference_pb2.GenerateRequest,
                      timeout: float | None = None) -> Generator[inference_pb2.GenerateEvent, None, None]:
        for line in self._lines("/v1/chat/completions", openai_form.body_of(request) | self._model, timeout):
            yield from openai_form.events_of(line)

    def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                          timeout: float | None = None) -> Generator[chunks_pb2.PutChunkProgress, None, None]:
        for line in self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}, timeout):
            progress = openai_form.progress_of(line)
            if progress is not None:
                yield progress

    def _ask(self, timeout: float | None, **request: Any) -> Read:
        with Call(self._connections) as call:
            deadline = _deadline(self._timeout, timeout)
            with call.http.stream(**request, extensions=call.extensions, **deadline.waits()) as answer:
                deadline.shorten_waits(answer)
                body = self._body(answer, deadline)
            call.check()
            return answer, body

    def _unary(self, method: str, request: Message, response: type[Response], timeout: float | None = None) -> Response:
        return _parsed(self._ask(timeout, **_request_of(method, request)), response)

    def models(self, *, timeout: float | None = None) -> list[str]:
        """What the server calls its model."""
        return _models_of(self._ask(timeout, method="GET", url="/v1/models"))

    def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        """What the server is, and what it is doing at the moment."""
        return _parsed(self._ask(timeout, method="GET", url="/v1/info"), admin_pb2.GetInfoResponse)

    def close(self) -> None:
        self._connections.close()


class _Progress:
    """How far a request is on its way, as httpx tells its "trace"."""

    def __init__(self, is_closed: Callable[[], bool]) -> None:
        self._is_closed = is_closed
        self._just_connected = self._is_over = False

    async def trace(self, _: str, info: dict[str, Any]) -> None:
        stream = info.get("return_value")
        before, self._just_connected = self._just_connected, isinstance(stream, httpcore.AsyncNetworkStream)
        if isinstance(stream, httpcore.AsyncNetworkStream) and (self._is_over or self._is_closed()):
            await stream.aclose()  # close() knew nothing of it
        if self._is_over and (before or self._just_connected):
            self._is_over = False
            raise asyncio.CancelledError

    def cancel(self, sending: asyncio.Future[httpx.Response]) -> None:
        """Between opening a connection and beginning to write to it, httpcore (1.0.9) forgets on a cancellation
        whose it is: it stays open, and in the pool, for ever. No byte is waited for there, so the next step is
        soon. And as the connection is made, anyio (4.16) loses a cancellation on Python 3.10."""
        self._is_over = True
        if not self._just_connected:
            sending.cancel()


class AsyncHttpClient(AsyncClient):
    """The same for asyncio."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float | None = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None,
                 client_certificate: Path | str | None = None, client_key: Path | str | None = None, model: str = "") -> None:
        certificates = Certificates(certificate_authorities, client_certificate, client_key)
        self._http = httpx.AsyncClient(**_options(base_url, api_key, timeout, certificates))
        self._model = {"model": model} if model else {}
        self._timeout = timeout
        self._closed = False

    def _deadline(self, timeout: float | None) -> _Deadline:
        if self._closed:
            raise errors.closed()
        return _deadline(self._timeout, timeout)

    def _failure(self, error: Exception) -> Error:
        return errors.closed_during_call() if self._closed else failure(error)

    async def _send(self, deadline: _Deadline, **request: Any) -> httpx.Response:
        """The head of an answer, which the caller closes."""
        progress = _Progress(lambda: self._closed)
        sending = asyncio.ensure_future(self._http.send(self._http.build_request(
            **request, extensions={"trace": progress.trace}, **deadline.waits()), stream=True))
        try:
            return await deadline.within(sending, progress.cancel)
        except BaseException:
            # The task may be cancelled in the turn of the loop in which the head came: nobody else knows of
            # the answer then, whose connection the server would go on writing to.
            if sending.done() and not sending.cancelled() and sending.exception() is None:
                await sending.result().aclose()
            raise

    async def _lines(self, path: str, body: dict[str, Any], timeout: float | None) -> AsyncGenerator[str, None]:
        deadline = self._deadline(timeout)
        try:
            answer = await self._send(deadline, method="POST", url=path, json=body)
            # httpx's own context manager would be one generator more, which an event loop that ends closes while this one does.
            try:
                if answer.status_code != 200:
                    _check_status(answer, await deadline.within(answer.aread()))
                lines, ended, pieces = Lines(), False, answer.aiter_bytes()
                while (piece := await deadline.within(_next(pieces))) is not None:
                    for line in lines.add(piece):
                        if self._closed:
                            raise errors.closed_during_call()
                        ended = ended or openai_form.is_end(line)
                        yield line
                for line in lines.end():
                    yield line
                if not ended:
                    raise errors.broken_off()
            finally:
                await answer.aclose()
        except FAILURES as error:
            raise self._failure(error) from error

    async def stream_events(self, request: inference_pb2.GenerateRequest,
                            timeout: float | None = None) -> AsyncGenerator[inference_pb2.GenerateEvent, None]:
        async with aclosing(self._lines("/v1/chat/completions", openai_form.body_of(request) | self._model, timeout)) as lines:
            async for line in lines:
                for event in openai_form.events_of(line):
                    yield event

    async def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                                timeout: float | None = None) -> AsyncGenerator[chunks_pb2.PutChunkProgress, None]:
        async with aclosing(self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}, timeout)) as lines:
            async for line in lines:
                progress = openai_form.progress_of(line)
                if progress is not None:
                    yield progress

    async def _ask(self, timeout: float | None, **request: Any) -> Read:
        deadline = self._deadline(timeout)
        try:
            answer = await self._send(deadline, **request)
            try:
                return answer, await deadline.within(answer.aread())
            finally:
                await answer.aclose()
        except FAILURES as error:
            raise self._failure(error) from error

    async def _unary(self, method: str, request: Message, response: type[Response],
                     timeout: float | None = None) -> Response:
        return _parsed(await self._ask(timeout, **_request_of(method, request)), response)

    async def models(self, *, timeout: float | None = None) -> list[str]:
        return _models_of(await self._ask(timeout, method="GET", url="/v1/models"))

    async def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        return _parsed(await self._ask(timeout, method="GET", url="/v1/info"), admin_pb2.GetInfoResponse)

    async def close(self) -> None:
        self._closed = True
        await self._http.aclose()
