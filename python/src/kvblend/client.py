"""What clients of both protocols can do. Each kind adds how bytes go; see grpc_client.py and http_client.py."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from google.protobuf.message import Message

from kvblend.errors import Error
from kvblend.prompts import Answer, Document, enum_of, make_request, refuse_single, texts_of
from kvblend.v1 import admin_pb2
from kvblend.v1 import chunks_pb2 as chunks_v1
from kvblend.v1 import inference_pb2 as v1

Response = TypeVar("Response", bound=Message)
Blocking = TypeVar("Blocking", bound="Client")
Asynchronous = TypeVar("Asynchronous", bound="AsyncClient")
DEFAULT_TIMEOUT_SECONDS = 600.0
MAX_TIMEOUT_SECONDS = 365 * 86400.0


def timeout_of(seconds: float | None) -> float | None:
    """At most a year, even of math.inf: with much more, calls over gRPC end at once, and clocks overflow."""
    if seconds is None:
        return None
    if math.isnan(seconds):
        raise ValueError("timeout is nan; allowed: a number of seconds")
    return min(seconds, MAX_TIMEOUT_SECONDS)


def authorization_of(api_key: str | None) -> str | None:
    """The value of that header or metadata; None without a key. A key may have been read with the end of its line; what is wrong
    with one is told without it, since errors are logged."""
    key = (api_key or "").strip()
    if not key.isascii() or not (key == "" or key.isprintable()):
        raise Error("INVALID_ARGUMENT", "api_key has a character that no key has; allowed: printable ones of ASCII")
    return f"Bearer {key}" if key else None


def put_request(chunks: Iterable[str | Document], *, system_text: str = "", lead_in: str = "", namespace: str = "",
                label: str = "", chunk_labels: Sequence[str] = (), pin: bool = False, anchoring: str | int = "",
                priority: str | int = "") -> chunks_v1.PutChunksRequest:
    """system_text and lead_in: as the prompts will have them. chunk_labels: one each, instead of label. anchoring: "anchored"
    or "isolated"; priority: "high", "normal" or "low"."""
    refuse_single("chunk_labels", chunk_labels, "a list of str")
    return chunks_v1.PutChunksRequest(
        namespace=namespace, system_text=system_text, lead_in=lead_in, chunks=texts_of(chunks), label=label,
        chunk_labels=chunk_labels, pin=pin, anchoring=enum_of("anchoring", chunks_v1.Anchoring, "ANCHORING_", anchoring),
        priority=enum_of("priority", chunks_v1.Priority, "PRIORITY_", priority))


def split_request(text: str, fields: dict[str, Any], anchoring: str | int) -> chunks_v1.SplitDocumentRequest:
    if fields.get("goes_on"):  # the texts of the chunks do not tell where the next piece begins
        raise ValueError("goes_on is True; allowed: False: split takes the whole document")
    return chunks_v1.SplitDocumentRequest(
        text=text, anchoring=enum_of("anchoring", chunks_v1.Anchoring, "ANCHORING_", anchoring), **fields)


def prefetch_request(chunks: Iterable[str | Document], fields: dict[str, Any],
                     anchoring: str | int) -> chunks_v1.PrefetchChunksRequest:
    return chunks_v1.PrefetchChunksRequest(
        chunks=texts_of(chunks), anchoring=enum_of("anchoring", chunks_v1.Anchoring, "ANCHORING_", anchoring), **fields)


def keys_of(keys: Sequence[str]) -> Sequence[str]:
    refuse_single("keys", keys, "a list of str")
    return keys


def texts_of_split(text: str, response: chunks_v1.SplitDocumentResponse) -> list[str]:
    data = text.encode()
    return [data[chunk.begin_byte:chunk.end_byte].decode() for chunk in response.chunks]


def page_request(namespace: str, token: str) -> chunks_v1.ListChunksRequest:
    return chunks_v1.ListChunksRequest(namespace=namespace, page_size=1000, page_token=token)


def delete_request(keys: Sequence[str] | None, namespace: str) -> chunks_v1.DeleteChunksRequest:
    return chunks_v1.DeleteChunksRequest(namespace=namespace, keys=[] if keys is None else keys_of(keys), all=keys is None)


def deleted_of(response: chunks_v1.DeleteChunksResponse) -> int:
    """How many chunks were removed. Raises kvblend.Error where the server's disk or Redis did not remove some."""
    if response.failed:
        more = f" and {response.failed - 1} more" if response.failed > 1 else ""
        raise Error("UNAVAILABLE", f"not removed everywhere, so that they may be found again: {response.failed_keys[0]}{more}: "
                                   f"{response.failure}")
    return response.deleted


class Client(ABC):
    """A connection to one server. Threads may share it. Calls raise kvblend.Error.

    timeout of a call: seconds for all of it, instead of the client's; DEADLINE_EXCEEDED when they have passed. Over gRPC the
    server knows it, and refuses at once what cannot be done in time; over HTTP the client stops waiting, which cancels.
    """

    @abstractmethod
    def stream_events(self, request: v1.GenerateRequest, timeout: float | None = None) -> Generator[v1.GenerateEvent, None, None]:
        """The events of an answer as they come. The report of the prompt is the first over gRPC; over HTTP it comes before
        the last one. Whoever stops reading (close() of the iterator) cancels the request."""

    @abstractmethod
    def put_with_progress(self, request: chunks_v1.PutChunksRequest,
                          timeout: float | None = None) -> Generator[chunks_v1.PutChunkProgress, None, None]:
        """Computes chunks and stores them; tells of each when it is done."""

    @abstractmethod
    def _unary(self, method: str, request: Message, response: type[Response], timeout: float | None = None) -> Response:
        """A call of kvblend.v1.Chunks with one answer."""

    @abstractmethod
    def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        """Version, model, limits, store and load of the server."""

    @abstractmethod
    def close(self) -> None:
        """Ends the calls that other threads are waiting for, with CANCELLED."""

    def __enter__(self: Blocking) -> Blocking:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def generate(self, question: str, chunks: Iterable[str | Document] = (), *, timeout: float | None = None,
                 **fields: Any) -> Answer:
        """The whole answer; fields: see kvblend.make_request."""
        answer = Answer()
        for event in self.stream_events(make_request(question, chunks, **fields), timeout):
            answer.add(event)
        return answer

    def stream(self, question: str, chunks: Iterable[str | Document] = (), *, timeout: float | None = None,
               **fields: Any) -> Generator[str, None, None]:
        """The answer's text, piece by piece; fields: see kvblend.make_request."""
        for event in self.stream_events(make_request(question, chunks, **fields), timeout):
            if event.text.text:
                yield event.text.text

    def put(self, chunks: Iterable[str | Document], *, timeout: float | None = None,
            **fields: Any) -> list[chunks_v1.PutChunkProgress]:
        """Stores chunks ahead of the prompts that use them; fields: see kvblend.client.put_request."""
        return list(self.put_with_progress(put_request(chunks, **fields), timeout))

    def split(self, text: str, *, anchoring: str | int = "", timeout: float | None = None, **fields: Any) -> list[str]:
        """The document's chunks; anchoring: as for put(); fields: those of kvblend.v1.SplitDocumentRequest."""
        request = split_request(text, fields, anchoring)
        return texts_of_split(text, self._unary("Split", request, chunks_v1.SplitDocumentResponse, timeout))

    def prefetch(self, chunks: Iterable[str | Document], *, anchoring: str | int = "", timeout: float | None = None,
                 **fields: Any) -> list[chunks_v1.PrefetchedChunk]:
        """Brings stored chunks into main memory; anchoring: as for put(); fields: those of kvblend.v1.PrefetchChunksRequest."""
        request = prefetch_request(chunks, fields, anchoring)
        return list(self._unary("Prefetch", request, chunks_v1.PrefetchChunksResponse, timeout).chunks)

    def stat(self, keys: Sequence[str], namespace: str = "", *, timeout: float | None = None) -> list[chunks_v1.ChunkInfo]:
        """What is stored under these keys; those that are not there are left out."""
        request = chunks_v1.StatChunksRequest(namespace=namespace, keys=keys_of(keys))
        return list(self._unary("Stat", request, chunks_v1.StatChunksResponse, timeout).chunks)

    def list_chunks(self, namespace: str = "", *, timeout: float | None = None) -> Generator[chunks_v1.ChunkInfo, None, None]:
        """All chunks of a namespace, asked for page by page; timeout: of each page."""
        token = ""
        while True:
            page = self._unary("List", page_request(namespace, token), chunks_v1.ListChunksResponse, timeout)
            yield from page.chunks
            token = page.next_page_token
            if not token:
                return

    def delete(self, keys: Sequence[str] | None, namespace: str = "", *, timeout: float | None = None) -> int:
        """Removes chunks, with None all of the namespace; how many there were. UNAVAILABLE: the rest was removed, but some could
        not be from the server's disk or its Redis."""
        request = delete_request(keys, namespace)
        return deleted_of(self._unary("Delete", request, chunks_v1.DeleteChunksResponse, timeout))

    def pin(self, keys: Sequence[str], pinned: bool = True, namespace: str = "", *, timeout: float | None = None) -> int:
        """Keeps chunks from being evicted, or lets them go; how many there were."""
        request = chunks_v1.PinChunksRequest(namespace=namespace, keys=keys_of(keys), pinned=pinned)
        return self._unary("Pin", request, chunks_v1.PinChunksResponse, timeout).changed


class AsyncClient(ABC):
    """The same for asyncio: every call as Client has it. One event loop uses it."""

    @abstractmethod
    def stream_events(self, request: v1.GenerateRequest,
                      timeout: float | None = None) -> AsyncGenerator[v1.GenerateEvent, None]:
        """See Client.stream_events; aclose() of the iterator cancels."""

    @abstractmethod
    def put_with_progress(self, request: chunks_v1.PutChunksRequest,
                          timeout: float | None = None) -> AsyncGenerator[chunks_v1.PutChunkProgress, None]: ...

    @abstractmethod
    async def _unary(self, method: str, request: Message, response: type[Response], timeout: float | None = None) -> Response: ...

    @abstractmethod
    async def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self: Asynchronous) -> Asynchronous:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def generate(self, question: str, chunks: Iterable[str | Document] = (), *, timeout: float | None = None,
                       **fields: Any) -> Answer:
        answer = Answer()
        async for event in self.stream_events(make_request(question, chunks, **fields), timeout):
            answer.add(event)
        return answer

    async def stream(self, question: str, chunks: Iterable[str | Document] = (), *, timeout: float | None = None,
                     **fields: Any) -> AsyncGenerator[str, None]:
        # Closed here: an event loop that ends would close both at once, and complain.
        async with aclosing(self.stream_events(make_request(question, chunks, **fields), timeout)) as events:
            async for event in events:
                if event.text.text:
                    yield event.text.text

    async def put(self, chunks: Iterable[str | Document], *, timeout: float | None = None,
                  **fields: Any) -> list[chunks_v1.PutChunkProgress]:
        return [progress async for progress in self.put_with_progress(put_request(chunks, **fields), timeout)]

    async def split(self, text: str, *, anchoring: str | int = "", timeout: float | None = None, **fields: Any) -> list[str]:
        request = split_request(text, fields, anchoring)
        return texts_of_split(text, await self._unary("Split", request, chunks_v1.SplitDocumentResponse, timeout))

    async def prefetch(self, chunks: Iterable[str | Document], *, anchoring: str | int = "", timeout: float | None = None,
                 **fields: Any) -> list[chunks_v1.PrefetchedChunk]:
        request = prefetch_request(chunks, fields, anchoring)
        return list((await self._unary("Prefetch", request, chunks_v1.PrefetchChunksResponse, timeout)).chunks)

    async def stat(self, keys: Sequence[str], namespace: str = "", *, timeout: float | None = None) -> list[chunks_v1.ChunkInfo]:
        request = chunks_v1.StatChunksRequest(namespace=namespace, keys=keys_of(keys))
        return list((await self._unary("Stat", request, chunks_v1.StatChunksResponse, timeout)).chunks)

    async def list_chunks(self, namespace: str = "", *, timeout: float | None = None) -> AsyncGenerator[chunks_v1.ChunkInfo, None]:
        token = ""
        while True:
            page = await self._unary("List", page_request(namespace, token), chunks_v1.ListChunksResponse, timeout)
            for chunk in page.chunks:
                yield chunk
            token = page.next_page_token
            if not token:
                return

    async def delete(self, keys: Sequence[str] | None, namespace: str = "", *, timeout: float | None = None) -> int:
        request = delete_request(keys, namespace)
        return deleted_of(await self._unary("Delete", request, chunks_v1.DeleteChunksResponse, timeout))

    async def pin(self, keys: Sequence[str], pinned: bool = True, namespace: str = "", *, timeout: float | None = None) -> int:
        request = chunks_v1.PinChunksRequest(namespace=namespace, keys=keys_of(keys), pinned=pinned)
        return (await self._unary("Pin", request, chunks_v1.PinChunksResponse, timeout)).changed
