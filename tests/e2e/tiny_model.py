"""A model that costs next to nothing to run, for tests of what stands around it: random weights, a token per byte."""

import json
import random
import struct

LAYERS, HIDDEN, HEADS, FFN = 2, 32, 2, 64
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL)


def _byte_characters():
    """GPT-2's: printable characters for all bytes, those that are printable standing for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def _tokenizer():
    vocabulary = {character: byte for byte, character in sorted(_byte_characters().items())}
    added = [{"id": 256 + i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level,
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []}}


def _tensors():
    """Name -> shape."""
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes.update({prefix + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"})
        shapes.update({prefix + f"mlp.{name}_proj.weight": (FFN, HIDDEN) for name in ("gate", "up")})
        shapes[prefix + "mlp.down_proj.weight"] = (HIDDEN, FFN)
        shapes.update({prefix + f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")})
    return shapes


def write(folder, context=512):
    """A Hugging Face folder that kvblend-server loads."""
    source = random.Random(1)
    header, data = {}, bytearray()
    for name, shape in _tensors().items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = [1.0] * count if "norm" in name else [source.gauss(0, 0.2) for _ in range(count)]
        begin = len(data)
        data += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCABULARY,
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 258, "torch_dtype": "float32"}))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "add_bos_token": False}))
    return folder
