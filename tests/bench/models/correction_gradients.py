#!/usr/bin/env python3
"""Whether a correction of stored KV gains from gradients of the answers themselves, through the whole model: a table of
docs/quality.md, "What a token does not know". Needs jax, gguf and numpy; models of the architecture llama with tied embeddings.

    prompt_kv MODEL.gguf fit --data musique_dev.json hotpotqa_dev.json musique_dev.json --passages 5,5,10 --first 24
    prompt_kv MODEL.gguf judged --data musique_dev.json --n 24
    tests/bench/models/correction_gradients.py MODEL.gguf CORRECTION --fit fit --judge judged

The model is written once more here, in f32, and knows nothing of kvblend but the KV that prompt_kv has written and the correction's
file: what it says of KL is an independent check. It runs the question's and the answer's tokens over a prompt's reused KV, corrected
by y = scale x + offset[place] + (x down) up (kernels/kv_correction.h), and compares each next token's distribution with that over
full prefill's KV. The correction, as fitted by `kvblend calibrate --attention-passes 0`, then makes steps of Adam down the gradient of
that KL, as engine/kv/tuning/layer_tuner.h makes them down that of what attention reads: the same parameters (scale, offsets, up), in
the same units, with the same rate. KL is the mean over the 16 tokens of full prefill's answer, then over prompts; a question's own
tokens count a quarter as much as the answer's while steps are made.
"""
import argparse
import json
import pathlib
import struct

import gguf
import jax
import jax.numpy as jnp
import numpy as np

PLACES = (1, 4, 16, 64, 128, 256, 512)  # where a chunk's ranges begin, behind the first (kernels/kv_correction_place.h)
QUESTION_WEIGHT = 0.25
RATE, FIRST_STEPS, LEAST_RATE = 0.003, 10, 0.02
KEY_UNIT, ROW_UNIT = 1024, 16  # prompts are padded to these, so that few shapes are compiled
WEIGHTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        if fields["general.architecture"] != "llama" or "output.weight" in tensors:
            raise SystemExit(f"{path}: allowed: models of the architecture llama with tied embeddings")
        self.layers = fields["llama.block_count"]
        self.heads = fields["llama.attention.head_count"]
        self.kv_heads = fields["llama.attention.head_count_kv"]
        self.hidden = fields["llama.embedding_length"]
        self.head_dim = fields["llama.rope.dimension_count"]
        self.channels = 2 * self.kv_heads * self.head_dim
        self.epsilon = fields["llama.attention.layer_norm_rms_epsilon"]
        self.base = fields["llama.rope.freq_base"]

        def read(name):
            tensor = tensors[name]
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            return np.asarray(values, np.float32).reshape(tensor.shape.tolist()[::-1])

        self.weights = {
            "layers": {name: jnp.asarray(np.stack([read(f"blk.{layer}.{name}.weight") for layer in range(self.layers)]))
                       for name in WEIGHTS},
            "embedding": jnp.asarray(read("token_embd.weight")), "norm": jnp.asarray(read("output_norm.weight"))}

    def norm(self, x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.epsilon) * weight

    def rotate(self, x, positions):
        """x: [tokens, heads, head_dim]; pairs of neighbours are turned."""
        angles = positions[:, None] * self.base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def behind_mlp(self, x, weight):
        """What a layer makes of x, in which its attention is counted already."""
        normed = self.norm(x, weight["ffn_norm"])
        gated = jax.nn.silu(normed @ weight["ffn_gate"].T) * (normed @ weight["ffn_up"].T)
        return x + gated @ weight["ffn_down"].T

    def log_probabilities(self, weights, correction, prompt):
        """[rows, vocabulary], of the token behind each row."""
        keys, rows = prompt["kv"].shape[1], prompt["rows"].shape[0]
        group = self.heads // self.kv_heads
        key_at, row_at = jnp.arange(keys), prompt["length"] + jnp.arange(rows)
        hides_keys = jnp.where(key_at < prompt["length"], 0.0, -1e30)
        hides_rows = jnp.where(row_at[None] <= row_at[:, None], 0.0, -1e30)

        def heads(x, count):
            return x.reshape(-1, count, self.head_dim)

        def layer(x, given):
            weight, kv, fix = given
            kv = kv.astype(jnp.float32)
            if fix is not None:
                fixed = fix["scale"] * kv + fix["offset"][prompt["place"]] + (kv @ fix["down"]) @ fix["up"]
                kv = jnp.where(prompt["corrected"][:, None], fixed, kv)
            half = self.channels // 2
            old_k, old_v = self.rotate(heads(kv[:, :half], self.kv_heads), key_at), heads(kv[:, half:], self.kv_heads)
            normed = self.norm(x, weight["attn_norm"])
            q = self.rotate(heads(normed @ weight["attn_q"].T, self.heads), row_at) * self.head_dim**-0.5
            k = self.rotate(heads(normed @ weight["attn_k"].T, self.kv_heads), row_at)
            v = heads(normed @ weight["attn_v"].T, self.kv_heads)
            q = q.reshape(rows, self.kv_heads, group, self.head_dim)
            scores = jnp.concatenate([jnp.einsum("rhgd,thd->hgrt", q, old_k) + hides_keys,
                                      jnp.einsum("rhgd,thd->hgrt", q, k) + hides_rows], -1)
            shares = jax.nn.softmax(scores, -1)
            read = (jnp.einsum("hgrt,thd->rhgd", shares[..., :keys], old_v)
                    + jnp.einsum("hgrt,thd->rhgd", shares[..., keys:], v))
            x = x + read.reshape(rows, -1) @ weight["attn_output"].T
            return self.behind_mlp(x, weight), None

        x, _ = jax.lax.scan(layer, weights["embedding"][prompt["rows"]], (weights["layers"], prompt["kv"], correction))
        return jax.nn.log_softmax(self.norm(x, weights["norm"]) @ weights["embedding"].T)


class Prompt:
    """One of prompt_kv's. Rows are the question's tokens and those of the answer but the last, which nothing is behind."""

    def __init__(self, path, model):
        about = json.loads(path.read_text())
        self.path, self.model = path.with_suffix(".kv"), model
        self.length, self.answer = about["question_begin"], np.array(about["answer"])
        rows = about["tokens"][self.length:] + about["answer"][:-1]
        self.question, self.count = len(about["tokens"]) - self.length, len(rows)
        self.rows = np.zeros(-(-len(rows) // ROW_UNIT) * ROW_UNIT, np.int32)
        self.rows[:len(rows)] = rows
        self.keys = -(-self.length // KEY_UNIT) * KEY_UNIT
        self.corrected, self.place = np.zeros(self.keys, bool), np.zeros(self.keys, np.int32)
        for begin, size in about["chunks"]:
            self.corrected[begin:begin + size] = True
            self.place[begin:begin + size] = np.digitize(np.arange(size), PLACES)
        self.answers = np.zeros(len(self.rows), np.float32)
        self.answers[self.question - 1:self.count] = 1 / len(self.answer)
        self.weights = self.answers.copy()
        self.weights[:self.question - 1] = QUESTION_WEIGHT / max(1, self.question - 1)
        self.wanted_ = None

    def stored_and_fresh(self):
        """[layers, 2, tokens, channels]"""
        return np.memmap(self.path, "<f2", "r").reshape(self.model.layers, 2, self.length, self.model.channels)

    def input(self, fresh=False):
        kv = np.zeros((self.model.layers, self.keys, self.model.channels), np.float16)
        kv[:, :self.length] = self.stored_and_fresh()[:, int(fresh)]
        return {"kv": kv, "length": self.length, "rows": self.rows, "corrected": self.corrected, "place": self.place}

    def wanted(self, run):
        if self.wanted_ is None:
            full = np.asarray(run(self.model.weights, None, self.input(fresh=True)))
            found = full[self.question - 1:self.count].argmax(-1)
            if (found != self.answer).mean() > 0.25:
                raise SystemExit(f"{self.path}: this model answers {found}, kvblend {self.answer}; they are not the same")
            self.wanted_ = full.astype(np.float16)
        return self.wanted_.astype(np.float32)


def prompts_of(folder, model):
    paths = sorted(pathlib.Path(folder).glob("*.json"), key=lambda path: int(path.stem))
    if not paths:
        raise SystemExit(f"{folder}: allowed: a folder that prompt_kv has written")
    return [Prompt(path, model) for path in paths]


def read_correction(path, model):
    """As engine/kv/correction_file.h has it; a layer without one changes nothing."""
    data = pathlib.Path(path).read_bytes()
    layers, kv_heads, head_dim, rank = struct.unpack_from("<4I", data, 48)
    if (layers, kv_heads, head_dim) != (model.layers, model.kv_heads, model.head_dim):
        raise SystemExit(f"{path} is of another model")
    at, channels = 368, model.channels
    shapes = {"scale": (channels,), "offset": (len(PLACES) + 1, channels), "down": (channels, rank), "up": (rank, channels)}
    parts = {name: [] for name in shapes}
    for _ in range(layers):
        (present,) = struct.unpack_from("<I", data, at)
        at += 4
        for name, shape in shapes.items():
            if present:
                parts[name].append(np.frombuffer(data, "<f4", int(np.prod(shape)), at).reshape(shape))
                at += 4 * int(np.prod(shape))
            else:
                parts[name].append(np.full(shape, float(name == "scale"), np.float32))
    return {name: jnp.asarray(np.stack(values)) for name, values in parts.items()}


def units_of(prompts, model, down):
    """What a step of each parameter is measured in: [layers, ...]."""
    count, sums = 0, {name: 0 for name in ("d2", "x", "x2", "z", "z2")}
    for prompt in prompts[::5]:
        pairs = prompt.stored_and_fresh()
        tokens = np.flatnonzero(prompt.corrected)[::4]
        stored, fresh = (np.asarray(pairs[:, side, tokens], np.float32) for side in (0, 1))
        reduced = stored @ down
        count += len(tokens)
        for name, values in {"d2": (fresh - stored) ** 2, "x": stored, "x2": stored**2, "z": reduced, "z2": reduced**2}.items():
            sums[name] = sums[name] + values.sum(1)
    mean_x, mean_z = sums["x"] / count, sums["z"] / count
    spread_x = np.sqrt(np.maximum(sums["x2"] / count - mean_x**2, 1e-12))
    spread_z = np.sqrt(np.maximum(sums["z2"] / count - mean_z**2, 0))
    reach_z = np.divide(1, spread_z, out=np.zeros_like(spread_z), where=spread_z > 1e-6)
    return {"deviation": np.sqrt(sums["d2"] / count), "mean_x": mean_x, "reach_x": 1 / spread_x, "mean_z": mean_z, "reach_z": reach_z}


def moved(start, units, steps):
    """`start` with parameters that have gone so many units; the first layer, whose KV knows of no other tokens, stays."""
    scale = steps["scale"] * units["deviation"] * units["reach_x"]
    up = steps["up"] * units["deviation"][:, None] * units["reach_z"][:, :, None]
    offset = (steps["offset"] * units["deviation"][:, None] - (scale * units["mean_x"])[:, None]
              - jnp.einsum("lr,lrc->lc", units["mean_z"], up)[:, None])
    change = {"scale": scale, "offset": offset, "up": up, "down": jnp.zeros_like(start["down"])}
    return {name: start[name].at[1:].add(change[name][1:]) for name in start}


def tune(model, start, prompts, passes, run):
    units = {name: jnp.asarray(value) for name, value in units_of(prompts, model, np.asarray(start["down"])).items()}

    def loss(steps, weights, prompt, wanted, counts):
        found = model.log_probabilities(weights, moved(start, units, steps), prompt)
        return jnp.sum(jnp.sum(jnp.exp(wanted) * (wanted - found), -1) * counts)

    gradient_of = jax.jit(jax.value_and_grad(loss))
    steps = {name: jnp.zeros_like(start[name]) for name in ("scale", "offset", "up")}
    momentum, power, mean = steps, steps, steps
    order, random, count, recent = [], np.random.default_rng(1), passes * len(prompts), []
    for i in range(count):
        order = order or list(random.permutation(len(prompts)))
        prompt = prompts[order.pop()]
        value, by = gradient_of(steps, model.weights, prompt.input(), prompt.wanted(run), prompt.weights)
        rate = RATE * min(1, (i + 1) / FIRST_STEPS) * ((1 + np.cos(np.pi * i / count)) / 2 + LEAST_RATE)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, by)
        power = jax.tree.map(lambda p, g: 0.98 * p + 0.02 * g * g, power, by)
        seen_m, seen_p = 1 - 0.9 ** (i + 1), 1 - 0.98 ** (i + 1)
        steps = jax.tree.map(lambda s, m, p: s - rate * m / seen_m / (jnp.sqrt(p / seen_p) + 1e-12), steps, momentum, power)
        kept = min(0.98, (i + 1) / (i + 10))
        mean = jax.tree.map(lambda a, b: kept * a + (1 - kept) * b, mean, steps)
        recent.append(float(value))
        if (i + 1) % len(prompts) == 0:
            print(f"pass {(i + 1) // len(prompts)}: KL of the fitted prompts while it went on {np.mean(recent):.4f}", flush=True)
            recent = []
    return moved(start, units, mean)


def divergences(model, correction, prompts, run):
    kl = []
    for prompt in prompts:
        wanted = prompt.wanted(run)
        found = np.asarray(run(model.weights, correction, prompt.input()))
        kl.append(float(((np.exp(wanted) * (wanted - found)).sum(-1) * prompt.answers).sum()))
    return np.array(kl)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("correction", help="where to begin")
    parser.add_argument("--fit", nargs="+", required=True, metavar="FOLDER", help="prompts whose KL goes down")
    parser.add_argument("--judge", nargs="+", required=True, metavar="FOLDER", help="other prompts, a row each")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--cache", help="folder for compiled code, which takes minutes to make")
    args = parser.parse_args()
    if args.cache:
        jax.config.update("jax_compilation_cache_dir", args.cache)
    model = Model(args.model)
    start = read_correction(args.correction, model)
    run = jax.jit(model.log_probabilities)
    fit = [prompt for folder in args.fit for prompt in prompts_of(folder, model)]
    judged = {folder: prompts_of(folder, model) for folder in args.judge}
    tuned = tune(model, start, fit, args.passes, run)
    print("| judged | prompts | as stored | corrected | of as stored | by gradients of the answers | of as stored |")
    print("|---|---|---|---|---|---|---|")
    for folder, prompts in judged.items():
        kl = [divergences(model, correction, prompts, run).mean() for correction in (None, start, tuned)]
        print(f"| {pathlib.Path(folder).name} | {len(prompts)} | {kl[0]:.4f} | {kl[1]:.4f} | {kl[1] / kl[0]:.2f} "
              f"| {kl[2]:.4f} | {kl[2] / kl[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
