"""Clients over HTTP."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from google.protobuf import json_format
from google.protobuf.message import Message

from kvblend import errors, openai_form
from kvblend.client import DEFAULT_TIMEOUT_SECONDS, AsyncClient, Client, Response, timeout_of
from kvblend.errors import Error
from kvblend.tls import Certificates
from kvblend.v1 import admin_pb2, chunks_pb2, inference_pb2


def _check_url(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise Error("INVALID_ARGUMENT", f"base_url is '{base_url}': {error}") from error
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) >= 1 << 16:
        raise Error("INVALID_ARGUMENT", f"base_url is '{base_url}'; allowed: http://HOST:PORT or https://HOST:PORT")


def _options(base_url: str, api_key: str | None, timeout: float, certificates: Certificates) -> dict[str, Any]:
    _check_url(base_url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # Those who know OpenAI's clients give the URL with /v1.
    return {"base_url": base_url.rstrip("/").removesuffix("/v1"), "headers": headers, "timeout": timeout_of(timeout),
            "verify": certificates.for_http(base_url)}


class _Deadline:
    """The end of a call that may take no longer than `timeout` seconds; None: as long as bytes come in time."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout_of(timeout)
        self.end = None if self.timeout is None else time.monotonic() + self.timeout

    def waits(self) -> dict[str, Any]:
        """What httpx is told of each wait."""
        return {} if self.timeout is None else {"timeout": self.timeout}

    def check(self) -> None:
        if self.end is not None and time.monotonic() >= self.end:
            raise Error("DEADLINE_EXCEEDED", f"the answer was not over within {self.timeout} s")


def _begin(http: httpx.Client | httpx.AsyncClient, of_client: float, of_call: float | None) -> _Deadline:
    """The deadline of a call that begins. The client's timeout is for each wait, of which none is over in no time at all."""
    if http.is_closed:
        raise errors.closed()
    deadline = _Deadline(of_client if of_call is None and of_client <= 0 else of_call)
    deadline.check()
    return deadline


def _request_of(method: str, request: Message) -> dict[str, Any]:
    """What httpx is told for a call of kvblend.v1.Chunks."""
    verb, path = openai_form.CHUNK_PATHS[method]
    fields = openai_form.json_of(request)
    if verb == "GET":
        # Not httpx's "+" for a space, which only forms read as one.
        return {"method": verb, "url": f"{path}?{urlencode(fields, quote_via=quote)}"}
    return {"method": verb, "url": path, "json": fields}


def _parsed(answer: httpx.Response, response: type[Response]) -> Response:
    if answer.status_code != 200:
        raise openai_form.error_of(answer.status_code, answer.content, answer.headers)
    return json_format.Parse(answer.content, response(), ignore_unknown_fields=True)


def _models_of(answer: httpx.Response) -> list[str]:
    if answer.status_code != 200:
        raise openai_form.error_of(answer.status_code, answer.content, answer.headers)
    return [model["id"] for model in answer.json()["data"]]


# A server that turns the client's certificate away says so behind the handshake, which httpx's asyncio does not make its own error.
FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError)


def _failure(error: Exception) -> Error:
    late = isinstance(error, httpx.TimeoutException)
    return Error("DEADLINE_EXCEEDED" if late else "UNAVAILABLE", str(error) or type(error).__name__)


class HttpClient(Client):
    """base_url: of the server, with or without /v1. timeout: seconds for each wait, for the server's next bytes.
    certificate_authorities: a PEM file of those whom an https:// server's certificate may be from; else well-known ones.
    client_certificate, client_key: PEM files of the client's own (--tls-client-ca of the server).
    model: as the server calls it, which refuses every other; empty: the one that it has."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None,
                 client_certificate: Path | str | None = None, client_key: Path | str | None = None, model: str = "") -> None:
        certificates = Certificates(certificate_authorities, client_certificate, client_key)
        self._http = httpx.Client(**_options(base_url, api_key, timeout, certificates))
        self._model = {"model": model} if model else {}
        self._timeout = timeout

    def _lines(self, path: str, body: dict[str, Any], timeout: float | None) -> Iterator[str]:
        deadline = _begin(self._http, self._timeout, timeout)
        try:
            with self._http.stream("POST", path, json=body, **deadline.waits()) as answer:
                if answer.status_code != 200:
                    raise openai_form.error_of(answer.status_code, answer.read(), answer.headers)
                ended = False
                for line in answer.iter_lines():
                    deadline.check()
                    ended = ended or openai_form.is_end(line)
                    yield line
                if not ended:
                    raise errors.broken_off()
        except FAILURES as error:
            raise _failure(error) from error

    def stream_events(self, request: inference_pb2.GenerateRequest,
                      timeout: float | None = None) -> Iterator[inference_pb2.GenerateEvent]:
        for line in self._lines("/v1/chat/completions", openai_form.body_of(request) | self._model, timeout):
            yield from openai_form.events_of(line)

    def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                          timeout: float | None = None) -> Iterator[chunks_pb2.PutChunkProgress]:
        for line in self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}, timeout):
            progress = openai_form.progress_of(line)
            if progress is not None:
                yield progress

    def _ask(self, timeout: float | None, **request: Any) -> httpx.Response:
        deadline = _begin(self._http, self._timeout, timeout)
        try:
            answer = self._http.request(**request, **deadline.waits())
        except FAILURES as error:
            raise _failure(error) from error
        deadline.check()
        return answer

    def _unary(self, method: str, request: Message, response: type[Response], timeout: float | None = None) -> Response:
        return _parsed(self._ask(timeout, **_request_of(method, request)), response)

    def models(self, *, timeout: float | None = None) -> list[str]:
        """What the server calls its model."""
        return _models_of(self._ask(timeout, method="GET", url="/v1/models"))

    def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        """What the server is, and what it is doing at the moment."""
        return _parsed(self._ask(timeout, method="GET", url="/v1/info"), admin_pb2.GetInfoResponse)

    def close(self) -> None:
        self._http.close()


class AsyncHttpClient(AsyncClient):
    """The same for asyncio."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None,
                 client_certificate: Path | str | None = None, client_key: Path | str | None = None, model: str = "") -> None:
        certificates = Certificates(certificate_authorities, client_certificate, client_key)
        self._http = httpx.AsyncClient(**_options(base_url, api_key, timeout, certificates))
        self._model = {"model": model} if model else {}
        self._timeout = timeout

    async def _lines(self, path: str, body: dict[str, Any], timeout: float | None) -> AsyncIterator[str]:
        deadline = _begin(self._http, self._timeout, timeout)
        try:
            async with self._http.stream("POST", path, json=body, **deadline.waits()) as answer:
                if answer.status_code != 200:
                    raise openai_form.error_of(answer.status_code, await answer.aread(), answer.headers)
                ended = False
                async for line in answer.aiter_lines():
                    deadline.check()
                    ended = ended or openai_form.is_end(line)
                    yield line
                if not ended:
                    raise errors.broken_off()
        except FAILURES as error:
            raise _failure(error) from error

    async def stream_events(self, request: inference_pb2.GenerateRequest,
                            timeout: float | None = None) -> AsyncIterator[inference_pb2.GenerateEvent]:
        async for line in self._lines("/v1/chat/completions", openai_form.body_of(request) | self._model, timeout):
            for event in openai_form.events_of(line):
                yield event

    async def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                                timeout: float | None = None) -> AsyncIterator[chunks_pb2.PutChunkProgress]:
        async for line in self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}, timeout):
            progress = openai_form.progress_of(line)
            if progress is not None:
                yield progress

    async def _ask(self, timeout: float | None, **request: Any) -> httpx.Response:
        deadline = _begin(self._http, self._timeout, timeout)
        try:
            answer = await self._http.request(**request, **deadline.waits())
        except FAILURES as error:
            raise _failure(error) from error
        deadline.check()
        return answer

    async def _unary(self, method: str, request: Message, response: type[Response],
                     timeout: float | None = None) -> Response:
        return _parsed(await self._ask(timeout, **_request_of(method, request)), response)

    async def models(self, *, timeout: float | None = None) -> list[str]:
        return _models_of(await self._ask(timeout, method="GET", url="/v1/models"))

    async def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        return _parsed(await self._ask(timeout, method="GET", url="/v1/info"), admin_pb2.GetInfoResponse)

    async def close(self) -> None:
        await self._http.aclose()
