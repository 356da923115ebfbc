#!/usr/bin/env python3
"""What keeping a request's timeline costs it: the time to the first token of pairs of requests to one server, one of which is kept.

    tests/bench/server/trace_overhead.py --model MODEL.gguf [--pairs 200]

Needs numpy and a release build. The prompt's chunks are stored; the first of a pair is the kept one every other time.
"""

import argparse
import json
import pathlib
import tempfile
import urllib.request

import numpy as np

from bench_server import server, support

CHUNKS = [{"text": f"Passage {i}. " + "The harbour was built in 1852 by an engineer from a village in the mountains. " * 12} for i in range(6)]


def ask(port, kept, number):
    """(seconds to the first token, seconds to the end), as the server reports them."""
    body = {"messages": [{"role": "user", "content": "Who built the harbour?"}], "documents": CHUNKS, "max_tokens": 16, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "traceparent": f"00-{number:032x}-{1:016x}-{'01' if kept else '00'}"})
    with urllib.request.urlopen(request, timeout=600) as response:
        timings = json.load(response)["kvblend"]["finished"]["timings"]
    return timings["time_to_first_token_seconds"], timings["total_seconds"]


def measure(port, pairs):
    for i in range(4):
        ask(port, False, i + 1)
    rows = []
    for i in range(pairs):
        order = (True, False) if i % 2 else (False, True)
        times = {kept: ask(port, kept, 10 + 2 * i + kept) for kept in order}
        rows.append((*times[False], *times[True]))
    return np.array(rows)


def report(name, without, kept, rng):
    ratio = kept / without
    medians = [np.median(rng.choice(ratio, len(ratio))) for _ in range(2000)]
    low, high = np.percentile(medians, [2.5, 97.5])
    print(f"{name}: {1e3 * np.median(without):.2f} ms without, {1e3 * np.median(kept):.2f} ms with; of pairs "
          f"{100 * (np.median(ratio) - 1):+.2f}% ({100 * (low - 1):+.2f}% to {100 * (high - 1):+.2f}%)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=support.DEFAULT_BIN, help="folder of the programs")
    parser.add_argument("--model", default=support.DEFAULT_MODEL)
    parser.add_argument("--pairs", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(
            arguments, folder, "--keep-conversations", 0, "--learn-correction", "off", "--trace-dir", f"{folder}/traces",
            "--trace-sample", 0, "--log-level", "error") as running:
        rows = measure(running.ports["api"], arguments.pairs)
        sizes = [path.stat().st_size for path in pathlib.Path(folder, "traces").glob("*.json")]
    rng = np.random.default_rng(1)
    report("time to the first token", rows[:, 0], rows[:, 2], rng)
    report("whole answer", rows[:, 1], rows[:, 3], rng)
    print(f"{len(sizes)} timelines of {np.mean(sizes) / 1e3:.0f} kB")


if __name__ == "__main__":
    support.main_with_errors(main)
