"""Clients over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from google.protobuf import json_format
from google.protobuf.message import Message

from kvblend import errors, openai_form
from kvblend.client import DEFAULT_TIMEOUT_SECONDS, AsyncClient, Client, Response
from kvblend.errors import Error
from kvblend.v1 import chunks_pb2, inference_pb2


def _options(base_url: str, api_key: str | None, timeout: float, certificate_authorities: Path | str | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # Those who know OpenAI's clients give the URL with /v1.
    return {"base_url": base_url.rstrip("/").removesuffix("/v1"), "headers": headers, "timeout": timeout,
            "verify": ssl.create_default_context(cafile=certificate_authorities) if certificate_authorities else True}


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
        raise openai_form.error_of(answer.status_code, answer.content, answer.headers.get("retry-after"))
    return json_format.Parse(answer.content, response(), ignore_unknown_fields=True)


def _models_of(answer: httpx.Response) -> list[str]:
    if answer.status_code != 200:
        raise openai_form.error_of(answer.status_code, answer.content, answer.headers.get("retry-after"))
    return [model["id"] for model in answer.json()["data"]]


def _failure(error: httpx.HTTPError) -> Error:
    late = isinstance(error, httpx.TimeoutException)
    return Error("DEADLINE_EXCEEDED" if late else "UNAVAILABLE", str(error) or type(error).__name__)


class HttpClient(Client):
    """base_url: of the server, with or without /v1. timeout: seconds for each wait, for the server's next bytes.
    certificate_authorities: a PEM file of those whom an https:// server's certificate may be from; else well-known ones."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None) -> None:
        self._http = httpx.Client(**_options(base_url, api_key, timeout, certificate_authorities))

    def _lines(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        try:
            with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    raise openai_form.error_of(answer.status_code, answer.read(), answer.headers.get("retry-after"))
                ended = False
                for line in answer.iter_lines():
                    ended = ended or openai_form.is_end(line)
                    yield line
                if not ended:
                    raise errors.broken_off()
        except httpx.HTTPError as error:
            raise _failure(error) from error

    def stream_events(self, request: inference_pb2.GenerateRequest) -> Iterator[inference_pb2.GenerateEvent]:
        for line in self._lines("/v1/chat/completions", openai_form.body_of(request)):
            yield from openai_form.events_of(line)

    def put_with_progress(self, request: chunks_pb2.PutChunksRequest) -> Iterator[chunks_pb2.PutChunkProgress]:
        for line in self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}):
            progress = openai_form.progress_of(line)
            if progress is not None:
                yield progress

    def _unary(self, method: str, request: Message, response: type[Response]) -> Response:
        try:
            return _parsed(self._http.request(**_request_of(method, request)), response)
        except httpx.HTTPError as error:
            raise _failure(error) from error

    def models(self) -> list[str]:
        """What the server calls its model."""
        try:
            return _models_of(self._http.get("/v1/models"))
        except httpx.HTTPError as error:
            raise _failure(error) from error

    def close(self) -> None:
        self._http.close()


class AsyncHttpClient(AsyncClient):
    """The same for asyncio."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str | None = None,
                 timeout: float = DEFAULT_TIMEOUT_SECONDS, certificate_authorities: Path | str | None = None) -> None:
        self._http = httpx.AsyncClient(**_options(base_url, api_key, timeout, certificate_authorities))

    async def _lines(self, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
        try:
            async with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    raise openai_form.error_of(answer.status_code, await answer.aread(), answer.headers.get("retry-after"))
                ended = False
                async for line in answer.aiter_lines():
                    ended = ended or openai_form.is_end(line)
                    yield line
                if not ended:
                    raise errors.broken_off()
        except httpx.HTTPError as error:
            raise _failure(error) from error

    async def stream_events(self, request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateEvent]:
        async for line in self._lines("/v1/chat/completions", openai_form.body_of(request)):
            for event in openai_form.events_of(line):
                yield event

    async def put_with_progress(self, request: chunks_pb2.PutChunksRequest) -> AsyncIterator[chunks_pb2.PutChunkProgress]:
        async for line in self._lines("/v1/chunks", openai_form.json_of(request) | {"stream": True}):
            progress = openai_form.progress_of(line)
            if progress is not None:
                yield progress

    async def _unary(self, method: str, request: Message, response: type[Response]) -> Response:
        try:
            return _parsed(await self._http.request(**_request_of(method, request)), response)
        except httpx.HTTPError as error:
            raise _failure(error) from error

    async def models(self) -> list[str]:
        try:
            return _models_of(await self._http.get("/v1/models"))
        except httpx.HTTPError as error:
            raise _failure(error) from error

    async def close(self) -> None:
        await self._http.aclose()
