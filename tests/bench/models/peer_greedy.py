#!/usr/bin/env python3
"""Holds kvblend's tokens and greedy text to llama.cpp's: same model file, same prompts, token by token.

    tests/bench/models/peer_greedy.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf models/gemma-3-270m-q4_k_m.gguf

1. Token ids: every text below, and the passages of --data, must give the same ids in both.
2. Greedy text in f32: both write --steps tokens behind each of ten prompts, kvblend with --gemm f32, llama.cpp with the
   file's weights written out as F32 and KV in f32. Hardly anything is rounded but sums (and in kvblend the scales of
   k-quants, to f16), so this tells whether both compute the same model.
3. Greedy text as each would serve: kvblend as it is, llama.cpp with the weights as given, whose activations it rounds to 8
   bits. Texts part more often here. Then each as it would serve against the other in f32: whose rounding that is.

Two engines may part where two tokens are almost equally likely, and then write different texts. That is allowed only where
it is shown to be rounding: at the place where they part, each engine's lead of its token over the other's must be below the
error between the engines. The error is taken from places where they agree: the largest difference, over all prompts,
between the log-probabilities that both give to the tokens that kvblend finds most likely there (20 a place). No wrong model
can hide behind a large error, as its median is bounded too (MEDIANS).

Exits with 1 where ids differ, texts part for another reason, or the median is larger. llama.cpp is built as
peers.py does it.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench_support as support
from peer_engines import llamacpp

MEDIANS = {"f32": 0.005, "as served": 0.15, "kvblend as served": 0.1,
           "llama.cpp as served": 0.1}  # nats; of the differences at places where both agree
PROMPTS = [
    "The capital of Norway is",
    "Water boils at a lower temperature on a mountain because",
    "Once upon a time, in a village by the sea, there lived a",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "List three fruits and their colours:\n1.",
    "In 1969 Neil Armstrong became the first person to",
    "Der schnelle braune Fuchs springt über den",
    "The three laws of thermodynamics say that",
    "Question: Who wrote Hamlet?\nAnswer:",
    "Dear Sir or Madam,\n\nI am writing to complain about",
]
TEXTS = ["", " ", "  two spaces", "tab\tand\nline\r\nbreaks\n\n\n", "Ünïcödé, naïve façade", "日本語のテキスト 한국어 العربية हिन्दी", "🙂👩‍👩‍👧 emoji",
         "x = {'a': [1, 2.5e-3], \"b\": None}  # comment", "1234567890 3.14159 1,000,000", "don't, can't; we'll's", "<html><b>bold</b></html>",
         "<start_of_turn>user\nhi<end_of_turn>", "<|im_start|>user<|im_end|>", "<bos><eos><pad><unk>", "▁already marked▁", "a" * 300]


def kvblend_tokens(options, model, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(texts, file)
        file.flush()
        return support.run_json([support.need_binary(options.bin, "peer_tokens"), model, file.name], "peer_tokens")


def kvblend_greedy(options, model, prompt, flags):
    """Prompt size and, for each token that kvblend writes, [[id, log-probability], ...] of the most likely ones."""
    lines = support.run([support.need_binary(options.bin, "kvblend"), "generate", "--model", model, "--chat-format", "plain",
                         "--no-self-check", "--correction", "none", "--threads", options.threads, *flags,
                         "--question", prompt, "--max-tokens", options.steps, "--ignore-eos", "--logprobs", 20, "--json"],
                        "kvblend generate").splitlines()
    size, steps = 0, []
    for event in map(json.loads, lines):
        if "prompt" in event:
            size = event["prompt"]["prompt_tokens"]
        for place in event.get("text", {}).get("top_logprobs", []):
            steps.append([[token["token_id"], token["logprob"]] for token in place["tokens"]])
    return size, steps


class Comparison:
    def __init__(self):
        self.same, self.differences, self.partings = 0, [], []

    def add(self, index, ours, peer):
        for place, (mine, theirs) in enumerate(zip(ours, peer)):
            of_peer = dict(zip([token for token, _ in mine], theirs["asked"]))
            if mine[0][0] == theirs["best"][0][0]:
                self.same += 1
                self.differences += [abs(logprob - of_peer[token]) for token, logprob in mine]
                continue
            of_mine, best = dict(map(tuple, mine)), theirs["best"]
            lead = mine[0][1] - of_mine[best[0][0]] if best[0][0] in of_mine else float("inf")
            self.partings.append({"prompt": index, "place": place, "ours": mine[0][0], "peers": best[0][0],
                                  "our_lead": lead, "peer_lead": best[0][1] - of_peer[mine[0][0]]})
            return  # behind this place both go on from different texts


def compare_model(options, model, python) -> bool:
    data = json.loads(support.need_file(options.data, "--data").read_text(encoding="utf-8"))
    texts = PROMPTS + TEXTS + [passage["text"] for question in data for passage in question["ctxs"]]
    ids = kvblend_tokens(options, model, texts)
    job = {"model": str(model), "threads": options.threads, "fa": 0, "kv": "f32", "ubatch": 512, "repack": False, "tasks": []}
    peer_ids = llamacpp.work(python, {**job, "texts": texts}, "tokens")["tokens"]
    differing = [text for text, a, b in zip(texts, ids, peer_ids) if a != b]
    for text in differing:
        print(f"  other ids for {text[:60]!r}")
    print(f"{model.name}: {len(texts) - len(differing)} of {len(texts)} texts give the same ids, "
          f"{sum(map(len, ids)):,} tokens")

    good = not differing
    exact = llamacpp.requantize(python, model, options.folder, options.threads, "f32")
    in_f32 = ["--gemm", "f32"]
    for name, flags, file in (("f32", in_f32, exact), ("as served", [], model), ("kvblend as served", [], exact),
                              ("llama.cpp as served", in_f32, model)):
        good &= compare_greedy(options, model, python, name, flags, {**job, "model": str(file)}, ids)
    return good


def compare_greedy(options, model, python, name, flags, job, ids) -> bool:
    ours = []
    for prompt, prompt_ids in zip(PROMPTS, ids):
        size, steps = kvblend_greedy(options, model, prompt, flags)
        if size != len(prompt_ids) or len(steps) != options.steps:
            raise support.BenchError(f"a prompt of {len(prompt_ids)} tokens became {size}, and {len(steps)} tokens of "
                                     f"{options.steps} were written: {prompt!r}")
        ours.append(steps)
    greedy = [{"tokens": prompt_ids, "written": [place[0][0] for place in steps],
               "ask": [[token for token, _ in place] for place in steps]} for prompt_ids, steps in zip(ids, ours)]
    answers = llamacpp.work(python, {**job, "greedy": greedy}, "greedy text")["greedy"]
    comparison = Comparison()
    for index, (steps, answer) in enumerate(zip(ours, answers)):
        comparison.add(index, steps, answer)
    differences = comparison.differences
    median, error = statistics.median(differences), max(differences)
    print(f"  {name}: {len(PROMPTS) - len(comparison.partings)} of {len(PROMPTS)} prompts: the same {options.steps} tokens; "
          f"{comparison.same} places compared, log-probabilities differ by {median:.4f} (median) up to {error:.4f} nats")
    good = median <= MEDIANS[name]
    for parting in comparison.partings:
        explained = max(parting["our_lead"], parting["peer_lead"]) <= error
        good &= explained
        print(f"  prompt {parting['prompt'] + 1} parts at token {parting['place'] + 1}: {parting['ours']} leads by "
              f"{parting['our_lead']:.4f} in kvblend, {parting['peers']} by {parting['peer_lead']:.4f} in llama.cpp: "
              f"{'within' if explained else 'BEYOND'} the error of {error:.4f}")
    return good


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, nargs="+", default=[support.DEFAULT_MODEL], help="GGUF files")
    parser.add_argument("--data", type=pathlib.Path, default=support.DEFAULT_DATA, help="questions with passages")
    parser.add_argument("--bin", type=pathlib.Path, default=support.DEFAULT_BIN, help="kvblend's programs (default: %(default)s)")
    parser.add_argument("--folder", type=pathlib.Path, default=support.ROOT / "build/peer",
                        help="where the virtual environment and the models in F32 go (default: %(default)s)")
    parser.add_argument("--venv", type=pathlib.Path, help="virtual environment with llama.cpp (default: FOLDER/venv)")
    parser.add_argument("--steps", type=int, default=48, help="tokens behind each prompt (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=support.processors(), help="of both (default: %(default)s)")
    options = parser.parse_args()
    options.venv = options.venv or options.folder / "venv"
    return options


def main() -> int:
    options = parse_arguments()
    python = llamacpp.build(options.venv)
    results = [compare_model(options, support.need_file(model, "--model").resolve(), python) for model in options.model]
    return 0 if all(results) else 1


if __name__ == "__main__":
    support.main_with_errors(main)
