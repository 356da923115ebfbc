"""When calls over HTTP end before they are over, and whose connections they use: a server that answers when
the test says so."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading

import pytest

import kvblend

from conftest import ENVIRONMENT, TEXT, WAIT_SECONDS, wait_until

MODELS = json.dumps({"data": [{"id": "small"}]})


class Held(http.server.BaseHTTPRequestHandler):
    """Begins a stream for a POST, and nothing for one to /v1/chunks/stat, before it waits for server.release.
    A GET of /v1/models is answered. server.asked counts the requests, server.connected the connections that
    are open."""

    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        with self.server.lock:
            self.server.connected.add(self.client_address)

    def finish(self):
        with self.server.lock:
            self.server.connected.discard(self.client_address)
        super().finish()

    def do_POST(self):  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chunks/stat":
            self.begin(None)
            self.wfile.write((TEXT * 3).encode())
        self.server.asked.release()
        self.server.release.wait(WAIT_SECONDS)
        self.close_connection = True

    def do_GET(self):  # noqa: N802
        self.begin(len(MODELS))
        self.wfile.write(MODELS.encode())

    def begin(self, length):
        self.send_response(200)
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *arguments):
        pass


class HeldServer(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *arguments):
        """Clients go away here."""


@pytest.fixture(name="held")
def held_fixture():
    server = HeldServer(("127.0.0.1", 0), Held)
    server.lock, server.connected = threading.Lock(), set()
    server.asked, server.release = threading.Semaphore(0), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


def url_of(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


REQUEST = kvblend.make_request("Where?")


async def until(condition, what):
    """Without keeping the loop from what is waited for."""
    await asyncio.get_running_loop().run_in_executor(None, wait_until, condition, what)


class Silent:
    """Takes connections and requests, and gives no answer; in the loop of the test, so that a turn of it is
    the client's alone."""

    def __init__(self):
        self.open = 0

    async def __call__(self, reader, writer):
        self.open += 1
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_call_cancelled_at_any_moment_leaves_no_connection(timeout):
    """A call goes as far as a number of turns of the loop takes it: through connecting, and beyond."""
    async def run():
        silent = Silent()
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with kvblend.AsyncHttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            for call in (lambda: client.generate("Where?", timeout=timeout), lambda: client.info(timeout=timeout)):
                for turns in range(40):
                    task = asyncio.create_task(call())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            await until(lambda: silent.open == 0, "connections that nobody uses are closed")
        server.close()
    asyncio.run(run())


@pytest.mark.parametrize("timeout", [None, 60])
def test_an_answer_that_begins_as_its_task_is_cancelled_is_closed(held, timeout):
    async def run():
        async with kvblend.AsyncHttpClient(url_of(held)) as client:
            send = client._http.send  # pylint: disable=protected-access

            async def send_and_cancel(*arguments, **options):
                answer = await send(*arguments, **options)
                task.cancel()
                return answer
            client._http.send = send_and_cancel  # pylint: disable=protected-access
            task = asyncio.create_task(client.generate("Where?", timeout=timeout))
            with pytest.raises(asyncio.CancelledError):
                await task
            held.release.set()
            await until(lambda: not held.connected, "the connection is closed")
            # Had the collector closed it, the pool would have it yet.
            assert not client._http._transport._pool.connections  # pylint: disable=protected-access
    asyncio.run(run())


STREAMS = 101  # one more than httpx has connections by itself


def test_streams_that_are_not_read_keep_no_other_call_waiting(held):
    with kvblend.HttpClient(url_of(held), timeout=30) as client:
        streams = [client.stream_events(REQUEST) for _ in range(STREAMS)]
        for stream in streams:
            next(stream)
        assert client.models(timeout=30) == ["small"]


def test_streams_that_are_not_read_keep_no_other_call_waiting_in_a_loop(held):
    async def run():
        async with kvblend.AsyncHttpClient(url_of(held), timeout=30) as client:
            streams = [client.stream_events(REQUEST) for _ in range(STREAMS)]
            for stream in streams:
                await anext(stream)
            assert await client.models(timeout=30) == ["small"]
            for stream in streams:
                await stream.aclose()
    asyncio.run(run())


CALLS = {"head": lambda client: client.stat([]), "bytes": lambda client: client.generate("Where?"),
         "bytes of a put": lambda client: client.put(["A chunk."])}


@pytest.mark.parametrize("timeout", [None, 600])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_closing_a_client_ends_what_another_thread_waits_for(held, call, timeout):
    client = kvblend.HttpClient(url_of(held), timeout=timeout)
    ended = []

    def wait():
        with pytest.raises(kvblend.Error) as caught:
            call(client)
        ended.append(str(caught.value))
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert held.asked.acquire(timeout=WAIT_SECONDS)
    client.close()
    thread.join(20)  # the server says nothing more
    assert ended == ["CANCELLED: the client was closed"]
    held.release.set()
    wait_until(lambda: not held.connected, "the connection is closed")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_closing_a_client_ends_what_another_task_waits_for(held, call):
    async def run():
        client = kvblend.AsyncHttpClient(url_of(held))
        task = asyncio.create_task(call(client))
        await asyncio.get_running_loop().run_in_executor(None, held.asked.acquire)
        await client.close()
        with pytest.raises(kvblend.Error, match="CANCELLED: the client was closed"):
            await task
    asyncio.run(run())


def test_a_stream_of_a_client_that_was_closed_is_not_read_on(held):
    """Though more of it is there."""
    client = kvblend.HttpClient(url_of(held))
    stream = client.stream("Where?")
    assert next(stream) == "Skarn"
    client.close()
    with pytest.raises(kvblend.Error, match="CANCELLED: the client was closed"):
        next(stream)

    async def run():
        asynchronous = kvblend.AsyncHttpClient(url_of(held))
        begun = asynchronous.stream("Where?")
        assert await anext(begun) == "Skarn"
        await asynchronous.close()
        with pytest.raises(kvblend.Error, match="CANCELLED: the client was closed"):
            await anext(begun)
    asyncio.run(run())


# In an interpreter of its own, of which no thread of other tests is forked.
FORKING = """
import http.server, json, os, sys, threading
import kvblend

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        event = {"choices": [{"delta": {"content": question + " " + str(self.client_address[1])}}]}
        body = ("data: " + json.dumps(event) + "\\n\\n" + "data: [DONE]\\n\\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server_process = os.fork()
if server_process == 0:
    server.serve_forever()
client = kvblend.HttpClient("http://127.0.0.1:%d" % server.server_address[1])
ask = lambda question: client.generate(question, timeout=60).text.split(" ")
try:
    own = ask("parent")
    begun = client.stream("begun")
    assert next(begun).startswith("begun")
    kept = ask("parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            first, second = ask("child"), ask("child")
            assert first[0] == "child" and first == second, (first, second)
            assert first[1] not in (own[1], kept[1]), "the parent's connection"
            try:
                next(begun)
                raise AssertionError("an answer of the parent's")
            except kvblend.Error as error:
                assert str(error).startswith("UNAVAILABLE: the process was forked"), error
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask("parent") == kept, "the child has ended the parent's connection"
    assert list(begun) == []
finally:
    os.kill(server_process, 9)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the test forks; Linux does")
def test_a_forked_child_has_connections_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_stream_that_nobody_reads_any_more_closes_its_connection(held):
    """When the collector finds it, also behind the end of its client."""
    for closed in (False, True):
        client = kvblend.HttpClient(url_of(held))
        stream = client.stream("Where?")
        next(stream)
        if closed:
            client.close()
        del stream
        http = client._connections._http  # pylint: disable=protected-access
        assert http.is_closed == closed and client._connections._calls == 0  # pylint: disable=protected-access
        client.close()
        assert http.is_closed
