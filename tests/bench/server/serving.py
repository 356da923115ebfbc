#!/usr/bin/env python3
"""What running answers feel of a long prompt, what others feel of them, what guessing at answers is worth, and a second turn.

    tests/bench/server/serving.py [--parts interference,neighbours,drafts,conversation] [--json FILE]

interference: eight answers are being written; the time between their tokens with and without a prompt of --long tokens
being prefilled in full at the same time, and that prompt's time to first token with and without the answers; the one is paid
for with the other, by --itl-target as the server has it.
neighbours: eight answers of --neighbour-tokens tokens fill the batch, all of one namespace. The time to first token of a question
about --passages stored passages, alone and beside them, asked in another namespace, and of one more in theirs.
drafts: questions whose answers quote a passage, and others, to a server that guesses and to one that does not, in turns;
tokens per second of single answers. The texts must be the same.
conversation: a question about --passages stored passages, its answer, and another question behind it, to a server with
--refine-idle and to one without. The second turn's time to first token beside full prefill of the first, and how far what it
reads is from full prefill (KL in nats, mean over the first --score-tokens tokens that full prefill would answer), once the
first server has had as long as full prefill takes.
"""
import json
import math
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

from bench_server import LEAD_IN, SYSTEM_TEXT, bench_arguments, passages_of, server, support

FOLLOW_UP = "Which of the passages tells that? Answer with its title."
QUOTES = ["Repeat the first passage word for word.", "Copy the last passage exactly as it is written.",
          "Quote the second passage in full.", "Write down passage three again, word by word."]


def request_of(chunks, question, max_tokens, computed=False, ends=False):
    request = {"prompt": {"system_text": SYSTEM_TEXT, "lead_in": LEAD_IN, "chunks": chunks, "question": question},
               "sampling": {"max_tokens": max_tokens, "ignore_eos": not ends}}
    if computed:
        request["blend"] = {"reuse": "REUSE_NOTHING", "store_misses": False}
    return request


class Answer:
    """One request through `kvblend generate`, its events with the times at which they came."""

    def __init__(self, running, folder, request):
        handle = tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False, encoding="utf-8")
        with handle:
            json.dump(request, handle)
        self.begin = time.monotonic()
        self.times, self.text, self.finished, self.prompt = [], "", None, None
        self.process = subprocess.Popen(
            [str(running.kvblend), "generate", "--server", running.address, "--json", "--quiet", "--request", handle.name],
            stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if "text" in event:
                self.times.append(time.monotonic())
                self.text += event["text"].get("text", "")
            self.prompt = event.get("prompt", self.prompt)
            self.finished = event.get("finished", self.finished)

    def wait(self):
        self.thread.join()
        if self.process.wait() != 0 or self.finished is None:
            raise support.BenchError(f"an answer failed with exit code {self.process.returncode}")
        return self

    def stop(self):
        self.process.terminate()
        self.thread.join()
        self.process.wait()

    def gaps(self, begin, end):
        times = [at for at in self.times if begin <= at <= end]
        return [b - a for a, b in zip(times, times[1:])]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interference(options, passages, folder):
    with server(options, folder, "--max-batch-size", options.answers + 1, "--max-context-tokens", options.context,
                "--correction", "none", "--max-draft-tokens", 0, "--itl-target", options.itl_target) as running:
        def long_prompt():
            return Answer(running, folder, request_of(chunks, "What is this about?", 1, computed=True))
        chunks, tokens = [], 0
        while tokens < options.long:  # about 1.4 tokens to a word
            chunks.append(passages[len(chunks) % len(passages)])
            tokens += int(1.4 * len(chunks[-1].split()))
        alone = []
        for _ in range(options.rounds):
            answer = long_prompt().wait()
            alone.append(float(answer.prompt["time_to_first_token_seconds"]))
        tokens = int(answer.prompt["prompt_tokens"])
        answers = [Answer(running, folder, request_of(passages[i:i + 2], "Tell a long story.", options.context // 2))
                   for i in range(options.answers)]
        while any(len(answer.times) < 20 for answer in answers):
            time.sleep(0.1)
        quiet, busy, beside = [], [], []
        for _ in range(options.rounds):
            begin = time.monotonic()
            time.sleep(statistics.median(alone))
            end = time.monotonic()
            for answer in answers:
                quiet += answer.gaps(begin, end)
            begin = time.monotonic()
            beside.append(float(long_prompt().wait().prompt["time_to_first_token_seconds"]))
            end = time.monotonic()
            for answer in answers:
                busy += answer.gaps(begin, end)
        for answer in answers:
            answer.stop()
    figures = {"prompt_tokens": tokens, "answers": options.answers, "itl_target": options.itl_target,
               "itl_p50": [statistics.median(quiet), statistics.median(busy)],
               "itl_p99": [percentile(quiet, 0.99), percentile(busy, 0.99)],
               "ttft": [statistics.median(alone), statistics.median(beside)]}
    print(f"{options.answers} answers beside a prompt of {tokens} tokens, prefilled in full, --itl-target {options.itl_target:g}")
    support_table([["", "alone", "together", "ratio"]] + [
        [name, *(f"{1000 * value:.1f} ms" for value in figures[key]), f"{figures[key][1] / figures[key][0]:.2f}x"]
        for name, key in [("between tokens, p50", "itl_p50"), ("between tokens, p99", "itl_p99"),
                          ("the prompt's first token", "ttft")]])
    return figures


def first_token(answer):
    return float(answer.prompt["time_to_first_token_seconds"])


def neighbours(options, questions, folder):
    asked = [request_of(passages_of(question, options.passages), f"Question: {question['question']}", 8)
             for question in questions[:options.rounds]]
    with server(options, folder, "--max-batch-size", options.answers, "--max-context-tokens", options.context,
                "--correction", "none") as running:
        def ask(request, namespace):
            return Answer(running, folder, dict(request, namespace=namespace))
        for namespace in ("many", "other"):  # stores the passages
            for request in asked:
                ask(request, namespace).wait()
            running.settled()
        alone = [first_token(ask(request, "other").wait()) for request in asked]
        long_one = dict(asked[0], sampling={"max_tokens": options.neighbour_tokens, "ignore_eos": True})
        answers = [ask(long_one, "many") for _ in range(options.answers)]
        while any(len(answer.times) < 20 for answer in answers):
            time.sleep(0.1)
        begin = time.monotonic()
        same = ask(asked[0], "many")
        beside = [first_token(ask(request, "other").wait()) for request in asked]
        if any(answer.finished for answer in answers):
            raise support.BenchError(f"--neighbour-tokens is {options.neighbour_tokens}; too few: an answer has ended meanwhile")
        end = time.monotonic()
        gaps = [gap for answer in answers for gap in answer.gaps(begin, end)]
        same.wait()
        for answer in answers:
            answer.wait()
    figures = {"answers": options.answers, "passages": options.passages, "ttft_alone": support.samples(alone),
               "ttft_other": support.samples(beside), "ttft_same": first_token(same),
               "gap_of_answers": statistics.median(gaps)}
    print(f"first token beside {options.answers} answers that fill the batch, {options.passages} stored passages, "
          f"{len(asked)} questions")
    support_table([["", "alone", "in another namespace", "one more in theirs"],
                   ["median", *(f"{1000 * statistics.median(values):.0f} ms" for values in (alone, beside)),
                    f"{1000 * first_token(same):.0f} ms"],
                   ["longest", *(f"{1000 * max(values):.0f} ms" for values in (alone, beside)), ""]])
    return figures


def support_table(rows):
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).rjust(width) if column else str(cell).ljust(width)
                        for column, (cell, width) in enumerate(zip(row, widths))), flush=True)


def rate(answer):
    """Tokens per second behind the first."""
    timings, tokens = answer.finished["timings"], answer.finished["usage"]["completion_tokens"]
    return (tokens - 1) / (timings["total_seconds"] - timings["time_to_first_token_seconds"])


def drafts(options, questions, folder):
    asked = []
    for number, question in enumerate(questions[:options.questions]):
        chunks = passages_of(question, 5)
        explain = f"Question: {question['question']} Explain your answer in your own words."
        asked.append(("quotes", request_of(chunks, QUOTES[number % len(QUOTES)], 96, computed=True)))
        asked.append(("others", request_of(chunks, explain, 96, computed=True)))
    flags = ["--max-context-tokens", options.context, "--correction", "none"]
    rates = {kind: [[], []] for kind in ("quotes", "others")}
    with server(options, folder, *flags) as guessing, server(options, folder, *flags, "--max-draft-tokens", 0) as plain:
        for kind, request in asked:
            pair = [Answer(running, folder, request).wait() for running in (guessing, plain)]
            if pair[0].text != pair[1].text:
                raise support.BenchError(f"guessing changed an answer: {pair[0].text!r}, {pair[1].text!r}")
            for side, answer in enumerate(pair):
                rates[kind][side].append(rate(answer))
    figures = {}
    rows = [["answers", "tokens/s without", "with guesses", "ratio, median", "least"]]
    for kind, (guessed, without) in rates.items():
        ratios = [a / b for a, b in zip(guessed, without)]
        figures[kind] = {"tokens_per_second": [statistics.median(without), statistics.median(guessed)],
                         "ratio": support.samples(ratios)}
        rows.append([kind, f"{statistics.median(without):.0f}", f"{statistics.median(guessed):.0f}",
                     f"{statistics.median(ratios):.2f}x", f"{min(ratios):.2f}x"])
    support_table(rows)
    return figures


def distributions(running, path, token_ids):
    """The report of a prompt, and the log-probabilities in the place of each of these tokens behind it."""
    output = running.call("score", "--request", path, "--json", "--distributions", "--continuation-ids",
                          ",".join(map(str, token_ids)))
    events = [json.loads(line) for line in output.splitlines()]
    return events[0]["prompt"], [event["token"]["distribution"] for event in events if "token" in event]


def divergence(full, other):
    """KL of the second from the first, in nats."""
    return sum(math.exp(p) * (p - q) for p, q in zip(full, other) if p > -700)


def tokens_of(running, path):
    events = [json.loads(line) for line in running.call("generate", "--json", "--quiet", "--request", path).splitlines()]
    return [token for event in events for token in event.get("text", {}).get("token_ids", [])]


def conversation(options, questions, folder):
    flags = ["--max-context-tokens", options.context, "--correction", "none"]
    path = pathlib.Path(folder) / "turn.json"
    columns = ["full TTFT", "turn 1 TTFT", "turn 2 TTFT", "of full", "KL kept", "KL refined", "exact"]
    rows = []
    with server(options, folder, *flags, "--refine-idle") as refining, server(options, folder, *flags) as keeping:
        for question in questions[:options.questions]:
            chunks = passages_of(question, options.passages)
            asked = f"Question: {question['question']}\nAnswer the question with a few words only."
            first = request_of(chunks, asked, 24, ends=True)
            for running in (refining, keeping):
                Answer(running, folder, dict(first, sampling={"max_tokens": 1})).wait()
                running.settled()
            computed = [float(Answer(keeping, folder, request_of(chunks, asked, 1, computed=True)).wait()
                              .prompt["time_to_first_token_seconds"]) for _ in range(options.rounds)]
            full_seconds = statistics.median(computed)
            answer = Answer(keeping, folder, first).wait()
            second = {"prompt": {"system_text": SYSTEM_TEXT, "question": FOLLOW_UP, "history": [
                {"role": "ROLE_USER", "text": asked, "lead_in": LEAD_IN, "chunks": chunks},
                {"role": "ROLE_ASSISTANT", "text": answer.text}]}}
            path.write_text(json.dumps(dict(second, blend={"reuse": "REUSE_NOTHING", "store_misses": False}, sampling={
                "max_tokens": options.score_tokens, "ignore_eos": True})), encoding="utf-8")
            continued = tokens_of(keeping, path)
            full = distributions(keeping, path, continued)[1]
            path.write_text(json.dumps(second), encoding="utf-8")
            far, ttft = [], []
            for running in (keeping, refining):
                if running is refining:
                    Answer(refining, folder, first).wait()
                    time.sleep(full_seconds)
                report, scored = distributions(running, path, continued)
                kept = int(report.get("kept_tokens", 0))
                if kept < int(answer.prompt["prompt_tokens"]):
                    raise support.BenchError(f"the second turn found {kept} kept tokens")
                far.append(statistics.mean(divergence(a, b) for a, b in zip(full, scored)))
                ttft += [float(distributions(running, path, continued[:1])[0]["time_to_first_token_seconds"])
                         for _ in range(options.rounds)]
            ttft = statistics.median(ttft)
            rows.append([full_seconds, float(answer.prompt["time_to_first_token_seconds"]), ttft, ttft / full_seconds, *far,
                         int(report.get("kept_exact_tokens", 0)) / kept])
    figures = {name: support.samples([row[i] for row in rows]) for i, name in enumerate(columns)}
    cells = [f"{1000 * figures[name]['median']:.1f} ms" for name in columns[:3]]
    cells += [f"{100 * figures['of full']['median']:.1f}%"] + [f"{figures[name]['median']:.5f}" for name in columns[4:6]]
    support_table([columns, [*cells, f"{100 * figures['exact']['median']:.0f}%"]])
    return figures


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--parts", default="interference,neighbours,drafts,conversation")
    parser.add_argument("--long", type=int, default=6000, help="tokens of the long prompt, about")
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--neighbour-tokens", type=int, default=600, help="of each of the answers that fill the batch")
    parser.add_argument("--itl-target", type=float, default=0, metavar="SECONDS", help="of the server (interference); 0: its own choice")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--passages", type=int, default=10, help="of a conversation, or a neighbour")
    parser.add_argument("--score-tokens", type=int, default=16)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    support.need_file(options.model, "--model")
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))
    passages = [text for question in questions for text in passages_of(question, None)]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts.split(","):
            if part == "interference":
                figures[part] = interference(options, passages, folder)
            elif part == "neighbours":
                figures[part] = neighbours(options, questions, folder)
            elif part == "drafts":
                figures[part] = drafts(options, questions, folder)
            elif part == "conversation":
                figures[part] = conversation(options, questions, folder)
            else:
                raise support.BenchError(f"--parts is {part}; allowed: interference, neighbours, drafts, conversation")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    support.main_with_errors(main)
