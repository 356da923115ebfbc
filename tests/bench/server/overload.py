#!/usr/bin/env python3
"""A server that gets five times what it can do: does it live, keep its memory, refuse at once and answer right?

    tests/bench/server/overload.py [--seconds 600] [--times 5] [--json FILE]

What it can do is measured first, by a closed loop of as many clients as answers are decoded together. Then `kvblend bench serve`
sends questions at --times that rate, and holds every answer to the one that was given without load. Exit code 1 when something
of this does not hold: the server lives; its memory grows by at most --growth after the first tenth of the time; 99% of the
refusals come within --refused-within seconds; no answer differs.
"""
import json
import pathlib
import tempfile
import threading

from bench_server import bench_arguments, server, support


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise support.BenchError(f"process {pid} has ended")


class MemoryWatch:
    """Samples a process's memory until stopped."""

    def __init__(self, pid):
        self.pid, self.samples, self.stopped = pid, [], threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.stopped.wait(1):
            try:
                self.samples.append(resident_bytes(self.pid))
            except (OSError, support.BenchError):
                return  # it has ended, which is noticed elsewhere

    def stop(self):
        self.stopped.set()
        self.thread.join()
        return self.samples


def serve(running, options, *flags):
    lines = support.run(
        [running.kvblend, "bench", "serve", "--server", running.address, "--data", options.data, "--passages", options.passages,
         "--rows", options.mode, "--output-tokens", options.output_tokens, "--zipf", 1, "--distinct", options.distinct,
         "--keep-chunks", "--json", "-", *flags], "bench serve")
    return [json.loads(line) for line in lines.splitlines()]


def overload(options, folder):
    with server(options, folder, "--correction", "none", "--max-queued-requests", options.queue) as running:
        capacity = serve(running, options, "--clients", options.clients, "--requests", 4 * options.clients)[0]["answers_per_second"]
        rate = options.times * capacity
        print(f"{capacity:.2f} answers/s; now {rate:.2f}/s for {options.seconds} s", flush=True)
        watch = MemoryWatch(running.process.pid)
        row = serve(running, options, "--rate", f"{rate:.4f}", "--duration", options.seconds, "--check-answers")[-1]
        samples = watch.stop()
        lives = running.process.poll() is None
    warm = samples[len(samples) // 10:]
    growth = max(warm) / warm[0] - 1
    return {"capacity": capacity, "rate": rate, "seconds": options.seconds, "lives": lives, "memory_bytes": [warm[0], max(warm)],
            "growth": growth, "requests": row["requests"], "answered": row["answered"], "errors": row["errors"],
            "mismatches": row["mismatches"], "rejection_s": row["rejection_s"], "ttft_s": row["ttft_s"],
            "goodput_of_capacity": row["answers_per_second"] / capacity}


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--mode", default="query:0.15")
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--distinct", type=int, default=16, help="different questions")
    parser.add_argument("--output-tokens", default="32")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--times", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--growth", type=float, default=0.02)
    parser.add_argument("--refused-within", type=float, default=0.1)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    support.need_file(options.model, "--model")
    support.need_file(options.data, "--data")
    with tempfile.TemporaryDirectory() as folder:
        figures = overload(options, folder)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(json.dumps(figures, indent=1))
    refused = figures["rejection_s"]["p99"]
    faults = [what for what, holds in (
        ("the server has ended", figures["lives"]),
        (f"memory grew by {figures['growth']:.1%}", figures["growth"] <= options.growth),
        ("nothing was refused", refused is not None),
        (f"refusals took {refused} s (p99)", refused is None or refused <= options.refused_within),
        (f"{figures['mismatches']} answers differ", figures["mismatches"] == 0)) if not holds]
    if faults:
        raise support.BenchError("; ".join(faults))


if __name__ == "__main__":
    support.main_with_errors(main)
