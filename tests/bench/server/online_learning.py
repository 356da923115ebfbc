#!/usr/bin/env python3
"""How soon a server learns a correction of its stored KV from nothing but what it serves, beside one fitted offline.

    tests/bench/server/online_learning.py --data musique_dev.json --chunks 200

A server without any correction answers questions whose passages it has never seen. After some of them `kvblend bench`
measures, on questions that come later in the data and in a namespace of its own, how far reuse with nothing recomputed is
from full prefill (KL in nats, mean over 16 tokens), with what is in force by then and without. At the end the same is
measured with what `kvblend calibrate` fits on the questions served. `left` is the share of the squared deviation of stored
KV that is left on the chunks that the server kept back, mean over the layers behind the first.

--overhead N also answers N questions each by a server that learns and by one that does not, in turns, all chunks missing,
and compares the seconds of prefill.
"""
import json
import pathlib
import statistics
import tempfile

from bench_server import LEAD_IN, SYSTEM_TEXT, bench_arguments, passages_of, server, support

def ask(running, question, passages, folder):
    """The report of a prompt whose answer is one token."""
    request = {"prompt": {"system_text": SYSTEM_TEXT, "lead_in": LEAD_IN, "chunks": passages_of(question, passages),
                          "question": f"Question: {question['question']}\nAnswer the question with a few words only."},
               "sampling": {"max_tokens": 1}}
    path = pathlib.Path(folder) / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    events = [json.loads(line) for line in running.call("generate", "--json", "--quiet", "--request", path).splitlines()]
    return events[0]["prompt"]


def kl(running, data, options, corrected):
    command = ["bench", "--data", data, "--passages", options.passages, "--modes", "reuse", "--corrected", corrected,
               "--measure", "kl", "--json", "-"]
    rows = [json.loads(line) for line in running.call(*command).splitlines()]
    return next(row["kl_mean"] for row in rows if row["mode"] == "reuse")


def left(correction):
    before, after = correction.get("deviation_before", []), correction.get("deviation_after", [])
    shares = [b / a for a, b in zip(before[1:], after[1:]) if a > 0]
    return statistics.mean(shares) if shares else 1.0


def slices(options, folder):
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))
    served = options.chunks // options.passages
    if len(questions) < served + options.judged:
        raise support.BenchError(f"{options.data} has {len(questions)} questions; needed are {served + options.judged}")
    judged = pathlib.Path(folder) / "judged.json"
    judged.write_text(json.dumps(questions[served:served + options.judged]), encoding="utf-8")
    return questions[:served], judged


def learn(options, folder):
    questions, judged = slices(options, folder)
    flags = ["--max-context-tokens", options.context, "--chunk-disk-path", pathlib.Path(folder) / "chunks"]
    rows, plain = [], None
    marks = sorted({len(questions) * part // options.marks for part in range(1, options.marks + 1)})
    with server(options, folder, *flags) as running:
        plain = kl(running, judged, options, "off")
        print(f"without a correction: KL {plain:.4f}", flush=True)
        for count, question in enumerate(questions, 1):
            ask(running, question, options.passages, folder)
            running.settled()  # chunks are stored, and learned from, in the pauses of serving
            if count not in marks:
                continue
            correction = running.settled()
            now = kl(running, judged, options, "on")
            rows.append([count * options.passages, correction.get("fitted_chunks", 0), correction.get("kept_back_chunks", 0),
                         correction.get("fits_applied", 0), f"{left(correction):.3f}", f"{now:.4f}", f"{now / plain:.2f}x"])
            print(*rows[-1], flush=True)
        online = now
    fitted = pathlib.Path(folder) / "served.json"
    fitted.write_text(json.dumps(questions), encoding="utf-8")
    file = pathlib.Path(folder) / "offline.kvcorrection"
    support.run([support.need_binary(options.bin, "kvblend"), "calibrate", "--model", options.model, "--data", fitted,
                 "--passages", options.passages, "--held-out", "0.1", "--output", file, "--max-context-tokens",
                 options.context], "calibrate")
    with server(options, folder, "--max-context-tokens", options.context, "--correction", file, "--learn-correction",
                "off") as running:
        offline = kl(running, judged, options, "on")
    rows.append(["offline", "", "", "", "", f"{offline:.4f}", f"{offline / plain:.2f}x"])
    print(support.markdown_table(["chunks served", "fitted", "kept back", "corrections", "left", "KL", "of uncorrected"],
                                 rows))
    print(f"gain of learning while serving over gain of the offline fit: {(plain - online) / (plain - offline):.2f}")


def overhead(options, folder):
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))[:options.overhead]
    seconds = {"off": [], "on": []}
    with server(options, folder, "--max-context-tokens", options.context, "--learn-correction", "off") as off, \
            server(options, folder, "--max-context-tokens", options.context) as on:
        for index, question in enumerate(questions):
            turns = [("off", off), ("on", on)]
            for name, running in turns if index % 2 == 0 else reversed(turns):
                running.settled()
                seconds[name].append(ask(running, question, options.passages, folder)["prefill_seconds"])
                running.settled()
    ratios = [on / off for off, on in zip(seconds["off"], seconds["on"])]
    print(f"prefill of {options.passages} missing chunks: {statistics.median(seconds['off']):.3f} s without learning, "
          f"{statistics.median(seconds['on']):.3f} s with; ratio, median of {len(ratios)} questions: "
          f"{statistics.median(ratios):.4f}")


def main() -> int:
    parser = bench_arguments(__doc__)
    parser.add_argument("--chunks", type=int, default=200, help="how many are served")
    parser.add_argument("--passages", type=int, default=5, help="chunks per question")
    parser.add_argument("--judged", type=int, default=12, help="questions behind those")
    parser.add_argument("--marks", type=int, default=5, help="measurements on the way")
    parser.add_argument("--context", type=int, default=8192, help="most tokens of a prompt")
    parser.add_argument("--overhead", type=int, default=0, metavar="N")
    options = parser.parse_args()
    print(support.machine_line(support.machine()))
    with tempfile.TemporaryDirectory() as folder:
        if options.chunks > 0:
            learn(options, folder)
        if options.overhead > 0:
            overhead(options, folder)
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
