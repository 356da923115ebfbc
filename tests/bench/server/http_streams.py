#!/usr/bin/env python3
"""Many answers streamed over HTTP at once: does each come whole and right, and what does it wait for?

    tests/bench/server/http_streams.py --streams 200

Every stream is a connection of its own to /v1/chat/completions, with a question about --passages stored passages and an answer of
--tokens tokens; all are asked at the same moment. Each answer must end with [DONE] and have the text that it has when nobody
else asks. Exit code 1 when one does not.
"""
import asyncio
import json
import statistics
import tempfile
import time

from bench_server import SYSTEM_TEXT, bench_arguments, passages_of, server, support


def body_of(question, options):
    parts = [{"type": "text", "text": text} for text in [*passages_of(question, options.passages), question["question"]]]
    return json.dumps({"messages": [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": parts}],
                       "max_tokens": options.tokens, "temperature": 0, "stream": True, "ignore_eos": True}).encode()


async def stream(port, body):
    """Seconds at which pieces of text came, and the text."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    status = (await reader.readline()).decode()
    if " 200 " not in status:
        raise support.BenchError(f"an answer of {status.strip()!r}: {(await reader.read())[-300:]!r}")
    times, text, done = [], "", False
    while line := await reader.readline():
        if line == b"data: [DONE]\n":
            done = True
        elif line.startswith(b"data: "):
            choices = json.loads(line[6:]).get("choices")
            piece = choices[0]["delta"].get("content") if choices else None
            if piece:
                times.append(time.monotonic() - begin)
                text += piece
    writer.close()
    if not done or not times:
        raise support.BenchError(f"a stream ended without [DONE] after {len(times)} pieces")
    return times, text


async def measure(running, questions, options):
    port = int(running.ports["api"])
    bodies = [body_of(question, options) for question in questions]
    for body in bodies:
        await stream(port, body)  # its chunks are missing
    running.settled()
    alone = []
    for body in bodies:
        begin = time.monotonic()
        times, text = await stream(port, body)
        alone.append((time.monotonic() - begin, times[0], text))
    begin = time.monotonic()
    answers = await asyncio.gather(*(stream(port, bodies[i % len(bodies)]) for i in range(options.streams)))
    seconds = time.monotonic() - begin
    differing = sum(text != alone[i % len(bodies)][2] for i, (_, text) in enumerate(answers))
    return alone, answers, seconds, differing


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--max-batch-size", type=int, default=8,
                        help="of the server; beyond 8 rounding, and so a text now and then, depends on what is decoded beside it")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))[:options.questions]
    with tempfile.TemporaryDirectory() as folder, server(
            options, folder, "--max-batch-size", options.max_batch_size, "--max-queued-requests", options.streams,
            "--correction", "none", "--keep-conversations", 0) as running:
        alone, answers, seconds, differing = asyncio.run(measure(running, questions, options))
    firsts = [times[0] for times, _ in answers]
    gaps = [b - a for times, _ in answers for a, b in zip(times, times[1:])]
    print(support.text_table(["", "alone, one after the other", f"{options.streams} at once"], [
        ["answers per second", f"{1 / statistics.mean(row[0] for row in alone):.2f}", f"{options.streams / seconds:.2f}"],
        ["first text, median", f"{statistics.median(row[1] for row in alone):.3f} s", f"{statistics.median(firsts):.2f} s"],
        ["first text, last stream", "", f"{max(firsts):.2f} s"],
        ["between pieces, p50", "", f"{1e3 * statistics.median(gaps):.0f} ms"],
        ["between pieces, p99", "", f"{1e3 * percentile(gaps, 0.99):.0f} ms"],
        ["other text than alone", "", differing]]))
    return 1 if differing else 0


if __name__ == "__main__":
    support.main_with_errors(main)
