"""A server that is made up, for the tests of what stands in front of servers."""

import contextlib
import http.server
import socket
import threading
import time

PATIENCE = 60  # seconds until a test fails that waits for what does not come


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)
    return value


class Server(http.server.ThreadingHTTPServer):
    """Answers /quick at once, and /slow with one piece at once and another when it is released."""

    request_queue_size = 1024

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []  # of each request: its version, Host, X-Forwarded-For and the port of its connection
        self.begun = threading.Semaphore(0)  # counts the slow ones
        self.released = threading.Event()

    @property
    def port(self):
        return self.server_address[1]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.request_version, self.headers["Host"], self.headers["X-Forwarded-For"],
                                     self.client_address[1]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\none\r\n")
        if self.path == "/slow":
            self.server.begun.release()
            self.server.released.wait(PATIENCE)
        self.wfile.write(b"3\r\ntwo\r\n0\r\n\r\n")


@contextlib.contextmanager
def serving():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def refused_port():
    """A port of this machine at which nobody listens, nor can while this lasts."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def status_of(connection, path, **headers):
    """Of an answer that is read to its end."""
    connection.request("POST", path, b"{}", headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status
