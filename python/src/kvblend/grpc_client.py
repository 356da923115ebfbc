"""Clients over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from kvblend import errors
from kvblend.client import DEFAULT_TIMEOUT_SECONDS, AsyncClient, Client, Response, authorization_of, timeout_of
from kvblend.errors import Error
from kvblend.prompts import enum_of
from kvblend.tls import Certificates
from kvblend.v1 import admin_pb2, admin_pb2_grpc, chunks_pb2, chunks_pb2_grpc, inference_pb2, inference_pb2_grpc

# Answers with the distributions of whole vocabularies are large; the server bounds what it takes.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_END = object()  # of a stream, behind its last message

# gRPC's own, as in dns:///HOST:PORT; it takes any other for the name of a host, and looks for it until the call's time is over.
_SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p")


def _metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    authorization = authorization_of(api_key)
    return (("authorization", authorization),) if authorization else ()


def _check_target(target: str) -> None:
    scheme, found, _ = target.partition("://")
    if found and scheme.lower() not in _SCHEMES:  # the rest is not told: a URL may have a password in it
        raise errors.Error("INVALID_ARGUMENT", f"target begins with '{scheme}://'; allowed: HOST:PORT or unix:PATH")


def _credentials(tls: bool, certificates: Certificates) -> grpc.ChannelCredentials | None:
    return certificates.for_grpc() if tls or certificates.given() else None


def _within(call: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    return call if timeout is None else call | {"timeout": timeout_of(timeout)}


def _correction_request(action: str | int) -> admin_pb2.UpdateCorrectionRequest:
    return admin_pb2.UpdateCorrectionRequest(
        action=enum_of("action", admin_pb2.CorrectionAction, "CORRECTION_ACTION_", action))


def _cancellations() -> int | None:
    """How often the running task was told to end. Python says from 3.11 on; one that a TaskGroup took back is
    still in there before 3.13."""
    task: Any = asyncio.current_task()
    return task.cancelling() if hasattr(task, "cancelling") else None


class GrpcClient(Client):
    """target: HOST:PORT or unix:PATH. timeout: seconds of a whole call. tls: with the system's certificate authorities, or
    with those of the PEM file certificate_authorities. client_certificate, client_key: PEM files of the client's own
    (--tls-client-ca of the server). A file implies tls."""

    def __init__(self, target: str = "127.0.0.1:50051", *, api_key: str | None = None,
                 timeout: float | None = DEFAULT_TIMEOUT_SECONDS, tls: bool = False,
                 certificate_authorities: Path | str | None = None, client_certificate: Path | str | None = None,
                 client_key: Path | str | None = None) -> None:
        _check_target(target)
        credentials = _credentials(tls, Certificates(certificate_authorities, client_certificate, client_key))
        self._channel = (grpc.secure_channel(target, credentials, _OPTIONS) if credentials
                         else grpc.insecure_channel(target, _OPTIONS))
        self._call: dict[str, Any] = {"metadata": _metadata(api_key), "timeout": timeout_of(timeout)}
        self._inference: Any = inference_pb2_grpc.InferenceStub(self._channel)
        self._chunks: Any = chunks_pb2_grpc.ChunksStub(self._channel)
        self._admin: Any = admin_pb2_grpc.AdminStub(self._channel)
        self._closed = False

    def _stream(self, method: Any, request: Any, timeout: float | None = None) -> Generator[Any, None, None]:
        self._check_open()
        call = method(request, **_within(self._call, timeout))
        try:
            yield from call
        except grpc.RpcError as error:
            raise errors.of_grpc(error) from error
        finally:
            call.cancel()

    def stream_events(self, request: inference_pb2.GenerateRequest,
                      timeout: float | None = None) -> Generator[inference_pb2.GenerateEvent, None, None]:
        return self._stream(self._inference.Generate, request, timeout)

    def score_events(self, request: inference_pb2.ScoreRequest,
                     timeout: float | None = None) -> Generator[inference_pb2.ScoreEvent, None, None]:
        """How likely a given continuation is: one report, then one event per token."""
        return self._stream(self._inference.Score, request, timeout)

    def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                          timeout: float | None = None) -> Generator[chunks_pb2.PutChunkProgress, None, None]:
        return self._stream(self._chunks.Put, request, timeout)

    def _call_once(self, method: Any, request: Any, timeout: float | None) -> Any:
        self._check_open()
        try:
            return method(request, **_within(self._call, timeout))
        except grpc.RpcError as error:
            raise errors.of_grpc(error) from error

    def _unary(self, method: str, request: Any, response: type[Response], timeout: float | None = None) -> Response:
        answer: Response = self._call_once(getattr(self._chunks, method), request, timeout)
        return answer

    def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        """Version, model, limits, store and load of the server."""
        answer: admin_pb2.GetInfoResponse = self._call_once(self._admin.GetInfo, admin_pb2.GetInfoRequest(), timeout)
        return answer

    def correction(self, action: str | int = "show", *, timeout: float | None = None) -> admin_pb2.CorrectionInfo:
        """Steers what the server learns of stored KV, with "freeze", "learn" or "reset", and tells how it stands."""
        request = _correction_request(action)
        answer: admin_pb2.CorrectionInfo = self._call_once(self._admin.UpdateCorrection, request, timeout)
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise errors.closed()

    def close(self) -> None:
        self._closed = True
        self._channel.close()


class AsyncGrpcClient(AsyncClient):
    """The same for asyncio; made inside of a running event loop."""

    def __init__(self, target: str = "127.0.0.1:50051", *, api_key: str | None = None,
                 timeout: float | None = DEFAULT_TIMEOUT_SECONDS, tls: bool = False,
                 certificate_authorities: Path | str | None = None, client_certificate: Path | str | None = None,
                 client_key: Path | str | None = None) -> None:
        _check_target(target)
        credentials = _credentials(tls, Certificates(certificate_authorities, client_certificate, client_key))
        self._channel = (grpc.aio.secure_channel(target, credentials, _OPTIONS) if credentials
                         else grpc.aio.insecure_channel(target, _OPTIONS))
        self._call: dict[str, Any] = {"metadata": _metadata(api_key), "timeout": timeout_of(timeout)}
        self._inference: Any = inference_pb2_grpc.InferenceStub(self._channel)
        self._chunks: Any = chunks_pb2_grpc.ChunksStub(self._channel)
        self._admin: Any = admin_pb2_grpc.AdminStub(self._channel)
        self._closed = False

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """What a wait ends with as an Error; a task that is cancelled meanwhile stays so. grpc ends the calls
        of a channel that is closed with a CancelledError as well, with which the task would end without a
        word."""
        before = _cancellations()
        try:
            yield
        except grpc.RpcError as error:
            raise errors.of_grpc(error) from error
        except asyncio.CancelledError as error:
            if self._closed and before is not None and _cancellations() == before:
                raise errors.closed_during_call() from error
            raise

    async def _stream(self, method: Any, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        self._check_open()
        call = method(request, **_within(self._call, timeout))
        messages = aiter(call)
        try:
            while True:
                # Each wait by itself: between two, the reader has the task, and may come from another.
                with self._own_errors():
                    message = await anext(messages, _END)
                if message is _END:
                    return
                yield message
        finally:
            call.cancel()

    def stream_events(self, request: inference_pb2.GenerateRequest,
                      timeout: float | None = None) -> AsyncGenerator[inference_pb2.GenerateEvent, None]:
        return self._stream(self._inference.Generate, request, timeout)

    def score_events(self, request: inference_pb2.ScoreRequest,
                     timeout: float | None = None) -> AsyncGenerator[inference_pb2.ScoreEvent, None]:
        return self._stream(self._inference.Score, request, timeout)

    def put_with_progress(self, request: chunks_pb2.PutChunksRequest,
                          timeout: float | None = None) -> AsyncGenerator[chunks_pb2.PutChunkProgress, None]:
        return self._stream(self._chunks.Put, request, timeout)

    async def _call_once(self, method: Any, request: Any, timeout: float | None) -> Any:
        self._check_open()
        with self._own_errors():
            return await method(request, **_within(self._call, timeout))

    async def _unary(self, method: str, request: Any, response: type[Response], timeout: float | None = None) -> Response:
        answer: Response = await self._call_once(getattr(self._chunks, method), request, timeout)
        return answer

    async def info(self, *, timeout: float | None = None) -> admin_pb2.GetInfoResponse:
        answer: admin_pb2.GetInfoResponse = await self._call_once(self._admin.GetInfo, admin_pb2.GetInfoRequest(), timeout)
        return answer

    async def correction(self, action: str | int = "show", *, timeout: float | None = None) -> admin_pb2.CorrectionInfo:
        request = _correction_request(action)
        answer: admin_pb2.CorrectionInfo = await self._call_once(self._admin.UpdateCorrection, request, timeout)
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise errors.closed()

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()
