"""Starts the server of the installed wheel for the tests of the Python package."""

import http.server
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import kvblend
from kvblend.programs import path_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("KVBLEND_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
# KVBLEND_* are settings of the programs too; those of whoever runs the tests are not meant.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVBLEND_")}
FLAGS = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--api-address", "127.0.0.1:0",
         "--max-context-tokens", "2048", "--chunk-store-bytes", "256MiB", "--no-self-check", "--correction", "none")
WAIT_SECONDS = 300

SYSTEM_TEXT = "Answer the question from the passages, in a few words."
DOCUMENTS = [kvblend.Document("The harbour of Westhaven was built in 1852 by the engineer Ada Lorne.", title="Westhaven"),
             kvblend.Document("Ada Lorne was born in the mountain village of Skarn.", title="Ada Lorne")]
QUESTION = "Where was the engineer of the harbour of Westhaven born?"


def wait_until(condition, what):
    end = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return value


class Server:
    """The packaged server, on free ports of loopback. Without a correction, unless the flags name one."""

    def __init__(self, folder, *flags):
        self.log = folder / "server.log"
        ports = folder / "ports"
        with open(self.log, "wb") as log:
            usual = FLAGS[:-2] if FLAGS[-2] in flags else FLAGS
            self.process = subprocess.Popen([path_of("kvblend-server"), "--model", MODEL, *usual, "--port-file", ports, *flags],
                                            stdout=log, stderr=log, env=ENVIRONMENT)

        def ready():
            assert self.process.poll() is None, self.log.read_text()
            if not ports.exists():
                return False
            self.ports = dict(line.split("=") for line in ports.read_text().split())
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}/readyz", timeout=10) as answer:
                    return answer.status == 200
            except OSError:
                return False
        wait_until(ready, "readiness")
        self.target = f"127.0.0.1:{self.ports['grpc']}"
        self.url = f"http://127.0.0.1:{self.ports['api']}"

    def is_idle(self):
        """No request is worked on, and nothing waits to be stored."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        kinds = ("requests_running", "requests_waiting", "background_unfinished")
        return all(f"kvblend_num_{kind} 0" in lines for kind in kinds)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture(name="server", scope="session")
def server_fixture(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    assert server.stop() == 0


@pytest.fixture(name="namespace")
def namespace_fixture(request):
    """A namespace of the test's own."""
    return request.node.name[:100]


TEXT = 'data: {"choices": [{"delta": {"content": "Skarn"}}]}\n\n'
DONE = "data: [DONE]\n\n"


class Canned(http.server.BaseHTTPRequestHandler):
    """Gives server.answer = (status, headers, body), or for a GET server.answer_to_get if there is one, and closes the connection
    behind it."""

    def do_POST(self):  # noqa: N802
        self.server.key = self.headers["Authorization"]
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.give(self.server.answer)

    def do_GET(self):  # noqa: N802
        self.give(self.server.answer_to_get or self.server.answer)

    def give(self, answer):
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass


class Dripping(Canned):
    """Begins an answer, goes on with it byte by byte, and tells whether it came to its end (server.ended) or the client had gone
    before (server.cut_off)."""

    def give(self, _):
        try:
            self.send_response(200)
            self.end_headers()
            if self.command == "POST":
                self.wfile.write((TEXT + 'data: {"key": "", "choices": []}\n\n').encode())
            for _ in range(200):
                self.wfile.write(b" ")
                threading.Event().wait(0.05)
            self.server.ended.set()
        except OSError:
            self.server.cut_off.set()


def _running(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.answer = server.answer_to_get = None
    server.ended, server.cut_off = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(name="canned", scope="module")
def canned_fixture():
    yield from _running(Canned)


@pytest.fixture(name="another", scope="module")
def another_fixture():
    """A second one like canned."""
    yield from _running(Canned)


@pytest.fixture(name="dripping", scope="module")
def dripping_fixture():
    yield from _running(Dripping)
