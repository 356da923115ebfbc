#!/usr/bin/env python3
"""What 8-bit codes of keys and of values in pages cost by themselves, by the form of the codes: a table of docs/performance.md,
"8 bits". Needs jax, gguf and numpy; models of the architecture llama with tied embeddings.

    throughput_bench MODEL.gguf tests/fixtures/musique_sample.json --prefill-tokens 1200 --write-tokens TOKENS.json
    tests/bench/models/kv_codes.py MODEL.gguf TOKENS.json

The whole prompt runs through the model as correction_gradients.py has it, in f32, with K (behind RoPE) and V rounded to the codes
of a form and back; everything else stays exact. KL is that of each next token's distribution against the exact one, a mean over the
prompt's tokens. So this is no measurement of kvblend's own kernels, which model_logits_test makes, but tells which error is whose.
"""
import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
from correction_gradients import Model

LARGEST = 127  # of a code with a step alone (kernels/host/page_codec.h); with a zero point there are 256 codes


def bf16(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def step_of(width, codes):
    """bf16, rounded up; 1 where all values are the same."""
    step = bf16(width / codes * (1 + 2**-8))
    return jnp.where(step == 0, 1, step)


def stepped(x, group):
    """One step for `group` neighbouring channels."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    step = step_of(jnp.max(jnp.abs(groups), -1, keepdims=True), LARGEST)
    return (jnp.round(groups / step) * step).reshape(x.shape)


def with_zero_point(x, group):
    """A step and a whole number of steps as zero point."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    least = jnp.min(groups, -1, keepdims=True)
    step = step_of(jnp.max(groups, -1, keepdims=True) - least, 2 * LARGEST + 1)
    zero = jnp.round(least / step)
    return (jnp.round(groups / step - zero) * step + zero * step).reshape(x.shape)


FORMS = {
    "bf16": bf16,
    "a step for 32 channels": lambda x: stepped(x, 32),
    "a step for 16": lambda x: stepped(x, 16),
    "a step and a zero point for 32": lambda x: with_zero_point(x, 32),
    "a step and a zero point for 16": lambda x: with_zero_point(x, 16),
}


class Prompt:
    def __init__(self, model, tokens):
        self.model, self.tokens = model, tokens

    def log_probabilities(self, round_keys, round_values):
        """[tokens, vocabulary]; the functions are given [tokens, kv heads, head_dim], K's channels in NeoX's order."""
        model, count, at = self.model, len(self.tokens), jnp.arange(len(self.tokens))
        halves = np.concatenate([np.arange(0, model.head_dim, 2), np.arange(1, model.head_dim, 2)])
        pairs = np.argsort(halves)
        hides = jnp.where(at[None] <= at[:, None], 0.0, -1e30)

        def layer(x, weight):
            normed = model.norm(x, weight["attn_norm"])
            q, k, v = (
                (normed @ weight[name].T).reshape(count, -1, model.head_dim) for name in ("attn_q", "attn_k", "attn_v"))
            q = model.rotate(q, at).reshape(count, model.kv_heads, -1, model.head_dim) * model.head_dim**-0.5
            k, v = round_keys(model.rotate(k, at)[..., halves])[..., pairs], round_values(v)
            shares = jax.nn.softmax(jnp.einsum("rhgd,thd->hgrt", q, k) + hides, -1)
            x = x + jnp.einsum("hgrt,thd->rhgd", shares, v).reshape(count, -1) @ weight["attn_output"].T
            return model.behind_mlp(x, weight), None

        weights = model.weights
        x, _ = jax.lax.scan(layer, weights["embedding"][self.tokens], weights["layers"])
        return jax.nn.log_softmax(model.norm(x, weights["norm"]) @ weights["embedding"].T)

    def divergence(self, exact, round_keys, round_values):
        """The KL mean."""
        rounded = jax.jit(lambda: self.log_probabilities(round_keys, round_values))()
        return float(jnp.mean(jnp.sum(jnp.exp(exact) * (exact - rounded), -1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens", help="what throughput_bench --write-tokens wrote; its first prompt is taken")
    given = parser.parse_args()
    with open(given.tokens, encoding="utf-8") as file:
        tokens = np.array(next(iter(json.load(file).values())))
    prompt = Prompt(Model(given.model), tokens)

    def same(x):
        return x

    exact = jax.jit(lambda: prompt.log_probabilities(same, same))()
    print(f"KL mean over {len(tokens)} tokens\n\n| K or V in | K | V | both |\n|---|---|---|---|")
    for name, form in FORMS.items():
        row = [prompt.divergence(exact, *parts) for parts in ((form, same), (same, form), (form, form))]
        print(f"| {name} | " + " | ".join(f"{value:.1e}" for value in row) + " |", flush=True)


if __name__ == "__main__":
    main()
