"""What the tests of the HTTP API share."""

import json
import socket

import openai


def client_of(server, **options):
    """The official client, which tries once."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.api_port}/v1",
                         **{"api_key": "none", "max_retries": 0, "timeout": 120, **options})


def connect(server, receive_buffer=None):
    """A connection whose bytes the test writes itself."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.api_port))
    return connection


def request_bytes(path, body, extra=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def exchange(server, data):
    """All bytes that come back for `data` until the server closes the connection."""
    with connect(server) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # refused before it was read whole
        return read_to_end(connection)


def read_to_end(connection):
    received = b""
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    return received


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None
