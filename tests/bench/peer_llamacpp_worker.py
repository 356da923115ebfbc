"""Measures llama.cpp in a process of its own, for peer_llamacpp.py, which runs it in its virtual environment.

Standard input: a JSON object. Either {"quantize": {"from", "to", "threads"}}, which writes a model file with Q8_0 weights,
or {"model", "threads", "fa", "kv", "ubatch", "repack", "tasks": [{"tokens": [ids], "warm_up", "repeats", "steps"}]}, where
each task prefills its tokens `warm_up` + `repeats` times and decodes `steps` greedily behind each.
Standard output: JSON; for tasks one object each with seconds of prefill and of decoding per repeat, and decoded ids.
"""
import ctypes
import json
import os
import sys
import time

import numpy
from llama_cpp import llama_cpp as api

BATCH = 2048  # tokens per llama_decode, as llama.cpp's own bench has it
KV_TYPES = {"f16": 1, "f32": 0, "bf16": 30, "q8_0": 8}  # enum ggml_type
log_lines = []


@api.llama_log_callback
def keep_log(_level, text, _data):
    log_lines.append(text.decode(errors="replace"))
    del log_lines[:-40]


def fail(message):
    sys.stderr.write("".join(log_lines[-15:]) + message + "\n")
    sys.stderr.flush()
    os._exit(1)


def quantize(source, target, threads):
    params = api.llama_model_quantize_default_params()
    params.nthread = threads
    params.ftype = api.LLAMA_FTYPE_MOSTLY_Q8_0
    params.allow_requantize = True
    if api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        fail(f"llama_model_quantize could not write {target}")


def decode(context, ids):
    for begin in range(0, len(ids), BATCH):
        part = ids[begin:begin + BATCH]
        array = (api.llama_token * len(part))(*part)
        status = api.llama_decode(context, api.llama_batch_get_one(array, len(part)))
        if status != 0:
            fail(f"llama_decode returned {status}")
    api.llama_synchronize(context)


def most_likely(context, vocab_size):
    logits = numpy.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocab_size,))
    return int(logits.argmax())


def measure(model, job, task):
    params = api.llama_context_default_params()
    # No more than needed: a larger context makes llama.cpp slower where flash attention is off.
    params.n_ctx = (len(task["tokens"]) + task["steps"] + 255) // 256 * 256
    params.n_batch = BATCH
    params.n_ubatch = job["ubatch"]
    params.n_threads = params.n_threads_batch = job["threads"]
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if job["fa"] else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = KV_TYPES[job["kv"]]
    context = api.llama_init_from_model(model, params)
    if not context:
        fail("llama_init_from_model failed")
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    result = {"prefill_seconds": [], "decode_seconds": [], "token_ids": []}
    for run in range(-task["warm_up"], task["repeats"]):
        api.llama_memory_clear(api.llama_get_memory(context), True)
        start = time.perf_counter()
        decode(context, task["tokens"])
        ids = [most_likely(context, vocab_size)]
        first = time.perf_counter()
        for _ in range(task["steps"]):
            decode(context, ids[-1:])
            ids.append(most_likely(context, vocab_size))
        last = time.perf_counter()
        if run >= 0:
            result["prefill_seconds"].append(first - start)
            result["decode_seconds"].append(last - first)
            result["token_ids"] = ids
    api.llama_free(context)
    return result


def main():
    job = json.load(sys.stdin)
    answer = os.dup(1)  # llama.cpp may write to standard output
    os.dup2(2, 1)
    api.llama_log_set(keep_log, ctypes.c_void_p(0))
    api.llama_backend_init()
    result = {}
    if "quantize" in job:
        quantize(job["quantize"]["from"], job["quantize"]["to"], job["quantize"]["threads"])
    else:
        params = api.llama_model_default_params()
        params.use_extra_bufts = job["repack"]  # weights in the layout that the processor's own kernels want
        model = api.llama_model_load_from_file(job["model"].encode(), params)
        if not model:
            fail(f"cannot load {job['model']}")
        result["system_info"] = api.llama_print_system_info().decode()
        result["tasks"] = [measure(model, job, task) for task in job["tasks"]]
    with os.fdopen(answer, "w") as out:
        json.dump(result, out)
    sys.stdout.flush()
    os._exit(0)


main()
