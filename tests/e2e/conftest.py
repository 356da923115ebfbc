"""Starts real servers and gives tests a client made from the protos with grpcio-tools.

KVBLEND_BIN_DIR is where kvblend-server lies (build/release/bin), KVBLEND_MODEL the model to serve
(models/SmolLM2-135M-Instruct.Q4_1.gguf).
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN_DIR = Path(os.environ.get("KVBLEND_BIN_DIR", ROOT / "build/release/bin"))
MODEL = Path(os.environ.get("KVBLEND_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
# For programs under test: KVBLEND_* are settings of theirs too, and those of whoever runs the tests are not meant.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVBLEND_")}
ENVIRONMENT["KVBLEND_CORRECTION"] = "none"  # what lies beside the model, if anything does, is not what is tested

START_SECONDS = 300  # for loading the model on a busy machine
WAIT_SECONDS = 120  # for anything else that a test waits for


SYSTEM_TEXT = "You answer questions from the given passages."
LEAD_IN = "Passages:\n"
CHUNKS = [
    "The harbour of Westhaven was built in 1852 by the engineer Ada Lorne.\n",
    "Ada Lorne was born in the mountain village of Skarn and studied in Delft.\n",
    "Skarn lies at the foot of Mount Hollen, which is 2,340 metres high.\n",
]
QUESTION = "Where was the engineer of the harbour of Westhaven born?"
FLAGS = ("--max-context-tokens", "2048", "--chunk-store-bytes", "256MiB", "--no-self-check")  # of servers for one test


def wait_until(condition, what, seconds=WAIT_SECONDS):
    """Polls `condition` until it returns something true, which is then returned."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def prompt_of(v1, chunks=CHUNKS):
    return v1.Prompt(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=chunks, question=QUESTION)


@contextlib.contextmanager
def refused(code, *parts):
    """A call in here must fail with this code and a message that names all parts."""
    with pytest.raises(grpc.RpcError) as error:
        yield error
    assert error.value.code() == grpc.StatusCode[code], parts
    for part in parts:
        assert part in error.value.details()


def run(program, *arguments, **options):
    """A program of ours that has ended."""
    return subprocess.run([str(BIN_DIR / program), *map(str, arguments)], capture_output=True, text=True, check=False,
                          env=ENVIRONMENT, **{"timeout": 300, **options})


@pytest.fixture(scope="session")
def v1(tmp_path_factory):
    """All messages, enumerations and stubs of kvblend.v1, from code generated here and now."""
    folder = tmp_path_factory.mktemp("protos")
    sources = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
         f"--grpc_python_out={folder}", *sources],
        check=True)
    sys.path.insert(0, str(folder))
    names = {}
    for module in ("chunks", "inference", "admin"):
        for suffix in ("pb2", "pb2_grpc"):
            names.update(vars(importlib.import_module(f"kvblend.v1.{module}_{suffix}")))
    return types.SimpleNamespace(**names)


class Server:
    """A running kvblend-server and stubs for it."""

    def __init__(self, v1, folder, flags, model, under=(), **process):
        self.v1 = v1
        self.log_path = folder / "server.log"
        self._port_file = folder / "ports"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*under, str(BIN_DIR / "kvblend-server"), "--model", str(model), "--grpc-address", "127.0.0.1:0",
                 "--http-address", "127.0.0.1:0", "--api-address", "127.0.0.1:0", "--port-file", str(self._port_file),
                 *flags],
                **{"stdout": log, "stderr": log, "env": ENVIRONMENT, **process})
        ports = wait_until(self._ports, "the port file")
        self.grpc_port, self.http_port, self.api_port = (int(ports[name]) for name in ("grpc", "http", "api"))
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}",
                                             options=[("grpc.max_receive_message_length", -1)])
        self.inference = v1.InferenceStub(self.channel)
        self.chunks = v1.ChunksStub(self.channel)
        self.admin = v1.AdminStub(self.channel)

    def _check_alive(self):
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log()}"

    def _ports(self):
        self._check_alive()
        if not self._port_file.exists():
            return None
        return dict(line.split("=") for line in self._port_file.read_text().split())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def http(self, path):
        """(status, body) of a GET."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until_ready(self):
        def ready():
            self._check_alive()
            return self.http("/readyz")[0] == 200
        wait_until(ready, "readiness", START_SECONDS)

    def metrics(self):
        """'name{labels}' -> value of every sample."""
        status, body = self.http("/metrics")
        assert status == 200
        samples = (line.rsplit(" ", 1) for line in body.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def wait_until_idle(self):
        def idle():
            metrics = self.metrics()
            return not any(metrics[f"kvblend_num_{kind}"] for kind in (
                "requests_running", "requests_waiting", "background_unfinished"))
        wait_until(idle, "an idle engine")

    def generate(self, request, **arguments):
        """(report, text, deltas, finished) of a whole answer."""
        events = list(self.inference.Generate(request, **arguments))
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds == ["prompt"] + ["text"] * (len(events) - 2) + ["finished"]
        deltas = [event.text for event in events[1:-1]]
        return events[0].prompt, "".join(delta.text for delta in deltas), deltas, events[-1].finished

    def score(self, request):
        """(report, tokens)."""
        events = list(self.inference.Score(request))
        assert [event.WhichOneof("event") for event in events] == ["prompt"] + ["token"] * (len(events) - 1)
        return events[0].prompt, [event.token for event in events[1:]]

    def put(self, chunks=CHUNKS, **fields):
        """What is told of each chunk when all are stored behind the anchor that prompt_of() gives."""
        return list(self.chunks.Put(self.v1.PutChunksRequest(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=chunks,
                                                             **fields)))

    def ask(self, chunks=CHUNKS, **blend):
        """(report, log-probabilities of a continuation): what tells one KV from another."""
        report, tokens = self.score(self.v1.ScoreRequest(
            prompt=prompt_of(self.v1, chunks), blend=self.v1.BlendOptions(store_misses=False, **blend),
            continuation_text="In the mountain village of Skarn, at the foot of Mount Hollen."))
        return report, [token.logprob for token in tokens]

    def stop(self):
        """SIGTERM, and the exit code."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="session")
def start_server(v1, tmp_path_factory):
    """Starts servers that end with the session at the latest: start_server(*flags, model=MODEL, under=a command
    that runs another, and what subprocess.Popen takes)."""
    servers = []

    def start(*flags, model=MODEL, **process):
        servers.append(Server(v1, tmp_path_factory.mktemp("server"), flags, model, **process))
        servers[-1].wait_until_ready()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server):
    """The server that most tests share. Each uses texts or a namespace of its own."""
    return start_server("--max-context-tokens", "2048", "--chunk-store-bytes", "256MiB",
                        "--max-text-bytes", "64KiB", "--max-message-bytes", "1MiB",
                        "--max-chunks-per-request", "50")


@pytest.fixture
def prompt(v1):
    return prompt_of(v1)


@pytest.fixture
def stored(server, request):
    """A namespace of the test's own in which CHUNKS are stored behind the prompt's anchor."""
    namespace = request.node.name[:100]
    server.put(namespace=namespace)
    return namespace
