"""Measures llama.cpp in a process of its own, for llamacpp.py, which runs it in its virtual environment.

Standard input: a JSON object. Either {"quantize": {"from", "to", "type", "threads"}}, which writes a model file with weights in Q8_0 or F32,
or {"model", "threads", "fa", "kv", "ubatch", "repack", "tasks": [{"tokens": [ids], "warm_up", "repeats", "steps"}]}, where
each task prefills its tokens `warm_up` + `repeats` times and decodes `steps` greedily behind each. Beside "tasks" may stand
"texts", whose token ids are wanted, and "greedy": [{"tokens": [ids], "written": [ids], "ask": [[ids], ...]}]: behind the tokens,
and behind each of what another engine wrote there, the most likely token and the log-probabilities of those asked for.
Standard output: JSON; for tasks one object each with seconds of prefill and of decoding per repeat, and decoded ids; "tokens"
for texts; "greedy": a list of {"best": [[id, log-probability]], "asked": [log-probabilities]} each.
"""
import ctypes
import os
import sys

import measuring
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


def quantize(source, target, kind, threads):
    params = api.llama_model_quantize_default_params()
    params.nthread = threads
    params.ftype = {"q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0, "f32": api.LLAMA_FTYPE_ALL_F32}[kind]
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


def new_context(model, job, num_tokens):
    params = api.llama_context_default_params()
    # No more than needed: a larger context makes llama.cpp slower where flash attention is off.
    params.n_ctx = (num_tokens + 255) // 256 * 256
    params.n_batch = BATCH
    params.n_ubatch = job["ubatch"]
    params.n_threads = params.n_threads_batch = job["threads"]
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if job["fa"] else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = KV_TYPES[job["kv"]]
    context = api.llama_init_from_model(model, params)
    if not context:
        fail("llama_init_from_model failed")
    return context


def tokens_of(model, text):
    """As a prompt begins with it: BOS where the model wants it, control tokens in the text as text."""
    data = text.encode()
    ids = (api.llama_token * (len(data) + 8))()
    count = api.llama_tokenize(api.llama_model_get_vocab(model), data, len(data), ids, len(ids), True, False)
    if count < 0:
        fail(f"llama_tokenize returned {count}")
    return list(ids[:count])


def follow(model, job, task):
    """What llama.cpp finds likely behind each token that another engine has written."""
    context = new_context(model, job, len(task["tokens"]) + len(task["written"]))
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    decode(context, task["tokens"])
    places = []
    for written, asked in zip(task["written"], task["ask"]):
        logits = numpy.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocab_size,)).astype(numpy.float64)
        logits -= logits.max()
        logits -= numpy.log(numpy.exp(logits).sum())
        best = int(logits.argmax())
        places.append({"best": [[best, float(logits[best])]], "asked": [float(logits[token]) for token in asked]})
        decode(context, [written])
    api.llama_free(context)
    return places


def measure(model, job, task):
    context = new_context(model, job, len(task["tokens"]) + task["steps"])
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def next_token(ids, _position):
        decode(context, ids)
        return most_likely(context, vocab_size)

    result = measuring.measure(job, task, lambda: api.llama_memory_clear(api.llama_get_memory(context), True), next_token)
    api.llama_free(context)
    return result


def work(job):
    api.llama_log_set(keep_log, ctypes.c_void_p(0))
    api.llama_backend_init()
    if "quantize" in job:
        wanted = job["quantize"]
        quantize(wanted["from"], wanted["to"], wanted["type"], wanted["threads"])
        return {}
    params = api.llama_model_default_params()
    params.use_extra_bufts = job["repack"]  # weights in the layout that the processor's own kernels want
    model = api.llama_model_load_from_file(job["model"].encode(), params)
    if not model:
        fail(f"cannot load {job['model']}")
    return {"system_info": api.llama_print_system_info().decode(),
            "tokens": [tokens_of(model, text) for text in job.get("texts", [])],
            "greedy": [follow(model, job, task) for task in job.get("greedy", [])],
            "tasks": [measure(model, job, task) for task in job["tasks"]]}


measuring.answer(work)
