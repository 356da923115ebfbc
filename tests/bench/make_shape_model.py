#!/usr/bin/env python3
"""Writes a model of a well-known shape with random weights, to measure what its size costs without downloading it.

    pip install gguf numpy
    tests/bench/make_shape_model.py SHAPE OUTPUT.gguf --tokenizer SOME.gguf [--type Q4_0|Q4_1|Q4_K] [--layers N]

The shapes are smollm2-135m, llama3.2-1b, llama3.1-8b, qwen3-8b and qwen3-30b-a3b. The matrices are blocks of random codes whose scales keep activations
near 1; the text it generates is noise. The tokenizer is the other file's, with unused tokens up to the shape's vocabulary. Tensors
are written piece by piece: no more than some hundred megabytes are in memory at once.
"""

import argparse
import pathlib

import gguf
import numpy as np

SHAPES = {
    "smollm2-135m": dict(
        architecture="llama", layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocabulary=49152,
        context=8192, rope=100000.0, tied=True),
    "llama3.2-1b": dict(
        architecture="llama", layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn=8192, vocabulary=128256,
        context=8192, rope=500000.0, tied=True),
    "llama3.1-8b": dict(
        architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocabulary=128256,
        context=8192, rope=500000.0),
    "qwen3-8b": dict(
        architecture="qwen3", layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=12288, vocabulary=151936,
        context=8192, rope=1000000.0),
    "qwen3-30b-a3b": dict(
        architecture="qwen3moe", layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, ffn=6144, vocabulary=151936,
        context=8192, rope=1000000.0, experts=128, used_experts=8, expert_ffn=768),
}  # fmt: skip
PIECE = 64 << 20  # bytes written at a time


def half(value):
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def random_blocks(kind, count, deviation, rng):
    """`count` blocks as rows of bytes, whose values have about this deviation."""
    block = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, block), dtype=np.uint8)
    if kind == gguf.GGMLQuantizationType.Q4_0:  # scale * (0 .. 15 - 8)
        blocks[:, :2] = half(deviation / 4.6)
    elif kind == gguf.GGMLQuantizationType.Q4_1:  # scale * (0 .. 15) + minimum, of means that cancel
        blocks[:, :2] = half(deviation / 4.6)
        blocks[:, 2:4] = half(-7.5 * deviation / 4.6)
    else:  # Q4_K: scale * (0 .. 63) * (0 .. 15) - scale of minima * (0 .. 63), of means that cancel
        blocks[:, :2] = half(deviation / 240)
        blocks[:, 2:4] = half(deviation / 240 * 7.5)
    return blocks


class Writer:
    def __init__(self, path, shape, kind):
        self.writer = gguf.GGUFWriter(path, shape["architecture"])
        self.kind = kind
        self.rng = np.random.default_rng(1)
        self.tensors = []  # what writes them, in order

    def matrix(self, name, cols, *rest):
        elements, size = gguf.GGML_QUANT_SIZES[self.kind]
        shape = (*reversed(rest), cols)
        total = int(np.prod(shape)) // elements * size
        bytes_of_row = cols // elements * size
        self.writer.add_tensor_info(name, (*shape[:-1], bytes_of_row), np.dtype(np.uint8), total, raw_dtype=self.kind)
        deviation = 0.5 if name == "token_embd.weight" else cols**-0.5
        self.tensors.append((total, size, deviation))

    def values(self, name, array):
        self.writer.add_tensor_info(name, array.shape, array.dtype, array.nbytes)
        self.tensors.append(array)

    def norm(self, name, size):
        self.values(name, np.ones(size, dtype=np.float32))

    def write(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        out = self.writer.fout[0]
        for tensor in self.tensors:
            self.writer.write_padding(out, out.tell())
            if isinstance(tensor, np.ndarray):
                out.write(tensor.tobytes())
                continue
            total, size, deviation = tensor
            # A pool of blocks, from another place every time: quicker than new numbers, and no two pieces are alike.
            pool = random_blocks(self.kind, min(total, PIECE) // size, deviation, self.rng).reshape(-1)
            while total > 0:
                begin = int(self.rng.integers(0, len(pool) // size)) * size
                piece = pool[begin : begin + min(total, len(pool) - begin)]
                out.write(piece.data)
                total -= len(piece)
        self.writer.write_padding(out, out.tell())
        self.writer.close()


def copy_tokenizer(writer, path, vocabulary):
    for field in gguf.GGUFReader(path).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        values = field.contents()
        if field.name == "tokenizer.ggml.tokens":
            if len(values) > vocabulary:
                raise SystemExit(f"{path} has {len(values)} tokens; allowed: up to the shape's {vocabulary}")
            values = values + [f"<|unused {i}|>" for i in range(len(values), vocabulary)]
        elif field.name == "tokenizer.ggml.token_type":
            values = values + [int(gguf.TokenType.UNUSED)] * (vocabulary - len(values))
        elif field.name == "tokenizer.ggml.scores":
            values = values + [0.0] * (vocabulary - len(values))
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, values, field.types[0], sub_type=field.types[-1] if is_array else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, help="a GGUF file")
    parser.add_argument("--type", choices=("Q4_0", "Q4_1", "Q4_K"), default="Q4_0")
    parser.add_argument("--layers", type=int, help="other than the shape's")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    layers = arguments.layers or shape["layers"]
    hidden, head_dim = shape["hidden"], shape["head_dim"]
    queries, keys = shape["heads"] * head_dim, shape["kv_heads"] * head_dim

    out = Writer(arguments.output, shape, gguf.GGMLQuantizationType[arguments.type])
    keys_of = out.writer
    keys_of.add_name(f"{arguments.shape}, random weights")
    keys_of.add_block_count(layers)
    keys_of.add_context_length(shape["context"])
    keys_of.add_embedding_length(hidden)
    keys_of.add_feed_forward_length(shape["ffn"])
    keys_of.add_head_count(shape["heads"])
    keys_of.add_head_count_kv(shape["kv_heads"])
    keys_of.add_key_length(head_dim)
    keys_of.add_value_length(head_dim)
    keys_of.add_rope_dimension_count(head_dim)
    keys_of.add_layer_norm_rms_eps(1e-6)
    keys_of.add_rope_freq_base(shape["rope"])
    keys_of.add_vocab_size(shape["vocabulary"])
    keys_of.add_file_type(gguf.LlamaFileType[f"MOSTLY_{'Q4_K_M' if arguments.type == 'Q4_K' else arguments.type}"])
    keys_of.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if "experts" in shape:
        keys_of.add_expert_count(shape["experts"])
        keys_of.add_expert_used_count(shape["used_experts"])
        keys_of.add_expert_feed_forward_length(shape["expert_ffn"])
    copy_tokenizer(keys_of, arguments.tokenizer, shape["vocabulary"])

    out.matrix("token_embd.weight", hidden, shape["vocabulary"])
    if not shape.get("tied"):
        out.matrix("output.weight", hidden, shape["vocabulary"])
    out.norm("output_norm.weight", hidden)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        out.norm(prefix + "attn_norm.weight", hidden)
        out.matrix(prefix + "attn_q.weight", hidden, queries)
        out.matrix(prefix + "attn_k.weight", hidden, keys)
        out.matrix(prefix + "attn_v.weight", hidden, keys)
        out.matrix(prefix + "attn_output.weight", queries, hidden)
        if shape["architecture"] != "llama":
            out.norm(prefix + "attn_q_norm.weight", head_dim)
            out.norm(prefix + "attn_k_norm.weight", head_dim)
        out.norm(prefix + "ffn_norm.weight", hidden)
        if "experts" in shape:
            experts, width = shape["experts"], shape["expert_ffn"]
            router = out.rng.standard_normal((experts, hidden), dtype=np.float32) * np.float32(2 * hidden**-0.5)
            out.values(prefix + "ffn_gate_inp.weight", router)
            out.matrix(prefix + "ffn_gate_exps.weight", hidden, width, experts)
            out.matrix(prefix + "ffn_up_exps.weight", hidden, width, experts)
            out.matrix(prefix + "ffn_down_exps.weight", width, hidden, experts)
        else:
            out.matrix(prefix + "ffn_gate.weight", hidden, shape["ffn"])
            out.matrix(prefix + "ffn_up.weight", hidden, shape["ffn"])
            out.matrix(prefix + "ffn_down.weight", shape["ffn"], hidden)
    out.write()
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
