"""gRPC against clients that are many, silent, or send too much: each has its bound, and the server goes on answering the others."""

import contextlib
import socket
import struct
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from conftest import refused, wait_until
from support import tiny_model

CONNECTIONS, STREAMS, HEADER_BYTES = 6, 4, 4096
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
ENHANCE_YOUR_CALM = 11
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]  # channels to one address otherwise share one


@pytest.fixture(scope="module", name="start_small")
def start_small_fixture(start_server, tmp_path_factory):
    model = tiny_model.write(tmp_path_factory.mktemp("tiny"))
    return lambda *flags: start_server("--chat-format", "chatml", "--no-self-check", "--chunk-store-bytes", "8MiB", *flags,
                                       model=model)


@pytest.fixture(scope="module", name="small")
def small_fixture(start_small):
    """A server with limits that a test reaches soon."""
    return start_small("--grpc-max-connections", str(CONNECTIONS), "--max-concurrent-streams", str(STREAMS),
                       "--grpc-max-header-bytes", str(HEADER_BYTES))


def still_answers(server):
    """Over the connection that it has had all the time, and over a new one."""
    assert server.admin.GetInfo(server.v1.GetInfoRequest(), timeout=60).version
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=OWN_CONNECTION) as channel:
        wait_until(lambda: code_of(channel) == grpc.StatusCode.OK, "a new connection")


def code_of(channel):
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """Without an index and without Huffman's code; a length of 127 and more goes on in further bytes."""
    def text(data):
        if len(data) < 127:
            return bytes([len(data)]) + data
        rest, length = len(data) - 127, b"\x7f"
        while rest >= 128:
            length += bytes([rest % 128 + 128])
            rest //= 128
        return length + bytes([rest]) + data
    return b"\0" + text(name) + text(value)


def call_of(method):
    return (b"\x83\x86" + header(b":path", method) + header(b":authority", b"here") +
            header(b"content-type", b"application/grpc") + header(b"te", b"trailers"))


CALL = call_of(b"/grpc.health.v1.Health/Watch")


class Connection:
    """HTTP/2 by hand."""

    def __init__(self, server, preface=True, window=65535):
        """`window`: bytes of an answer that the client takes."""
        self._socket = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60)
        self._received = b""
        if preface:
            self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._socket.close()

    def send(self, data):
        """False: the other side has closed."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def frame(self):
        """(kind, flags, stream, payload) of the next one; None: closed."""
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            try:
                piece = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not piece:
                return None
            self._received += piece
        size = int.from_bytes(self._received[:3], "big")
        kind, flags, stream = self._received[3], self._received[4], int.from_bytes(self._received[5:9], "big")
        payload, self._received = self._received[9:9 + size], self._received[9 + size:]
        return kind, flags, stream, payload

    def until(self, kind):
        """The next frame of this kind, whatever comes before it; None: closed without one."""
        while (found := self.frame()) is not None and found[0] != kind:
            pass
        return found

    def settings(self):
        """The server's, acknowledged; None: there is no room for the connection."""
        found = self.until(SETTINGS)
        if found is None:
            return None
        payload = found[3]
        self.send(frame(SETTINGS, ACK, 0))
        return dict(struct.unpack(">HI", payload[i:i + 6]) for i in range(0, len(payload), 6))


@contextlib.contextmanager
def held(server, count):
    """So many connections that the server has taken; those of earlier tests have gone when it has heard of that."""
    with contextlib.ExitStack() as connections:
        taken = []

        def one_more():
            connection = connections.enter_context(Connection(server))
            if connection.settings() is not None:
                taken.append(connection)
            return len(taken) == count

        wait_until(one_more, f"{count} connections")
        yield


def test_one_connection_too_many_is_closed(small):
    still_answers(small)
    with held(small, CONNECTIONS - 1):
        with Connection(small) as one_more:
            assert one_more.frame() is None
        with grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}", options=OWN_CONNECTION) as channel:
            assert code_of(channel) == grpc.StatusCode.UNAVAILABLE
        assert small.admin.GetInfo(small.v1.GetInfoRequest(), timeout=60).version, "those that are there stay"
        assert f"there are --grpc-max-connections, {CONNECTIONS}, already" in small.log()
    still_answers(small)


def test_calls_beyond_the_limit_of_a_connection_wait_for_their_turn(small):
    with Connection(small) as connection:
        assert connection.settings()[3] == STREAMS  # SETTINGS_MAX_CONCURRENT_STREAMS
    with grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}", options=OWN_CONNECTION) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        streams = [watch(health_pb2.HealthCheckRequest()) for _ in range(STREAMS)]
        for stream in streams:
            next(stream)
        with refused("DEADLINE_EXCEEDED"):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=0.5)
        assert all(stream.is_active() for stream in streams)
        still_answers(small)  # other connections have calls of their own
        streams[0].cancel()
        assert code_of(channel) == grpc.StatusCode.OK
        for stream in streams:
            stream.cancel()


def test_a_client_that_takes_no_notice_of_the_limit_loses_its_connection(small):
    with Connection(small) as connection:
        connection.settings()
        for number in range(STREAMS + 2):
            connection.send(frame(HEADERS, END_HEADERS, 2 * number + 1, CALL))
        assert connection.until(None) is None
    still_answers(small)


def test_large_metadata_is_refused(v1, small):
    # Each on a connection of its own, since gRPC 1.51 may close one on which it has refused metadata.
    for size in (HEADER_BYTES, 100 * HEADER_BYTES):
        with grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}", options=OWN_CONNECTION) as channel:
            assert code_of(channel) == grpc.StatusCode.OK
            with refused("RESOURCE_EXHAUSTED", "metadata size"):
                v1.AdminStub(channel).GetInfo(v1.GetInfoRequest(), metadata=[("x", "y" * size)], timeout=60)
    assert small.admin.GetInfo(v1.GetInfoRequest(), metadata=[("x", "y" * (HEADER_BYTES // 2))], timeout=60).version
    # Clients keep to what the server has told them; one that does not is told by the server.
    with Connection(small) as connection:
        connection.settings()
        connection.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, CALL + header(b"x", b"y" * (HEADER_BYTES + 1))))
        _, _, stream, payload = connection.until(HEADERS)
        assert stream == 1 and b"grpc-status\x018" in payload  # RESOURCE_EXHAUSTED
    still_answers(small)


def peak_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def test_compressed_messages_are_refused_and_not_decompressed(v1, small):
    still_answers(small)
    before = peak_bytes(small)
    size = 256 << 20
    for compression, name in ((grpc.Compression.Gzip, "gzip"), (grpc.Compression.Deflate, "deflate")):
        for method in ("kvblend.v1.Admin/GetInfo", "grpc.health.v1.Health/Check"):
            with (grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}",
                                        options=[*OWN_CONNECTION, ("grpc.max_send_message_length", -1)]) as channel,
                  refused("UNIMPLEMENTED", f"'{name}' is disabled")):
                channel.unary_unary(f"/{method}")(bytes(size), compression=compression, timeout=120)
    assert peak_bytes(small) - before < size / 4
    still_answers(small)


def test_a_flood_of_pings_ends_its_connection(small):
    with Connection(small) as connection:
        connection.settings()
        for _ in range(10):
            connection.send(frame(PING, 0, 0, bytes(8)))
        _, _, _, payload = connection.until(GOAWAY)
        assert int.from_bytes(payload[4:8], "big") == ENHANCE_YOUR_CALM and b"too_many_pings" in payload
        assert connection.until(None) is None
    still_answers(small)


def test_streams_that_are_opened_and_reset_at_once_harm_nobody(small):
    with Connection(small) as connection:
        connection.settings()
        for number in range(5000):
            if not connection.send(frame(HEADERS, END_HEADERS, 2 * number + 1, CALL) +
                                   frame(RST_STREAM, 0, 2 * number + 1, struct.pack(">I", 8))):
                break
        still_answers(small)
    still_answers(small)


@pytest.mark.parametrize("sent", [b"", bytes([0, 0, 0, 0, 9]) + b"abc"], ids=["nothing", "a part"])
@pytest.mark.parametrize("method", ["Inference/Generate", "Chunks/List"])
def test_a_call_whose_message_has_not_come_whole_is_cancelled(small, method, sent):
    """It is no request with an empty message: the client has left."""
    with Connection(small) as connection:
        connection.settings()
        connection.send(frame(HEADERS, END_HEADERS, 1, call_of(f"/kvblend.v1.{method}".encode())) + frame(DATA, END_STREAM, 1, sent))
        _, _, _, told = connection.until(HEADERS)
        assert b"grpc-status\x011" in told and b"before its message had come" in told
    service, name = method.split("/")
    assert small.metrics()[f'kvblend_grpc_calls_total{{code="CANCELLED",method="{name}",service="{service}"}}'] >= 1
    still_answers(small)


def test_open_calls_of_reflection_take_a_few_threads(start_small):
    server = start_small()
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    done = threading.Event()
    calls = []  # kept, for one that is dropped is cancelled

    def asks_and_stays():
        yield question
        done.wait(60)

    def outcome():
        calls.append(reflection_pb2_grpc.ServerReflectionStub(server.channel).ServerReflectionInfo(asks_and_stays()))
        try:
            next(calls[-1])
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def threads():
        return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))

    before = threads()
    outcomes = [outcome() for _ in range(60)]
    assert set(outcomes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert threads() <= before + 20
    still_answers(server)
    done.set()
    wait_until(lambda: outcome() == grpc.StatusCode.OK, "reflection")
    assert server.stop() == 0


def test_an_answer_that_nobody_takes_ends_when_its_time_is_over(start_small):
    server = start_small("--max-concurrent-streams", "1", "--grpc-write-timeout", "0.5")
    with Connection(server, window=0) as connection:
        connection.settings()
        for stream in (1, 3):  # the second has the place of the first
            connection.send(frame(HEADERS, END_HEADERS, stream, call_of(b"/kvblend.v1.Admin/GetInfo")) +
                            frame(DATA, END_STREAM, stream, bytes(5)))  # an empty message
            told = b""
            while b"grpc-status" not in told:
                kind, _, of, payload = connection.frame()
                assert kind != DATA
                told += payload if kind == HEADERS and of == stream else b""
            assert b"grpc-status\x018" in told and b"reads too slowly" in told  # RESOURCE_EXHAUSTED
    assert server.log().count("ended while its answer was sent") == 2
    assert server.stop() == 0


def test_connections_that_say_nothing_are_closed(start_small):
    server = start_small("--grpc-handshake-timeout", "0.5", "--grpc-idle-timeout", "0.5")
    for silent in (b"", PREFACE[:10], PREFACE):
        with Connection(server, preface=False) as connection:
            connection.send(silent)
            assert connection.until(None) is None
    # One that makes no call is told to go, and a client opens another when it has one.
    with Connection(server) as connection:
        connection.settings()
        _, _, _, payload = connection.until(GOAWAY)
        assert b"idle" in payload
        assert connection.until(None) is None
    states = []
    server.channel.subscribe(states.append)
    assert server.admin.GetInfo(server.v1.GetInfoRequest(), timeout=60).version
    wait_until(lambda: len(states) > 1 and states[-1] == grpc.ChannelConnectivity.IDLE, "an idle channel")
    assert server.admin.GetInfo(server.v1.GetInfoRequest(), timeout=60).version
    # A call that goes on keeps its connection.
    stream = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
    next(stream)
    with Connection(server) as connection:
        assert connection.until(GOAWAY)
    assert stream.is_active()
    stream.cancel()
    assert server.stop() == 0
