"""Measures OpenVINO GenAI in a process of its own, for open_vino.py, which runs it in its virtual environment.

Standard input: {"model", "threads", "kv", "precision", "cpu_time", "tasks": [{"tokens": [ids], "warm_up", "repeats",
"steps"}]}. Standard output: JSON, per task seconds to the first token and of `steps` more for each repeat, and the ids.
"""
import measuring
import numpy
import openvino
import openvino_genai


class Clocked(openvino_genai.StreamerBase):
    """Notes when each token comes. One generation has both figures: the difference of two prompts of thousands of tokens,
    with and without an answer, would be as uncertain as a short answer is long."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.times = []

    def write(self, token):
        count = 1 if isinstance(token, int) else len(token)
        self.times += [self.clock()] * count
        return openvino_genai.StreamingStatus.RUNNING

    def end(self):
        pass


def generate(pipeline, clock, tokens, count):
    """When `count` tokens behind a prompt came, counted from the start of the prompt, and their ids."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = count
    config.ignore_eos = True
    config.do_sample = False
    inputs = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
    streamer = Clocked(clock)
    start = clock()
    answer = pipeline.generate(inputs, config, streamer)
    ids = list(answer.tokens[0])
    if not len(ids) == len(streamer.times) == count:
        raise RuntimeError(f"{count} tokens were asked for, {len(streamer.times)} were streamed, {len(ids)} returned")
    return [time - start for time in streamer.times], ids


def measure(pipeline, job, task):
    clock = measuring.clock_of(job)
    result = {"prefill_seconds": [], "decode_seconds": [], "token_ids": []}
    # OpenVINO keeps prompts, and one that is repeated would cost nothing: each but the last begins with another token.
    other = task["warm_up"] + task["repeats"]
    for run in range(-task["warm_up"], task["repeats"]):
        other -= 1
        times, ids = generate(pipeline, clock, [task["tokens"][0] + other, *task["tokens"][1:]], 1 + task["steps"])
        if run >= 0:
            result["prefill_seconds"].append(times[0])
            result["decode_seconds"].append(times[-1] - times[0])
            result["token_ids"] = ids
    return result


def work(job):
    settings = {"INFERENCE_NUM_THREADS": job["threads"], "KV_CACHE_PRECISION": job["kv"]}
    if job["precision"] != "auto":
        settings["INFERENCE_PRECISION_HINT"] = job["precision"]
    pipeline = openvino_genai.LLMPipeline(job["model"], "CPU", **settings)
    return {"system_info": openvino.get_version(), "tasks": [measure(pipeline, job, task) for task in job["tasks"]]}


measuring.answer(work)
