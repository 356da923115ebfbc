"""deploy/compose: what its services name is there, and the programs take the settings that it gives them. No container engine is
needed; tests/deploy/check_compose.sh starts it all."""

import ipaddress
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import yaml

from project import BIN, ROOT, output_of

FOLDER = os.path.join(ROOT, "deploy/compose")


def compose_with(**variables):
    """The file as compose reads it: ${NAME:-default} is a variable or the default, $$ one dollar sign."""
    with open(os.path.join(FOLDER, "compose.yaml"), encoding="utf-8") as file:
        text = re.sub(r"(?<!\$)\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), file.read())
    return yaml.safe_load(text.replace("$$", "$"))


NEEDS_REDIS = unittest.skipIf(shutil.which("redis-server") is None or shutil.which("redis-cli") is None,
                              "no redis-server and redis-cli; deploy/install_dependencies.sh --test installs them")


class RedisClusterTest(unittest.TestCase):
    """The service redis-cluster, run as it stands there against its three nodes, which have addresses of loopback here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.nodes = []
        self.addCleanup(self.stop)

    def start(self, net):
        """`up` but for the service: the nodes with the volumes that they have, at addresses in this net."""
        self.services = compose_with(KVBLEND_REDIS_NET=net)["services"]
        self.addresses = [self.services[f"redis-{number}"]["networks"]["chunks"]["ipv4_address"] for number in range(3)]
        for number, address in enumerate(self.addresses):
            volume = os.path.join(self.folder, str(number))
            os.makedirs(volume, exist_ok=True)
            command = shlex.split(self.services[f"redis-{number}"]["command"])
            command += ["--bind", address, "--bind-source-addr", address, "--dir", volume]
            self.nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        end = time.monotonic() + 60
        for node, address in zip(self.nodes, self.addresses):
            while subprocess.run(["redis-cli", "-h", address, "ping"], capture_output=True, check=False).stdout != b"PONG\n":
                self.assertTrue(node.poll() is None and time.monotonic() < end, f"redis-server at {address} does not answer")
                time.sleep(0.05)

    def stop(self):
        """`down`, which keeps volumes."""
        for node in self.nodes:
            node.kill()
            node.wait()
        self.nodes = []

    def run_service(self):
        service = self.services["redis-cluster"]
        return subprocess.run([*service["entrypoint"], *service["command"]], capture_output=True, text=True, check=False,
                              timeout=120)

    def check(self):
        """The service ends well, and every node tells of the same three, by the addresses that they have now. Returns their ids."""
        done = self.run_service()
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("cluster_state:ok", output_of("redis-cli", "-h", self.addresses[0], "cluster", "info"))
        end = time.monotonic() + 60
        ids = set()
        for address in self.addresses:
            told = {}
            # Who was just met again has two names until that is noticed.
            while sorted(told.values()) != sorted(self.addresses):
                self.assertLess(time.monotonic(), end, f"{address} tells of {told}")
                nodes = output_of("redis-cli", "-h", address, "cluster", "nodes").splitlines()
                told = {line.split()[0]: line.split()[1].partition(":")[0] for line in nodes}
            ids.update(told)
        self.assertEqual(3, len(ids))
        return ids

    @NEEDS_REDIS
    def test_it_may_run_any_number_of_times(self):
        # Of this test alone, whatever else runs on this machine.
        net = f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250}"
        self.start(net)
        ids = self.check()
        self.assertEqual(ids, self.check())
        self.stop()
        self.start(net)
        self.assertEqual(ids, self.check())
        # Volumes that remember other addresses.
        self.stop()
        self.start(f"{net.rpartition('.')[0]}.251")
        self.assertEqual(ids, self.check())

    @NEEDS_REDIS
    def test_what_was_begun_is_finished(self):
        self.start(f"127.{os.getpid() % 250 + 1}.252")
        output_of("redis-cli", "-h", self.addresses[0], "cluster", "addslotsrange", "0", "5461")
        output_of("redis-cli", "-h", self.addresses[0], "cluster", "meet", self.addresses[1], "6379")
        self.check()


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.compose = compose_with()
        cls.services = cls.compose["services"]

    def test_services_and_networks_exist(self):
        for name, service in self.services.items():
            for other in service.get("depends_on", ()):
                self.assertIn(other, self.services, name)
            for network in service["networks"]:
                self.assertIn(network, self.compose["networks"], name)
        named = {address.split(":")[0] for address in self.services["kvblend"]["environment"]["KVBLEND_CHUNK_REDIS"].split(",")}
        self.assertEqual({"redis-0", "redis-1", "redis-2"}, named)
        self.assertLessEqual(named, set(self.services))

    def test_what_is_mounted_exists(self):
        for name, service in self.services.items():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source in self.compose["volumes"] or source == "../../models":
                    continue
                self.assertTrue(os.path.exists(os.path.join(FOLDER, source)), f"{name}: {source}")

    def test_everything_is_published_on_loopback(self):
        published = [port for service in self.services.values() for port in service.get("ports", ())]
        self.assertEqual(4, len(published))
        for port in published:
            self.assertRegex(port, r"^127\.0\.0\.1:\d+:\d+$")
        self.assertTrue(self.compose["networks"]["chunks"]["internal"])

    def test_the_server_knows_its_settings(self):
        server = self.services["kvblend"]
        # Without an entrypoint an empty command would keep the image's arguments, which have a model of their own.
        self.assertEqual(["kvblend-server"], server["entrypoint"])
        self.assertEqual([], server["command"])
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        for name in server["environment"]:
            self.assertIn(f"(Env:{name})", help_text)
        for name in ("read_only", "cap_drop", "security_opt"):
            self.assertTrue(server[name], name)
        drain = re.search(r"--drain-timeout\b[^\n]*=(\d+)", help_text)
        self.assertGreater(int(server["stop_grace_period"].rstrip("s")), int(drain.group(1)))

    def test_redis_nodes_keep_their_addresses(self):
        """And nobody else is given one of them."""
        (pool,) = self.compose["networks"]["chunks"]["ipam"]["config"]
        addresses = [ipaddress.ip_address(self.services[f"redis-{number}"]["networks"]["chunks"]["ipv4_address"])
                     for number in range(3)]
        self.assertEqual(3, len(set(addresses)))
        for address in addresses:
            self.assertIn(address, ipaddress.ip_network(pool["subnet"]))
            self.assertNotIn(address, ipaddress.ip_network(pool["ip_range"]))
            self.assertIn(str(address), self.services["redis-cluster"]["command"][0])
        self.assertTrue(ipaddress.ip_network(pool["ip_range"]).subnet_of(ipaddress.ip_network(pool["subnet"])))

    @NEEDS_REDIS
    def test_redis_takes_its_arguments(self):
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            # A node of a cluster has a second port, which is further up than there are ports for some of the free ones.
            command = shlex.split(self.services["redis-0"]["command"])
            command[command.index("--port") + 1] = str(port)
            command += ["--bind", "127.0.0.1", "--dir", folder, "--cluster-port", "0" if port < 50000 else str(port - 20000)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                end = time.monotonic() + 60
                answer = b""
                while b"maxmemory" not in answer:
                    self.assertTrue(server.poll() is None and time.monotonic() < end, "redis-server does not answer")
                    try:
                        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                            connection.sendall(b"CONFIG GET maxmemory\r\n")
                            answer = connection.recv(1000)
                    except OSError:
                        time.sleep(0.05)
                self.assertIn(str(1 << 30).encode(), answer)
            finally:
                server.kill()
                server.communicate()
