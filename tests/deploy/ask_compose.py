"""Starts the stack of deploy/compose and asks it: ask_compose.py FOLDER IMAGE.tar MODEL

FOLDER holds debian.tar, a Debian with Redis and Prometheus, and is where Docker's daemon keeps its files; IMAGE.tar has the image
`kvblend`; MODEL is a file to serve. Runs as root in namespaces of its own (tests/deploy/check_compose.sh makes them). Exit status
77: the daemon does not start.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

from ask_image import Stream, bring_loopback_up, chat, get, mount

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPOSE_FILE = os.path.join(ROOT, "deploy/compose/compose.yaml")
SECONDS = 180
SERVICES = ("kvblend", "prometheus")  # and what they depend on
NODES = ("redis-0", "redis-1", "redis-2")
# Not the default name, which is in the image's arguments as well.
MODEL_FILE = "served.gguf"


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def wait_until(what, check):
    end = time.monotonic() + SECONDS
    while not (found := check()):
        assert time.monotonic() < end, f"not within {SECONDS} s: {what}"
        time.sleep(0.2)
    return found


def json_of(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


class Daemon:
    """Docker's, with the images that compose.yaml names."""

    def __init__(self, folder, image):
        os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        self.log = f"{folder}/dockerd.log"
        with open(f"{folder}/daemon.json", "w", encoding="utf-8") as settings:
            settings.write("{}")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(["dockerd", "--config-file", f"{folder}/daemon.json", "--host", os.environ["DOCKER_HOST"],
                                             "--data-root", f"{folder}/docker", "--exec-root", f"{folder}/exec",
                                             "--pidfile", f"{folder}/dockerd.pid"], stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until("Docker's daemon answers", self._answers)
            output_of("docker", "load", "--input", image)
            with open(COMPOSE_FILE, encoding="utf-8") as file:
                names = {name: image for image, name in re.findall(r"image: (docker\.io/\w+/(\w+):\S+)", file.read())}
            self._import(folder, names["redis"], "VOLUME /data", "WORKDIR /data", 'CMD ["redis-server"]')
            self._import(folder, names["prometheus"], "VOLUME /prometheus", "WORKDIR /prometheus", "USER nobody",
                         'ENTRYPOINT ["/usr/bin/prometheus"]',
                         'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]')
        except BaseException:
            self.stop()
            raise

    def _answers(self):
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as log:
                print(log.read().strip().rpartition("\n")[2])
            sys.exit(77)
        return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0

    @staticmethod
    def _import(folder, name, *changes):
        output_of("docker", "import", *(f"--change={change}" for change in changes), f"{folder}/debian.tar", name)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stack:
    def __init__(self, folder):
        self.command = ["docker", "compose"]
        file = COMPOSE_FILE
        if subprocess.run([*self.command, "version"], capture_output=True, check=False).returncode != 0:
            # The first Compose takes the project's name as an argument only.
            self.command, file = ["docker-compose"], f"{folder}/compose.yaml"
            with open(COMPOSE_FILE, encoding="utf-8") as source, open(file, "w", encoding="utf-8") as target:
                target.write(re.sub(r"(?m)^name: .*\n", "", source.read()))
        self.command += ["--project-name", "kvblend", "--project-directory", os.path.dirname(COMPOSE_FILE), "--file", file]

    def run(self, *arguments):
        return output_of(*self.command, *arguments)

    def container(self, service):
        return output_of("docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.service={service}")

    def inspect(self, service):
        return json.loads(output_of("docker", "inspect", self.container(service)))[0]

    def redis(self, node, *command):
        return output_of("docker", "exec", self.container(node), "redis-cli", *command)

    def up(self):
        """The ids of Redis' nodes."""
        start = time.monotonic()
        self.run("up", "--detach", *SERVICES)
        assert self.inspect("redis-cluster")["State"]["ExitCode"] == 0, output_of("docker", "logs", self.container("redis-cluster"))
        ids = set()
        for node in NODES:
            told = self.redis(node, "cluster", "info")
            assert "cluster_state:ok" in told and "cluster_size:3" in told, f"{node}: {told}"
            ids.update(line.split()[0] for line in self.redis(node, "cluster", "nodes").splitlines())
        assert len(ids) == 3, ids
        self.wait_until_healthy()
        print(f"up in {time.monotonic() - start:.0f} s: a cluster of three, and the server is healthy")
        return ids

    def wait_until_healthy(self):
        wait_until("the server is healthy", lambda: self.inspect("kvblend")["State"]["Health"]["Status"] == "healthy")
        wait_until("the HTTP API is published", lambda: get("http://127.0.0.1:8000/v1/models") == 200)

    def keys(self):
        return sum(int(self.redis(node, "dbsize")) for node in NODES)

    def metric(self, name):
        """As Prometheus would read it, at the address that it has for the server."""
        address = self.inspect("kvblend")["NetworkSettings"]["Networks"]["kvblend_front"]["IPAddress"]
        with urllib.request.urlopen(f"http://{address}:8090/metrics", timeout=30) as answer:
            return float(re.search(rf"(?m)^{name} (\S+)$", answer.read().decode())[1])


def ask():
    """(source, tier) of the chunk."""
    with chat(16) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["content"], "no answer over HTTP"
    (chunk,) = answer["kvblend"]["prompt"]["chunks"]
    return chunk["source"], chunk["tier"]


def check_chunks(stack):
    """Computed, found again, and after a restart found in Redis."""
    assert ask()[0] == "CHUNK_SOURCE_MISS"
    wait_until("the chunk is found in main memory", lambda: ask()[1] == "TIER_HOST_MEMORY")
    wait_until("the chunk is in Redis", lambda: stack.metric("kvblend_redis_puts_total") > 0)
    assert stack.keys() > 0
    assert stack.metric("kvblend_redis_nodes_working") == 3
    stack.run("restart", "kvblend")
    stack.wait_until_healthy()
    found = ask()
    assert found[1] == "TIER_REDIS", found
    print("chunks: computed, found in main memory, and after a restart in Redis, as", found[0])


def check_prometheus():
    with open(os.path.join(ROOT, "deploy/prometheus/alerts.yml"), encoding="utf-8") as file:
        expected = len(re.findall(r"- alert:", file.read()))

    def data_of(path):
        return json_of(f"http://127.0.0.1:9090/api/v1/{path}")["data"]

    def health_of_rules():
        return [rule["health"] for group in data_of("rules")["groups"] for rule in group["rules"]]
    wait_until("Prometheus scrapes the server", lambda: "up" in [target["health"] for target in data_of("targets")["activeTargets"]])
    wait_until("the alerts are evaluated", lambda: health_of_rules() == ["ok"] * expected)
    print(f"Prometheus: scrapes the server, evaluates {expected} alerts")


def check_drain(stack):
    """Stopped in the middle of an answer, the server finishes it."""
    stream = Stream()
    assert stream.reader.is_alive(), "the stream is over already"
    stack.run("stop", "kvblend")
    stream.wait_for_end()
    state = stack.inspect("kvblend")["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0), state
    print("drained: the stream came to its end")


def main(folder, image, model):
    bring_loopback_up()
    # Where this machine's Docker would be found, and its containerd.
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "tmpfs", "/run")
    os.makedirs(f"{folder}/models")
    shutil.copy(model, f"{folder}/models/{MODEL_FILE}")
    os.environ.update(KVBLEND_MODEL_DIR=f"{folder}/models", KVBLEND_MODEL_FILE=MODEL_FILE, KVBLEND_IMAGE="kvblend")
    daemon = Daemon(folder, image)
    try:
        stack = Stack(folder)
        try:
            ids = stack.up()
            check_chunks(stack)
            check_prometheus()
            check_drain(stack)
            stack.run("down")
            volumes = output_of("docker", "volume", "ls", "--quiet").split()
            assert len(volumes) == len(NODES) + 1, f"left behind: {volumes}"
            assert stack.up() == ids, "not the nodes that there were"
            assert stack.keys() == 0
            check_chunks(stack)
        except BaseException:
            print(stack.run("logs", "--no-color", "--tail", "50"), file=sys.stderr)
            raise
        stack.run("down", "--volumes")
        left = [output_of("docker", *kind, "--quiet") for kind in (("ps", "--all"), ("volume", "ls"),
                                                                   ("network", "ls", "--filter", "type=custom"))]
        assert left == ["", "", ""], left
        print("down: nothing is left")
    finally:
        daemon.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
