#!/usr/bin/env python3
"""Writes chunk_key_vectors.tsv: keys computed from the serialisation documented in engine/store/format/chunk_address.h,
with Python's hashlib and struct only.

    python3 tests/unit/store/make_key_vectors.py > tests/unit/store/chunk_key_vectors.tsv

Columns: name, model fingerprint (hex), dtype, num_layers, num_kv_heads, head_dim, format version, namespace (hex of
UTF-8), anchor token ids, token ids (both comma-separated), anchor hash, chunk key, content key (hex).
"""
import hashlib
import struct


def text(value):
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def tokens(ids):
    return struct.pack("<Q", len(ids)) + b"".join(struct.pack("<i", i) for i in ids)


def hash_tokens(ids):
    return hashlib.sha256(text("kvblend token ids") + struct.pack("<I", 1) + tokens(ids)).digest()


def key(kind, fingerprint, fmt, namespace, anchor_hash, ids):
    dtype, layers, kv_heads, head_dim, version = fmt
    data = text("kvblend chunk") + struct.pack("<IB", 1, kind) + fingerprint + text(dtype)
    data += struct.pack("<IIII", layers, kv_heads, head_dim, version) + text(namespace)
    if kind == 1:
        data += anchor_hash
    return hashlib.sha256(data + tokens(ids)).digest()


SMOLLM2 = ("bf16", 30, 3, 64, 1)
ZERO = bytes(32)
COUNTING = bytes(range(32))
CASES = [
    ("empty", ZERO, ("f32", 1, 1, 1, 1), "", [], []),
    ("isolated", COUNTING, SMOLLM2, "", [], [1, 2, 3]),
    ("anchored", COUNTING, SMOLLM2, "", [0], [1, 2, 3]),
    ("other_anchor", COUNTING, SMOLLM2, "", [0, 0], [1, 2, 3]),
    ("tenant", COUNTING, SMOLLM2, "tenant-a", [0], [1, 2, 3]),
    ("tenant_utf8", COUNTING, SMOLLM2, "m\u00fcller \u4e2d", [0], [1, 2, 3]),
    ("f16", COUNTING, ("f16", 30, 3, 64, 1), "", [0], [1, 2, 3]),
    ("fp8", COUNTING, ("fp8", 30, 3, 64, 1), "", [0], [1, 2, 3]),
    ("heads_swapped", COUNTING, ("bf16", 30, 64, 3, 1), "", [0], [1, 2, 3]),
    ("other_model", bytes(reversed(COUNTING)), SMOLLM2, "", [0], [1, 2, 3]),
    ("format_version", COUNTING, ("bf16", 30, 3, 64, 2), "", [0], [1, 2, 3]),
    ("large_ids", COUNTING, SMOLLM2, "", [2147483647], [-1, 49151, 2147483647, -2147483648]),
    ("long", COUNTING, SMOLLM2, "t", list(range(100)), [(i * 7919) % 49152 for i in range(600)]),
]

for name, fingerprint, fmt, namespace, anchor, ids in CASES:
    anchor_hash = hash_tokens(anchor)
    row = [name, fingerprint.hex(), *map(str, fmt), namespace.encode("utf-8").hex()]
    row += [",".join(map(str, anchor)), ",".join(map(str, ids)), anchor_hash.hex()]
    row += [key(kind, fingerprint, fmt, namespace, anchor_hash, ids).hex() for kind in (1, 2)]
    print("\t".join(row))
