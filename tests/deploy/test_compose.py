"""deploy/compose: what its services name is there, and the programs take the settings that it gives them. No container engine is
needed; tests/deploy/check_image.sh runs the image."""

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


def substituted(text):
    """With the defaults of ${NAME:-default}."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(FOLDER, "compose.yaml"), encoding="utf-8") as file:
            cls.compose = yaml.safe_load(substituted(file.read()))
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
        self.assertEqual([], server["command"])
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        for name in server["environment"]:
            self.assertIn(f"(Env:{name})", help_text)
        for name in ("read_only", "cap_drop", "security_opt"):
            self.assertTrue(server[name], name)
        drain = re.search(r"--drain-timeout\b[^\n]*=(\d+)", help_text)
        self.assertGreater(int(server["stop_grace_period"].rstrip("s")), int(drain.group(1)))

    @unittest.skipIf(shutil.which("redis-server") is None, "no redis-server; deploy/install_dependencies.sh --test installs one")
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
