"""The HTTP API against clients that are slow, many, or send too much; mutations/ has those that send nonsense."""

import json
import resource
import socket
import subprocess
import sys
import time

import pytest

from conftest import run, wait_until
from http_client import connect, exchange, read_to_end, request_bytes, status_of
from support import tiny_model
from test_keys import make_key

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of Norway?"}], "max_tokens": 2}
CLOSE = "Connection: close\r\n"
IDLE_CONNECTIONS = 2000


@pytest.fixture(scope="module")
def small(start_server):
    """A server with limits that a test reaches soon."""
    return start_server("--max-context-tokens", "1024", "--no-self-check", "--max-message-bytes", "64KiB",
                        "--api-request-timeout", "1", "--api-write-timeout", "1", "--api-idle-timeout", "60",
                        "--api-max-unsent-bytes", "32KiB", "--api-max-connections", str(IDLE_CONNECTIONS + 20))


def still_answers(server):
    answer = exchange(server, request_bytes("/v1/chat/completions", QUESTION, CLOSE))
    assert status_of(answer) == 200, answer


def test_slow_senders_are_told_so(small):
    request = request_bytes("/v1/chat/completions", QUESTION)
    for cut in (20, len(request) - 1):
        with connect(small) as connection:
            start = time.monotonic()
            connection.sendall(request[:cut])
            assert status_of(read_to_end(connection)) == 408
            assert time.monotonic() - start >= 0.9
    with connect(small) as connection:
        # A byte now and then wins no time.
        for byte in request:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.1)
            connection.setblocking(False)
            try:
                if connection.recv(1, 2):  # MSG_PEEK
                    break
            except BlockingIOError:
                pass
            finally:
                connection.settimeout(60)
        assert status_of(read_to_end(connection)) == 408
    still_answers(small)


def test_thousands_of_idle_connections(small):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE_CONNECTIONS + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    connections = []
    try:
        for _ in range(IDLE_CONNECTIONS):
            connections.append(connect(small))
        still_answers(small)
        # Each of them is served when it asks.
        for connection in connections[::100]:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(connection.recv(4096)) == 200
        # For one more than allowed, the one that has been idle longest has to go.
        connections += [connect(small) for _ in range(20)]
        before = small.metrics()["kvblend_http_evicted_connections_total"]
        still_answers(small)
        assert read_to_end(connections[1]) == b""
        assert small.metrics()["kvblend_http_evicted_connections_total"] == before + 1
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    models = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    wait_until(lambda: status_of(exchange(small, models)) == 200, "room for a connection")


def test_slow_readers_stall_nobody_and_are_cut_off(small):
    long = {**QUESTION, "max_tokens": 900, "stream": True, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    readers = []
    for _ in range(4):
        readers.append(connect(small, receive_buffer=2048))
        readers[-1].sendall(request_bytes("/v1/chat/completions", long))
    still_answers(small)
    wait_until(lambda: small.log().count("ChatCompletions CANCELLED") >= 4, "slow readers to be cut off")
    for reader in readers:
        assert b"[DONE]" not in read_to_end(reader)
        reader.close()


def test_bodies_over_the_limit(small):
    answer = exchange(small, request_bytes("/v1/chat/completions", b'{"x": "' + b"x" * (1 << 20) + b'"}'))
    assert status_of(answer) == 413
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"
    headers = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n"
    assert status_of(exchange(small, headers)) == 431
    still_answers(small)


def test_a_server_without_keys_answers_to_its_own_names(start_server, tmp_path):
    """Else a page in a browser on this machine may point its own name to the server, and read what it answers."""
    def asked_by(name, server, path="/v1/models"):
        return exchange(server, f"GET {path} HTTP/1.1\r\nHost: {name}:{server.api_port}\r\nConnection: close\r\n\r\n".encode())

    model = tiny_model.write(tmp_path)
    flags = ("--chat-format", "chatml", "--no-self-check")
    server = start_server(*flags, "--api-allowed-hosts", "proxy.example,b.example", model=model)
    for name in ("localhost", "127.0.0.1", "[::1]", "proxy.example", "b.example"):
        assert status_of(asked_by(name, server)) == 200
    for path in ("/v1/models", "/", "/openapi.json"):
        answer = asked_by("evil.example", server, path)
        assert status_of(answer) == 421
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
        assert f"Host is 'evil.example:{server.api_port}'; allowed" in error
        assert "--api-allowed-hosts (proxy.example, b.example)" in error
    assert server.stop() == 0
    # Where calls need keys, no page has one.
    _, line = make_key("--tenant", "one")
    (tmp_path / "keys").write_text(line + "\n")
    server = start_server(*flags, "--api-keys", tmp_path / "keys", model=model)
    assert status_of(asked_by("evil.example", server)) == 401
    assert server.stop() == 0


def test_a_name_is_listened_at_on_all_its_addresses(start_server, tmp_path):
    """A client may try any of them first, and would get another program that has the port there."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
    under = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    if subprocess.run([*under, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("may give no process another /etc/hosts")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"there is no IPv6: {error}")
    # Addresses are given once, so those that all servers of the tests are started with become others.
    renamed = "import os, sys; words = [w.replace('127.0.0.1:0', 'localhost:0') for w in sys.argv[1:]]; os.execv(words[0], words)"
    server = start_server("--chat-format", "chatml", "--no-self-check", model=tiny_model.write(tmp_path),
                          under=[*under, sys.executable, "-c", renamed])
    for port in (server.api_port, server.http_port, server.grpc_port):
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=60).close()
    assert server.stop() == 0


def test_clients_of_a_trusted_proxy_are_told_apart(start_server, v1, tmp_path):
    server = start_server("--chat-format", "chatml", "--no-self-check", "--trusted-proxies", "127.0.0.0/8,fd00::/8",
                          model=tiny_model.write(tmp_path))
    forwarded = "X-Forwarded-For: 203.0.113.9, 127.0.0.2\r\n"
    assert status_of(exchange(server, request_bytes("/v1/chat/completions", QUESTION, CLOSE + forwarded))) == 200
    wait_until(lambda: "ChatCompletions OK" in server.log(), "the call's line")
    assert "from ipv4:203.0.113.9" in server.log()
    server.admin.GetInfo(v1.GetInfoRequest(), metadata=[("x-forwarded-for", "[2001:db8::1]:443, fd00::7")])
    wait_until(lambda: "GetInfo OK" in server.log(), "the call's line")
    assert "from ipv6:%5B2001:db8::1%5D" in server.log()
    assert server.stop() == 0


def test_proxies_that_are_no_networks_are_refused():
    done = run("kvblend-server", "--model", "m", "--trusted-proxies", "10.0.0.0/8,10.0.0.0/33")
    assert done.returncode != 0
    assert "--trusted-proxies has '10.0.0.0/33'; allowed: addresses and networks" in done.stderr
