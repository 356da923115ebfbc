"""What the clients of both protocols refuse before anything is sent."""

import asyncio
import inspect
import pathlib

import pytest

import kvblend
from kvblend.client import put_request


@pytest.mark.parametrize("chunk, named", [({"title": "a", "text": "b"}, "dict"), (b"b", "bytes"), (None, "NoneType"),
                                          (pathlib.PurePosixPath("b"), r"pathlib\S*\.PurePosixPath")])
def test_what_is_no_chunk_is_named_by_its_place_and_type(chunk, named):
    said = rf"chunks\[1\] is a {named}; allowed: str or kvblend\.Document$"
    for kind in (kvblend.HttpClient, kvblend.GrpcClient):
        with kind() as client, pytest.raises(TypeError, match=said):
            client.generate("Where?", ["a", chunk])
    for make in (put_request, lambda chunks: kvblend.make_turn("user", "Where?", chunks)):
        with pytest.raises(TypeError, match=said):
            make(["a", chunk])


@pytest.mark.parametrize("kind", [kvblend.GrpcClient, kvblend.AsyncGrpcClient])
def test_a_url_is_no_target_of_grpc(kind):
    """gRPC would look for a host of that name until the call's time is over."""
    async def made(target):
        if inspect.isawaitable(closed := kind(target).close()):
            await closed
    for url in ("http://127.0.0.1:50051", "HTTPS://user:secret@host", "grpc://host:50051"):
        with pytest.raises(kvblend.Error, match=r"INVALID_ARGUMENT: target begins with '\w+://'; allowed: HOST:PORT or unix:PATH$"):
            asyncio.run(made(url))
    for target in ("127.0.0.1:50051", "dns:///localhost:50051", "unix:///run/kvblend/socket", "unix:socket"):
        asyncio.run(made(target))
