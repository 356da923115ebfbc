"""gRPC calls that are nearly right, made from right ones of every method, and what counts as a proper answer to them."""

import struct

import grpc

# By the name of the status. Anything else would be the server's own failure.
PROPER = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "FAILED_PRECONDITION", "UNAUTHENTICATED"}
ODD_NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


def messages(v1):
    """(method, serialized request) of every call."""
    prompt = v1.Prompt(system_text="s", lead_in="l", chunks=["A passage.", "Another."], question="What is it?",
                       history=[v1.Turn(role=1, text="Hello"), v1.Turn(role=2, text="Hi")])
    calls = [
        ("Inference/Generate", v1.GenerateRequest(namespace="m", prompt=prompt, blend={"policy": 2, "ratio": 0.2, "hkvd_layer": 1},
                                                  sampling={"max_tokens": 2, "temperature": 0.5, "stop": ["zz"], "top_logprobs": 1})),
        ("Inference/Generate", v1.GenerateRequest(prompt=prompt, blend={"explain": True}, sampling={"max_tokens": 1})),
        ("Inference/Score", v1.ScoreRequest(prompt=prompt, continuation_text="It is.")),
        ("Inference/Score", v1.ScoreRequest(prompt=prompt, continuation_token_ids={"ids": [1, 2, 3]}, return_distributions=True)),
        ("Chunks/Put", v1.PutChunksRequest(system_text="s", chunks=["A passage.", "A third."], chunk_labels=["a", "b"])),
        ("Chunks/Split", v1.SplitDocumentRequest(text="Some words. " * 20, chunk_tokens=64, overlap_tokens=8)),
        ("Chunks/Prefetch", v1.PrefetchChunksRequest(chunks=["A passage."], system_text="s")),
        ("Chunks/Stat", v1.StatChunksRequest(keys=["ab" * 32])),
        ("Chunks/List", v1.ListChunksRequest(page_size=3, namespace="m", page_token="x")),
        ("Chunks/Delete", v1.DeleteChunksRequest(keys=["ab" * 32])),
        ("Chunks/Pin", v1.PinChunksRequest(keys=["ab" * 32], pinned=True)),
        ("Admin/GetInfo", v1.GetInfoRequest()),
        ("Admin/UpdateCorrection", v1.UpdateCorrectionRequest(action=1)),
    ]
    return [(f"/kvblend.v1.{method}", message.SerializeToString()) for method, message in calls]


def varint(value):
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError


def fields(data):
    """[(number, wire type, value)], the value an integer or bytes. ValueError or IndexError if it is no message."""
    found, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        elif kind == 2:
            size, at = read_varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise ValueError
        if number == 0 or at > len(data):
            raise ValueError
        found.append((number, kind, value))
    return found


def encode(parts):
    data = b""
    for number, kind, value in parts:
        data += varint(number << 3 | kind)
        data += varint(value) if kind == 0 else varint(len(value)) + value if kind == 2 else value
    return data


def mutate_fields(source, data):
    """One field of a message, or of one within it, is another, gone, doubled, moved, or of another type."""
    try:
        parts = fields(data)
    except (ValueError, IndexError):
        parts = []
    if not parts:
        return bytes(source.randrange(256) for _ in range(source.randrange(1, 12)))
    at = source.randrange(len(parts))
    number, kind, value = parts[at]
    way = source.randrange(8)
    if kind == 2 and value and way < 4:
        parts[at] = (number, kind, mutate_fields(source, value))
    elif way == 4:
        del parts[at]
    elif way == 5:
        parts[at:at] = [parts[at]] * source.randrange(1, 60)
    elif way == 6:
        parts[at] = (source.choice([number, number + 1, 15, 536870911]), 0, source.choice(ODD_NUMBERS))
    elif kind == 0:
        parts[at] = (number, 0, source.choice(ODD_NUMBERS))
    elif kind == 2:
        parts[at] = (number, 2, source.choice([b"", b"\xff\xfe", b"\xed\xa0\x80", value * 40, b"x" * 3000, value[:-1]]))
    else:
        size = 8 if kind == 1 else 4
        number_format = "<d" if size == 8 else "<f"
        odd = source.choice([0.0, -1.0, 1e30, float("nan"), float("inf"), float("-inf"), 1e-45])
        parts[at] = (number, kind, struct.pack(number_format, odd))
    return encode(parts)


def metadata(source):
    return source.choice([
        (), (), (("authorization", "Bearer " + "x" * 100),), (("traceparent", "00-zz"),), (("x-bin", bytes(range(256))),),
        (("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),), tuple((f"h{i}", "v" * 20) for i in range(40)), (("x", "y" * 4000),),
    ])


def problem_of(source, channel, calls):
    """Makes a call. (its kind, what is wrong with its answer; None: nothing)."""
    method, data = source.choice(calls)
    kind = source.choice(["fields", "fields", "fields", "bytes", "truncated", "method", "metadata", "deadline"])
    proper, timeout = set(PROPER), 60
    if kind == "fields":
        for _ in range(source.randrange(1, 3)):
            data = mutate_fields(source, data)
    elif kind == "bytes" and data:
        changed = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            changed[source.randrange(len(changed))] = source.randrange(256)
        data = bytes(changed)
    elif kind == "truncated":
        data = data[:source.randrange(len(data) + 1)]
    elif kind == "method":
        method = source.choice([method + "x", "/kvblend.v1.Nothing/Get", "/", "/kvblend.v1.Inference/", "/x/y/z", method.replace("v1", "v9")])
        proper = {"UNIMPLEMENTED"}
    elif kind == "deadline":
        timeout = source.choice([0.0001, 0.001, 0.01])
        proper |= {"DEADLINE_EXCEEDED", "CANCELLED"}
    call = channel.unary_stream(method, request_serializer=None, response_deserializer=None)
    try:
        list(call(data, timeout=timeout, metadata=metadata(source) if kind == "metadata" else None))
        code, details = "OK", ""
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
    if code not in proper:
        return kind, f"{method} {data!r}: {code}: {details}"
    # gRPC itself says no more of methods that it does not know.
    return kind, None if details or code in ("OK", "UNIMPLEMENTED") else f"{method} {data!r}: {code} without a message"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def raw_call(method, data):
    """The bytes of a call on a connection of its own: HTTP/2's preface, settings, headers without Huffman's code, one message."""
    def header(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = (b"\x83\x86" + header(b":path", method.encode()[:120]) + header(b":authority", b"here") +
               header(b"content-type", b"application/grpc") + header(b"te", b"trailers"))
    message = b"\0" + struct.pack(">I", len(data)) + data
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 1, 1, message))
