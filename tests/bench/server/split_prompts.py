#!/usr/bin/env python3
"""What a chain gains that pastes its passages into one string and sets one field more: time to first token by the openai client.

    pip install -r tests/e2e/requirements.txt
    tests/bench/server/split_prompts.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --data musique_dev.json

Every question has --passages passages in LangChain's prompt, joined by empty lines. Each is asked as it is, which is full
prefill; with "split": "passages" for the first time, which stores the paragraphs behind the answer; and, once they are
stored, again with its passages in another order, with and without. Medians of the time until the first piece of text.
"""
import json
import random
import statistics
import tempfile
import time

import openai

from bench_server import bench_arguments, server, support

PROMPT = ("Use the following pieces of context to answer the question at the end. If you don't know the answer, just say that you "
          "don't know, don't try to make up an answer.\n\n{context}\n\nQuestion: {question}\nHelpful Answer:")


def first_text(client, text, **extension):
    """Seconds, and the share of the prompt's tokens that was reused."""
    begin = time.perf_counter()
    stream = client.chat.completions.create(model="", messages=[{"role": "user", "content": text}], max_tokens=1, stream=True,
                                            stream_options={"include_usage": True}, extra_body={"kvblend": extension})
    seconds, usage = None, None
    for event in stream:
        if seconds is None and event.choices and event.choices[0].delta.content is not None:
            seconds = time.perf_counter() - begin
        usage = event.usage or usage
    return seconds, usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--passages", type=int, default=10)
    options = parser.parse_args()
    questions = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))[:options.questions]
    order = random.Random(20261123)
    rows = {"as it is": [], "split, first time": [], "split, again in another order": [], "again, as it is": []}
    with tempfile.TemporaryDirectory() as folder, server(options, folder, "--keep-conversations", 0) as running:
        client = openai.OpenAI(base_url=running.url("api", "/v1"), api_key="none", timeout=600)
        whole = {"blend": {"store_misses": False}}
        for question in questions:
            passages = [passage["text"] for passage in question["ctxs"][:options.passages]]

            def prompt():
                return PROMPT.format(context="\n\n".join(passages), question=question["question"])

            rows["as it is"].append(first_text(client, prompt(), **whole))
            rows["split, first time"].append(first_text(client, prompt(), split="passages"))
            running.settled()
            order.shuffle(passages)
            rows["split, again in another order"].append(first_text(client, prompt(), split="passages"))
            running.settled()
            rows["again, as it is"].append(first_text(client, prompt(), **whole))
    full = statistics.median(seconds for seconds, _ in rows["as it is"])
    print("| prompt | first text | of full prefill | tokens reused |\n|---|---|---|---|")
    for name, row in rows.items():
        seconds = statistics.median(seconds for seconds, _ in row)
        reused = statistics.median(share for _, share in row)
        print(f"| {name} | {seconds:.2f} s | {100 * seconds / full:.0f}% | {100 * reused:.0f}% |")


if __name__ == "__main__":
    support.main_with_errors(main)
