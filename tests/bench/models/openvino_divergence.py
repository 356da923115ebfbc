#!/usr/bin/env python3
"""How far OpenVINO's logits of a prompt are from those that it computes itself in float32: KL divergence at every token.

    build/peer/openvino/bin/python tests/bench/models/openvino_divergence.py MODEL.gguf TOKENS.json --folder DIR

As it is by itself, and with activations that are not rounded to 8 bits (DYNAMIC_QUANTIZATION_GROUP_SIZE 0). TOKENS.json is what
throughput_bench --write-tokens writes; the longest prompt in it is taken. OpenVINO reads GGUF only to generate from it, so the
model is written to DIR first, as OpenVINO has it. The virtual environment is the one that tests/bench/peers.py makes.
"""

import argparse
import json
import pathlib
import shutil

import numpy
import openvino
import openvino_genai

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "KV_CACHE_PRECISION": "f32"}
SETTINGS = {"by itself": {}, "without dynamic quantization": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}}


def log_probabilities(model, settings, tokens):
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    given = {
        "input_ids": numpy.array([tokens], dtype=numpy.int64),
        "attention_mask": numpy.ones((1, len(tokens)), dtype=numpy.int64),
        "position_ids": numpy.arange(len(tokens), dtype=numpy.int64)[None],
        "beam_idx": numpy.zeros(1, dtype=numpy.int32),
    }
    outputs = request.infer({name: given[name] for name in (each.get_any_name() for each in model.inputs)})
    logits = next(iter(outputs.values()))[0].astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tokens", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    options = parser.parse_args()
    tokens = max(json.loads(options.tokens.read_text(encoding="utf-8")).values(), key=len)
    options.folder.mkdir(parents=True, exist_ok=True)
    copy = options.folder / options.model.name
    shutil.copyfile(options.model, copy)
    openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    model = openvino.Core().read_model(options.folder / "openvino_model.xml")
    exact = log_probabilities(model, EXACT, tokens)
    for name, settings in SETTINGS.items():
        other = log_probabilities(model, settings, tokens)
        divergence = (numpy.exp(exact) * (exact - other)).sum(-1)
        same = (exact.argmax(-1) == other.argmax(-1)).mean()
        print(f"{name}: KL mean {divergence.mean():.2e} of {len(tokens)} tokens, largest {divergence.max():.2e}, same most likely token {same:.1%}")


if __name__ == "__main__":
    main()
