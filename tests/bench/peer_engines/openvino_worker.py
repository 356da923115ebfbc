"""Measures OpenVINO GenAI in a process of its own, for open_vino.py, which runs it in its virtual environment.

Standard input: {"model", "threads", "kv", "precision", "cpu_time", "tasks": [{"tokens": [ids], "warm_up", "repeats",
"steps"}]}. Standard output: JSON, per task seconds of a prompt with one token behind it and of `steps` more for each
repeat, and the ids.
"""
import measuring
import numpy
import openvino
import openvino_genai


def seconds_of(pipeline, clock, tokens, count):
    """The seconds that `count` tokens behind a prompt take, and their ids."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = count
    config.ignore_eos = True
    config.do_sample = False
    ids = numpy.array([tokens], dtype=numpy.int64)
    inputs = openvino.Tensor(ids)
    start = clock()
    answer = pipeline.generate(inputs, config)
    return clock() - start, list(answer.tokens[0])


def measure(pipeline, job, task):
    clock = measuring.clock_of(job)
    result = {"prefill_seconds": [], "decode_seconds": [], "token_ids": []}
    # OpenVINO keeps prompts, and one that is repeated would cost nothing: each but the last begins with another token.
    other = 2 * (task["warm_up"] + task["repeats"])
    for run in range(-task["warm_up"], task["repeats"]):
        other -= 1
        prefill, _ = seconds_of(pipeline, clock, [task["tokens"][0] + other, *task["tokens"][1:]], 1)
        other -= 1
        both, ids = seconds_of(pipeline, clock, [task["tokens"][0] + other, *task["tokens"][1:]], 1 + task["steps"])
        if run >= 0:
            result["prefill_seconds"].append(prefill)
            result["decode_seconds"].append(both - prefill)
            result["token_ids"] = ids
    return result


def work(job):
    settings = {"INFERENCE_NUM_THREADS": job["threads"], "KV_CACHE_PRECISION": job["kv"]}
    if job["precision"] != "auto":
        settings["INFERENCE_PRECISION_HINT"] = job["precision"]
    pipeline = openvino_genai.LLMPipeline(job["model"], "CPU", **settings)
    return {"system_info": openvino.get_version(), "tasks": [measure(pipeline, job, task) for task in job["tasks"]]}


measuring.answer(work)
