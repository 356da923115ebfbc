#!/usr/bin/env python3
"""Writes entry_vectors.txt: kvb1 entries made from what docs/store-format.md says, with Python's struct and the
xxhash package (pip install xxhash).

    python3 tests/unit/store/make_entry_vectors.py > tests/unit/store/entry_vectors.txt

Each entry is a list of lines "name value", which are what it was made from, and then its bytes, 48 in a line (as many
as the section table has for a layer): offset, how many times the bytes follow one another, the bytes. What is in no
line is zero. Byte i of a section, its last padding to 4 KiB left out, is
(7 i + 31 layer + 101 [V] + 1) mod 251.
"""
import struct

import xxhash

PAGE = 4096
TABLE = 640
ENCODINGS = {"f32": 0, "bf16": 1, "f16": 2, "int8": 3, "int4": 4, "fp8": 5}
ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


def up(count, unit):
    return -(-count // unit) * unit


def section_bytes(encoding, is_value, tokens, cols):
    if encoding in ELEMENT_BYTES:
        return up(tokens * cols * ELEMENT_BYTES[encoding], 64)
    scales = tokens * -(-cols // 32) if is_value else -(-tokens // 32) * cols
    row = (cols + 1) // 2 if encoding == "int4" else cols
    planes = 1 if encoding == "fp8" else 2  # of scales
    return planes * up(2 * scales, 64) + up(tokens * row, 64)


def section(layer, is_value, size):
    return bytes((7 * i + 31 * layer + 101 * is_value + 1) % 251 for i in range(size))


def make_entry(entry):
    sections = []
    for layer in range(entry["num_layers"]):
        for is_value in (0, 1):
            size = section_bytes(entry["encoding"], is_value, entry["num_tokens"],
                                 entry["num_kv_heads"] * entry["head_dim"])
            data = section(layer, is_value, size)
            sections.append(data + bytes(up(size, PAGE) - size))
    header_bytes = up(TABLE + 24 * len(sections), PAGE)
    header = bytearray(header_bytes)
    header[0:8] = b"kvb1\r\n\x1a\n"
    struct.pack_into("<IIQII", header, 8, 1, header_bytes, 0, 0, 0)
    for at, name in ((32, "key"), (64, "content_key"), (96, "anchor_hash"), (128, "model_fingerprint")):
        header[at:at + 32] = entry[name]
    struct.pack_into("<IIIIII", header, 160, ENCODINGS[entry["encoding"]], 1, entry["num_layers"],
                     entry["num_kv_heads"], entry["head_dim"], entry["num_tokens"])
    struct.pack_into("<dqII", header, 184, entry["compute_cost_seconds"], entry["created_unix_micros"],
                     len(entry["tenant_namespace"]), len(entry["label"]))
    header[256:256 + len(entry["tenant_namespace"])] = entry["tenant_namespace"]
    header[384:384 + len(entry["label"])] = entry["label"]
    offset = header_bytes
    for i, data in enumerate(sections):
        struct.pack_into("<QQQ", header, TABLE + 24 * i, offset, len(data), xxhash.xxh3_64_intdigest(data))
        offset += len(data)
    struct.pack_into("<Q", header, 16, xxhash.xxh3_64_intdigest(bytes(header)))
    return bytes(header) + b"".join(sections)


def digest(first):
    return bytes((first + 5 * i) % 256 for i in range(32))


def entry(name, encoding, num_layers, num_kv_heads, head_dim, num_tokens, cost, created, namespace, label):
    return {"entry": name, "key": digest(1), "content_key": digest(2), "anchor_hash": digest(3),
            "model_fingerprint": digest(4), "encoding": encoding, "num_layers": num_layers,
            "num_kv_heads": num_kv_heads, "head_dim": head_dim, "num_tokens": num_tokens,
            "compute_cost_seconds": cost, "created_unix_micros": created, "tenant_namespace": namespace,
            "label": label}


ENTRIES = [
    entry("int8", "int8", 2, 1, 2, 33, 0.125, 1795219200123456, b"", b"manual"),
    entry("int4_odd_columns", "int4", 1, 3, 11, 2, 1e-300, 0, b"tenant-a", b""),
    entry("bf16", "bf16", 1, 2, 8, 1, 0.0, -1, "m\u00fcller".encode(), b"a\x00\xff"),
    entry("f16", "f16", 1, 1, 1, 1, 3.5, 2**63 - 1, b"", b""),
    entry("f32_full_strings", "f32", 1, 1, 3, 3, 12.75, -2**63, b"n" * 128, b"l" * 256),
    entry("fp8", "fp8", 1, 3, 11, 2, 2.25, 1795219200123457, b"", b""),
    entry("no_tokens_two_pages", "int8", 73, 1, 1, 0, 0.0, 1, b"", b""),
]

for fields in ENTRIES:
    for name, value in fields.items():
        print(name, value.hex() if isinstance(value, bytes) else value)
    data = make_entry(fields)
    print("size", len(data))
    at = 0
    while at < len(data):
        line = data[at:at + 48]
        times = 1
        while data[at + 48 * times:at + 48 * (times + 1)] == line:
            times += 1
        if any(line):
            print(f"{at:x}", times, line.hex())
        at += 48 * times
