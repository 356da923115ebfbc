"""nginx and HAProxy with the files of deploy/proxy, in front of a server that is made up here."""

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from fake_server import PATIENCE, serving, status_of, wait_until
from project import read

NGINX, HAPROXY = (shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("nginx", "haproxy"))


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [str(one.getsockname()[1]) for one in sockets]


def accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class ProxyTest(unittest.TestCase):
    @contextlib.contextmanager
    def running(self, text, ports, command):
        """The proxy with these ports in place of those of its file, which `command` is given."""
        with tempfile.TemporaryDirectory() as folder:
            for old, new in ports.items():
                self.assertIn(f"127.0.0.1:{old}", text)
                text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
            path = os.path.join(folder, "configuration")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("FOLDER", folder))
            with subprocess.Popen([*command, path], cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
                try:
                    wait_until(lambda: process.poll() is None and accepts(ports["8080"]), "the proxy listens")
                    yield ports["8080"]
                finally:
                    process.terminate()

    def check(self, server, port):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
            for _ in range(2):
                self.assertEqual(200, status_of(client, "/quick"))
            client.request("POST", "/slow", b"{}")
            answer = client.getresponse()
            self.assertEqual(b"one", answer.read(3), "a piece arrives before the answer has ended")
            server.released.set()
            self.assertEqual(b"two", answer.read())
        self.assertEqual({("HTTP/1.1", "localhost", "127.0.0.1")}, {request[:3] for request in server.requests})
        self.assertEqual(1, len({request[3] for request in server.requests}), "one connection to the server does for all")

    @unittest.skipIf(NGINX is None, "no nginx")
    def test_nginx(self):
        with serving() as server:
            api, grpc = free_ports(2)
            text = read("deploy/proxy/nginx.conf").replace("events {}", "daemon off; pid FOLDER/pid; error_log stderr; events {}")
            text = text.replace("http {", "http { access_log off; " + " ".join(
                f"{kind}_temp_path FOLDER/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")), 1)
            with self.running(text, {"8080": api, "50052": grpc, "8000": str(server.port)}, [NGINX, "-c"]) as port:
                self.check(server, port)

    @unittest.skipIf(HAPROXY is None, "no haproxy")
    def test_haproxy(self):
        with serving() as server:
            (api,) = free_ports(1)
            text = read("deploy/proxy/haproxy.cfg").replace("check port 8090", "")  # nobody tells there that the server is ready
            with self.running(text.replace("inter 1s", ""), {"8080": api, "8000": str(server.port)}, [HAPROXY, "-db", "-f"]) as port:
                self.check(server, port)


if __name__ == "__main__":
    unittest.main()
