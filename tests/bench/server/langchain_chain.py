#!/usr/bin/env python3
"""A plain LangChain chain with only its base URL changed: the transcript, with the time to the first token before and after.

    pip install -r tests/python/requirements-integrations.txt
    tests/bench/server/langchain_chain.py --data musique_dev.json [--questions 12 --passages 10]

The chain is that of python/examples/langchain_rag.py: it pastes all passages into one string, and ChatOpenAI streams the answer.
Before: kvblend-server with its default settings, which finds prefixes that prompts share, as other engines do, and nothing else in
a text. After: the same with --split-prompts passages.

Round one asks every question about the first half of its own passages and the second half of the next one's. Round two asks
them in other words about their own passages in another order, so that each was stored by an earlier question, in another
place and other company. Behind every answer it is waited for what is stored and learned of it. Both servers are asked in turn.
What a retriever finds is laid down, for it is not what is measured. Medians of round two; an answer is "right" that contains one
of the data set's.
"""
import contextlib
import json
import pathlib
import random
import statistics
import sys
import tempfile

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from bench_server import bench_arguments, server, support

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python/examples"))
import langchain_rag

SERVERS = {"before": (), "after": ("--split-prompts", "passages")}


def rounds_of(questions, count, seed):
    """For each round what is asked, and the passages that are found then: [{question: documents}]."""
    order = random.Random(seed)
    own = [[Document(passage["text"], metadata={"title": passage["title"]}) for passage in question["ctxs"][:count]]
           for question in questions]
    half = count // 2
    first = {question["question"]: own[index][:half] + own[(index + 1) % len(own)][half:]
             for index, question in enumerate(questions)}
    second = {f"Please tell me: {question['question']}": order.sample(own[index], len(own[index]))
              for index, question in enumerate(questions)}
    return [first, second]


def is_right(answer, question):
    said = " ".join(answer.lower().split())
    return any(" ".join(right.lower().split()) in said for right in question["answers"])


def measure(running, rounds):
    """{name of a server: [(question, what it said)]} of the last round. They take turns, so that what else the machine does is
    shared by both."""
    for found in rounds:
        chains = {name: langchain_rag.make_chain(one.url("api", "/v1"), RunnableLambda(found.__getitem__))
                  for name, one in running.items()}
        asked = {name: [] for name in running}
        for question in found:
            for name, chain in chains.items():
                asked[name].append((question, langchain_rag.ask(chain, question)))
                running[name].settled()
    return asked


def show(name, asked, questions):
    """Prints the transcript; the median of the seconds."""
    print(f"\n{name}:")
    for question, told in asked:
        print(f"  {question}\n  {told}")
    median = statistics.median(told.seconds for _, told in asked)
    right = sum(is_right(told.answer, question) for (_, told), question in zip(asked, questions))
    cached = sum(told.cached for _, told in asked) / sum(told.tokens for _, told in asked)
    print(f"  median {median:.3f} s to the first token, {100 * cached:.0f}% of the tokens cached, {right} of {len(asked)} answers "
          "right")
    return median


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait-seconds", type=float, default=0, help="so long at most until the machine is idle")
    parser.add_argument("server_flags", nargs="*", help="behind --: more flags for both servers")
    options = parser.parse_args()
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))[:options.questions]
    support.wait_until_idle(options.wait_seconds)
    machine = support.machine()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        running = {name: stack.enter_context(server(options, folder, *flags, *options.server_flags))
                   for name, flags in SERVERS.items()}
        asked = measure(running, rounds_of(questions, options.passages, options.seed))
    before, after = (show(f"{name}: kvblend-server {' '.join(SERVERS[name])}".rstrip(), asked[name], questions) for name in SERVERS)
    single = [old.seconds / new.seconds for (_, old), (_, new) in zip(asked["before"], asked["after"])]
    print(f"\n{before / after:.1f} times sooner; {min(single):.1f} to {max(single):.1f} for single questions\n"
          f"{support.machine_line(machine)}")


if __name__ == "__main__":
    support.main_with_errors(main)
