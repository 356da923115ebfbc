"""What the system takes away from a running server: the reader of its log, room in files, and open files. It goes on."""

import contextlib
import os
import resource
import socket

import pytest

from conftest import FLAGS, wait_until


@pytest.fixture(name="start")
def start_fixture(start_server):
    """A server for one test, with more about its process, as subprocess.Popen takes it."""
    return lambda *flags, **process: start_server(*FLAGS, *flags, **process)


def test_a_log_that_nobody_reads_any_more_ends_nothing(v1, start):
    reading, writing = os.pipe()
    server = start(stderr=writing)
    os.close(writing)
    os.close(reading)
    for _ in range(3):  # each writes a line
        assert server.admin.GetInfo(v1.GetInfoRequest()).model.num_layers > 0
    assert server.http("/healthz") == (200, "ok\n")
    assert server.stop() == 0


def test_chunks_that_are_too_large_for_a_file_stay_in_memory(v1, start, tmp_path):
    server = start("--chunk-disk-path", str(tmp_path))
    size = max(os.path.getsize(server.log_path), *(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 65536, size + 65536))
    entries = server.put(chunks=["It is so. " * 40])
    assert [entry.durable for entry in entries] == [False]
    assert {chunk.tier for chunk in server.ask(["It is so. " * 40])[0].chunks} == {v1.TIER_HOST_MEMORY}
    assert server.metrics()["kvblend_disk_put_failures_total"] > 0
    assert "File too large" in server.log()
    assert server.stop() == 0


def test_health_pages_answer_when_connections_take_the_open_files(start):
    server = start(under=["prlimit", "--nofile=256"])
    assert "256 open files are allowed to this process, and up to 3584 may be needed" in server.log()
    with contextlib.ExitStack() as open_ones:
        clients = [open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                   for port in [server.api_port] * 300 + [server.grpc_port] * 100]
        # The last ones are told so, or closed.
        assert clients[299].recv(100).startswith(b"HTTP/1.1 503 ")
        assert clients[-1].recv(100) == b""
        assert server.http("/healthz") == (200, "ok\n")
        assert server.http("/readyz") == (200, "ready\n")
        assert server.metrics()["kvblend_ready"] == 1
        assert server.log().count("is open file ") == 2, "one line for each protocol"

    def has_room():
        with socket.create_connection(("127.0.0.1", server.api_port), timeout=60) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return client.recv(100).startswith(b"HTTP/1.1 200 ")
    wait_until(has_room, "room for connections")
    assert server.stop() == 0
