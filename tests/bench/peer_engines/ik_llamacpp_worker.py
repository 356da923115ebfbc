"""Measures ik_llama.cpp in a process of its own, for ik_llamacpp.py, which runs it in its virtual environment.

Standard input: {"model", "threads", "fa", "kv", "repack", "cpu_time", "tasks": [{"tokens": [ids], "warm_up", "repeats",
"steps"}]}; each task prefills its tokens `warm_up` + `repeats` times and decodes `steps` greedily behind each. Standard
output: JSON, per task seconds of prefill and of decoding for each repeat, and the decoded ids.
"""
import os
import sys

import measuring
import numpy
from ik_llama_cpp import _ctypes_api as api

BATCH = 2048  # tokens per llama_decode, as llama.cpp's own bench has it
UBATCH = 512
KV_TYPES = {"f16": 1, "f32": 0, "q8_0": 8}  # enum ggml_type


def fail(message):
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(1)


def decode(context, vocab_size, ids, position):
    """The most likely token behind them."""
    for begin in range(0, len(ids), BATCH):
        part = ids[begin:begin + BATCH]
        batch = api.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i] = token
            batch.pos[i] = position + begin + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1 if i + 1 == len(part) else 0
        status = api.llama_decode(context, batch)
        api.llama_batch_free(batch)
        if status != 0:
            fail(f"llama_decode returned {status}")
    return int(numpy.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocab_size,)).argmax())


def measure(model, vocab_size, job, task):
    params = api.llama_context_default_params()
    params.n_ctx = (len(task["tokens"]) + task["steps"] + 255) // 256 * 256
    params.n_batch, params.n_ubatch = BATCH, UBATCH
    params.n_threads = params.n_threads_batch = job["threads"]
    params.flash_attn = bool(job["fa"])
    params.type_k = params.type_v = KV_TYPES[job["kv"]]
    context = api.llama_init_from_model(model, params)
    if not context:
        fail("llama_init_from_model failed")
    result = measuring.measure(job, task, lambda: api.llama_kv_cache_clear(context),
                               lambda ids, position: decode(context, vocab_size, ids, position))
    api.llama_free(context)
    return result


def work(job):
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.repack_tensors = job["repack"]
    params.use_mmap = not job["repack"]  # repacked weights are written in place
    model = api.llama_model_load_from_file(job["model"].encode(), params)
    if not model:
        fail(f"cannot load {job['model']}")
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    return {"system_info": "wheel for AVX2", "tasks": [measure(model, vocab_size, job, task) for task in job["tasks"]]}


measuring.answer(work)
