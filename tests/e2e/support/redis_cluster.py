"""A real Redis Cluster of three for tests: redis-server processes on free ports of 127.0.0.1."""

import signal
import socket
import subprocess

from conftest import wait_until

NODES = 3


def free_port():
    """A port that is free, and the one 10,000 above it as well, which nodes of a cluster use among themselves."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port >= 55000:
                continue
            try:
                second.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            return port


class Node:
    def __init__(self, folder, password):
        self.folder, self.password = folder, password
        self.port = None
        self.process = None
        for _ in range(20):  # between looking for a port and using it somebody else may take it
            self.port = free_port()
            if self.start():
                return
        raise AssertionError(f"redis-server did not start; its logs are in {folder}")

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder),
             "--save", "", "--appendonly", "no", "--cluster-enabled", "yes",
             "--cluster-config-file", f"{self.port}.conf", "--cluster-node-timeout", "2000",
             "--requirepass", self.password, "--logfile", str(self.folder / f"{self.port}.log")],
            stdout=subprocess.DEVNULL)
        wait_until(lambda: self.process.poll() is not None or self._answers(), "redis-server answers")
        return self.process.poll() is None

    def _answers(self):
        try:
            return self.call("PING") == b"PONG"
        except OSError:
            return False

    def call(self, *arguments):
        """The reply, as far as tests need it: a status or a bulk string as bytes, an integer; errors raise."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            stream = connection.makefile("rwb")
            for command in (("AUTH", self.password), arguments):
                parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
                stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
                stream.flush()
                reply = self._reply(stream)
            return reply

    def _reply(self, stream):
        line = stream.readline()
        if not line:
            raise ConnectionResetError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            return stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._reply(stream) for _ in range(int(rest))]
        return rest

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        wait_until(self.start, "redis-server starts again")


class RedisCluster:
    def __init__(self, folder, password="a password"):
        self.nodes = []
        try:
            for _ in range(NODES):
                self.nodes.append(Node(folder, password))
            for index, node in enumerate(self.nodes):
                node.call("CLUSTER", "ADDSLOTSRANGE", 16384 * index // NODES, 16384 * (index + 1) // NODES - 1)
                self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port)
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise

    @property
    def addresses(self):
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def wait_until_ok(self):
        def ok():
            infos = [node.call("CLUSTER", "INFO").decode() for node in self.nodes]
            return all("cluster_state:ok" in info and f"cluster_size:{NODES}" in info for info in infos)
        wait_until(ok, "cluster_state:ok")

    def keys(self):
        """key -> node"""
        return {key.decode(): node for node in self.nodes for key in node.call("KEYS", "kvb1:*")}

    def stop(self):
        for node in self.nodes:
            node.kill()
