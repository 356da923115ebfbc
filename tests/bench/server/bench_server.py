"""A server of its own for benches: started on free ports, asked through `kvblend`, stopped at the end. Standard library only."""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench_support as support

SYSTEM_TEXT = ("You are a helpful AI assistant. Answer the question based on the given passages. "
               "Answer with a few words only.")  # as kvblend bench has it, so that both stand behind the same anchor
LEAD_IN = "Passages:\n\n"


def bench_arguments(description):
    """A parser with what every bench here takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=support.DEFAULT_BIN, help="folder of the programs")
    parser.add_argument("--model", type=pathlib.Path, default=support.DEFAULT_MODEL)
    parser.add_argument("--data", type=pathlib.Path, default=support.DEFAULT_DATA, help="questions with passages")
    return parser


def passages_of(question, count):
    """The texts of its first `count` passages, or of all (None)."""
    return [f"{passage['title']}\n{passage['text']}\n\n" for passage in question["ctxs"][:count]]


class Server:
    """Ready to answer once it is made. `ports` has those of grpc, http and, with_http_api, api; environment variables of ours do not
    count."""

    def __init__(self, bin_folder, model, folder, *flags, with_http_api=True):
        self.kvblend = support.need_binary(bin_folder, "kvblend")
        ports = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "ports"
        self.log = open(ports.with_name("server.log"), "wb")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVBLEND_") or name == "KVBLEND_CPU"}
        self.process = subprocess.Popen(
            [str(support.need_binary(bin_folder, "kvblend-server")), "--model", str(model), "--no-self-check", "--grpc-address",
             "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--port-file", str(ports),
             *(("--api-address", "127.0.0.1:0") if with_http_api else ()), *map(str, flags)], stdout=self.log, stderr=self.log, env=environment)
        try:
            while not ports.exists():
                self.wait_a_bit()
            self.ports = dict(line.split("=") for line in ports.read_text(encoding="utf-8").split())
            while not self.is_ready():
                self.wait_a_bit()
        except BaseException:
            self.stop()
            raise
        self.address = f"127.0.0.1:{self.ports['grpc']}"

    def wait_a_bit(self):
        if self.process.poll() is not None:
            tail = pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")[-1000:]
            raise support.BenchError(f"the server ended with {self.process.returncode}:\n{tail}")
        time.sleep(0.1)

    def is_ready(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(self.url("http", "/readyz"), timeout=10) as answer:
            return answer.status == 200
        return False

    def url(self, port, path):
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def call(self, command, *rest, **options):
        """Standard output of `kvblend COMMAND --server ...`."""
        return support.run([self.kvblend, command, "--server", self.address, *rest], command, **options)

    def metric(self, name):
        """Sum over all labels."""
        with urllib.request.urlopen(self.url("http", "/metrics"), timeout=30) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def settled(self):
        """The correction, once all that was served is stored and learned from."""
        while True:
            info = json.loads(self.call("info", "--json"))
            waiting = info.get("load", {}).get("background_unfinished", 0)
            correction = info.get("correction", {})
            if not waiting and not int(correction.get("waiting_chunks", 0)):
                return correction
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


@contextlib.contextmanager
def server(options, folder, *flags):
    """A Server of options.bin and options.model."""
    running = Server(options.bin, options.model, folder, *flags)
    try:
        yield running
    finally:
        running.stop()
