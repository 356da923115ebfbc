"""Requests that are nearly right, to every endpoint of both protocols: each gets a proper status, and the server is as it was.

KVBLEND_TEST_MUTATIONS is how many are sent; 500 without it. With the sanitizer's build, from the root of the repository:

    KVBLEND_TEST_MUTATIONS=10000 KVBLEND_BIN_DIR=build/asan/bin ASAN_OPTIONS=quarantine_size_mb=16 pytest tests/e2e/test_mutations.py -s
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import random
import socket

import pytest

import mutations_grpc
import mutations_http
import tiny_model
from http_client import connect, exchange, read_to_end, request_bytes, status_of

MUTATIONS = int(os.environ.get("KVBLEND_TEST_MUTATIONS", 500))
SENDERS = 8
MAX_GROWTH = 48 << 20  # bytes resident, from the second third of the requests to the last
CHAT = {"messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 8, "temperature": 0,
        "documents": [{"text": "A passage of the test's own."}]}


@pytest.fixture(scope="module")
def fragile(start_server, tmp_path_factory):
    """A server whose model takes no time, and which waits for nobody."""
    model = tiny_model.write(tmp_path_factory.mktemp("tiny"))
    return start_server("--chat-format", "chatml", "--no-self-check", "--chunk-store-bytes", "8MiB", "--max-message-bytes", "256KiB",
                        "--max-text-bytes", "64KiB", "--max-queued-requests", "1000", "--api-request-timeout", "0.3",
                        "--api-idle-timeout", "0.3", "--api-write-timeout", "5", model=model)


def send_http(server, source):
    """(kind, what is wrong with the answer)."""
    kind, data, hangs_up = mutations_http.mutate(source)
    with connect(server) as connection:
        try:
            connection.sendall(data)
            if hangs_up:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was read whole
        answer = read_to_end(connection)
    problem = mutations_http.problem_of(answer, hangs_up, data.startswith(b"HEAD "))
    return f"http {kind}", problem and f"{data!r} got {answer[:500]!r}: {problem}"


def send_frames(server, source, calls):
    """What is no HTTP/2 ends its connection, or is waited for: there is no status to expect."""
    data = bytearray(mutations_grpc.raw_call(*source.choice(calls)))
    for _ in range(source.randrange(1, 5)):
        data[source.randrange(24, len(data))] = source.randrange(256)
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60) as connection:
        try:
            connection.sendall(bytes(data))
            connection.shutdown(socket.SHUT_WR)
            read_to_end(connection)
        except OSError as error:
            return "grpc frames", f"{bytes(data)!r}: {error}" if isinstance(error, TimeoutError) else None
    return "grpc frames", None


def send(server, source, count):
    """Counts by kind, and the problems."""
    calls = mutations_grpc.messages(server.v1)
    kinds, problems = collections.Counter(), []
    for _ in range(count):
        draw = source.random()
        if draw < 0.6:
            kind, problem = send_http(server, source)
        elif draw < 0.95:
            kind, problem = mutations_grpc.problem_of(source, server.channel, calls)
            kind = f"grpc {kind}"
        else:
            kind, problem = send_frames(server, source, calls)
        kinds[kind] += 1
        if problem:
            problems.append(problem)
    return kinds, problems


def resident_bytes(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/status").read_text().split("VmRSS:")[1]
    return int(fields.split()[0]) << 10


def answers(v1, server):
    """What both protocols answer to requests that are right."""
    http = exchange(server, request_bytes("/v1/chat/completions", CHAT, "Connection: close\r\n"))
    assert status_of(http) == 200, http
    text = json.loads(http.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"]
    _, told, _, _ = server.generate(v1.GenerateRequest(
        prompt={"chunks": ["A passage of the test's own."], "question": "What is it?"}, sampling={"max_tokens": 8},
        blend={"reuse": v1.REUSE_NOTHING}))
    return text, told


def test_mutated_requests_get_proper_statuses(v1, fragile):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {MUTATIONS} requests")
    before = answers(v1, fragile)
    resident, kinds = [], collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(SENDERS) as senders:
        for third in range(3):
            parts = [senders.submit(send, fragile, random.Random(f"{seed} {third} {i}"), MUTATIONS // (3 * SENDERS) + 1)
                     for i in range(SENDERS)]
            for part in parts:
                counts, problems = part.result()
                kinds += counts
                assert not problems, (seed, problems[:3])
            fragile.wait_until_idle()
            resident.append(resident_bytes(fragile))
            print(f"{kinds.total()} sent, {resident[-1] >> 20} MiB resident")
    print(dict(kinds))
    assert answers(v1, fragile) == before
    assert resident[2] - resident[1] < MAX_GROWTH, resident
    assert fragile.stop() == 0
    assert "Sanitizer" not in fragile.log(), fragile.log()[-5000:]
