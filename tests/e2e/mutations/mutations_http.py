"""HTTP requests that are nearly right, made from right ones to every endpoint, and what counts as a proper answer to them."""

import copy
import json
import re

CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "What is it?"}], "max_tokens": 2, "seed": 1}
COHERE = {"model": "", "messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 2,
          "documents": [{"id": "d", "data": {"text": "A passage."}}]}
KEY = "ab" * 32
BODIES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2,
                              "documents": [{"title": "t", "text": "A passage."}, {"text": "Another."}], "stop": ["zz"]}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 2, "logprobs": 1, "temperature": 0.5, "top_p": 0.9}),
    ("/v2/chat", COHERE),
    ("/v2/chat", {**COHERE, "stream": True, "temperature": 0, "p": 0.9, "k": 3}),
    ("/v1/chunks", {"chunks": ["A passage.", "Another."], "system_text": "s", "lead_in": "l", "label": "x"}),
    ("/v1/chunks", {"chunks": ["A third."], "stream": True, "pin": True}),
    ("/v1/chunks/stat", {"keys": [KEY]}),
    ("/v1/chunks/delete", {"keys": [KEY, "cd" * 32]}),
    ("/v1/chunks/pin", {"keys": [KEY], "pinned": False}),
    ("/v1/chunks/split", {"text": "A text of some words. " * 20, "chunk_tokens": 64, "overlap_tokens": 8}),
    ("/v1/chunks/prefetch", {"chunks": ["A passage."], "system_text": "s"}),
]
GETS = ["/v1/models", "/v1/models/x", "/v1/info", "/v1/chunks?page_size=3&namespace=%20", f"/v1/chunks/{KEY}", "/openapi.json", "/ui",
        "/v1/embeddings"]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "X" * 40]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP/1.", "ICY", ""]
VALUES = [None, True, False, 0, -1, 1, 2**31, -2**31 - 1, 2**63, 2**64, 1e308, -0.0, 1e-320, "", "x", "\0", "\ud800", "é" * 50, "x" * 3000,
          [], {}, [[]], [None], {"": ""}, {"role": "tool"}, [1] * 500]
RAW = [b"NaN", b"Infinity", b"1e400", b"-", b"[" * 3000, b'{"a":' * 500, b'"\\ud800"', b"\xff\xfe", b"//", b"'x'", b"01", b"\0"]
PIECES = [b"\r\n", b"\0", b"{", b"[" * 50, b'"', b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"%", b"\xff", b"-1", b"1e400",
          b"Expect: 100-continue\r\n", b"HTTP/9.9", b":", b"999999999999999999999", b"\n", b" ", b"\t"]
HEADERS = ["Content-Length: -1", "Content-Length: 1e3", "Content-Length: 99999999999999999999", "Content-Length: 0", "Content-Length:",
           "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity", "Expect: 100-continue",
           "Expect: tea", "Content-Type: text/plain", "Content-Type: application/json; charset=utf-16", "Host:", "Host: a\r\nHost: b",
           "Connection: upgrade\r\nUpgrade: websocket", "Authorization: Bearer " + "x" * 500, "Authorization: ", "X: " + "y" * 20000,
           " folded", "no colon", ": no name", "Bad Name: x", "Range: bytes=0-1", "Accept-Encoding: gzip;q=x", "Origin: null",
           "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-01", "traceparent: ff-zz", "\r\n".join(f"H{i}: x" for i in range(300))]

# What openapi.json documents, without what would be the server's own failure; 302, from / to the page;
# and 501 and 505 for codings and versions of HTTP that are not spoken.
PROPER = {200, 302, 400, 401, 404, 405, 408, 411, 413, 415, 417, 421, 429, 431, 501, 505}


def places(node, path=()):
    """Paths to all values in a JSON document, itself included."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def mutate_json(source, document):
    """The bytes of a document in which one to three values are others, gone, new or doubled."""
    document = json.loads(json.dumps(document))
    for _ in range(source.randrange(1, 4)):
        path = source.choice(list(places(document)))
        if not path:
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        kind = source.randrange(4)
        if kind == 0:
            parent[path[-1]] = copy.deepcopy(source.choice(VALUES))
        elif kind == 1:
            del parent[path[-1]]
        elif kind == 2 and isinstance(parent, list):
            parent.extend(copy.deepcopy(parent[path[-1]]) for _ in range(source.randrange(1, 30)))
        elif isinstance(parent, dict):
            parent[source.choice(["unknown", "", "n", "tools", "stream", "model", "kvblend"])] = copy.deepcopy(source.choice(VALUES))
    text = json.dumps(document, ensure_ascii=source.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def mutate_bytes(source, data, pieces):
    data = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(3)
        if kind == 0 and at < len(data):
            data[at] = source.randrange(256)
        elif kind == 1:
            data[at:at] = source.choice(pieces)
        else:
            del data[at:at + source.randrange(1, 20)]
    return bytes(data)


def request(path, body=None, method=None, version="HTTP/1.1", headers=(), length=True):
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} {version}", "Host: localhost", "Connection: close", *headers]
    if body is not None:
        lines.append("Content-Type: application/json")
        if length:
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def chunked(source, body):
    """A body in chunks, in half of the cases wrong ones."""
    data = b""
    while body:
        size = source.randrange(1, 40)
        piece, body = body[:size], body[size:]
        data += f"{len(piece):x}".encode() + source.choice([b"", b"", b";name=value"]) + b"\r\n" + piece + b"\r\n"
    data += b"0\r\n" + source.choice([b"", b"Trailer: x\r\n"]) + b"\r\n"
    if source.random() < 0.5:
        data = mutate_bytes(source, data, [b"fffffffffffffffff\r\n", b"-1\r\n", b"\r\n", b";" * 5000, b"0\r\n\r\n", b"g\r\n"])
    return data


def mutate(source):
    """(kind, bytes to send, whether the sender hangs up behind them)."""
    path, document = source.choice(BODIES)
    body = json.dumps(document).encode()
    kind = source.choice(["json", "json", "json", "body", "wire", "headers", "line", "chunked", "truncated", "get"])
    if kind == "json":
        changed = mutate_json(source, document)
        if source.random() < 0.1:
            changed = changed.replace(b"2", source.choice(RAW), 1)
        return kind, request(path, changed), False
    if kind == "body":
        return kind, request(path, mutate_bytes(source, body, RAW)), False
    if kind == "wire":
        return kind, mutate_bytes(source, request(path, body), PIECES), False
    if kind == "headers":
        return kind, request(path, body, headers=source.sample(HEADERS, source.randrange(1, 3)), length=source.random() < 0.5), False
    if kind == "line":
        target = source.choice([path, source.choice(GETS), "", "*", "/%zz", "/..", "//", "http://x" + path, path + "?" + "a" * 9000,
                                "/v1/chunks/" + "%00" * 20])
        return kind, request(target, source.choice([None, body]), source.choice(METHODS), source.choice(VERSIONS)), False
    if kind == "chunked":
        return kind, request(path, b"", headers=["Transfer-Encoding: chunked"], length=False) + chunked(source, body), False
    if kind == "truncated":
        data = request(path, body)
        return kind, data[:source.randrange(1, len(data))], True
    return kind, mutate_bytes(source, request(source.choice(GETS)), PIECES), False


def problem_of(answer, hung_up, head_request):
    """What is wrong with an answer; None: it is a proper one."""
    if not answer:
        return None if hung_up else "no answer"  # there is nobody to tell
    match = re.match(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n", answer)
    if match is None or b"\r\n\r\n" not in answer:
        return "no HTTP"
    status = int(match[1])
    if status == 100:
        return problem_of(answer.split(b"\r\n\r\n", 1)[1], hung_up, head_request)
    if status not in PROPER:
        return f"status {status}"
    head, body = answer.split(b"\r\n\r\n", 1)
    if status < 400 or head_request:
        return None
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    try:
        error = json.loads(body[:int(length[1])] if length else body)
    except ValueError:
        return "an error that is no JSON"
    message = error.get("error", {}).get("message") or error.get("message")
    return None if message else "an error without a message"
