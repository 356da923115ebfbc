"""What the workers share that measure an engine in a process of its own: the loop over prompts, and how the answer goes out."""
import json
import os
import sys
import time


def clock_of(job):
    """The clock of a job: of the process's processor time, or of the wall."""
    return time.process_time if job.get("cpu_time") else time.perf_counter


def measure(job, task, clear, next_token):
    """Seconds of prefill and of decoding for each repeat of a task, and the ids that it wrote last.

    `clear` empties the engine's KV. `next_token(ids, position)` computes ids, the first of which stands at that position, and
    returns the most likely token behind them once it is known.
    """
    clock = clock_of(job)
    result = {"prefill_seconds": [], "decode_seconds": [], "token_ids": []}
    for run in range(-task["warm_up"], task["repeats"]):
        clear()
        start = clock()
        ids = [next_token(task["tokens"], 0)]
        first = clock()
        for step in range(task["steps"]):
            ids.append(next_token(ids[-1:], len(task["tokens"]) + step))
        last = clock()
        if run >= 0:
            result["prefill_seconds"].append(first - start)
            result["decode_seconds"].append(last - first)
            result["token_ids"] = ids
    return result


def answer(work):
    """Ends the process after it has written what `work` makes of the job on standard input to standard output, as JSON."""
    job = json.load(sys.stdin)
    out = os.dup(1)  # the engine may write to standard output
    os.dup2(2, 1)
    result = work(job)
    with os.fdopen(out, "w") as file:
        json.dump(result, file)
    sys.stdout.flush()
    os._exit(0)
