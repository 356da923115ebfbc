#!/usr/bin/env python3
"""Measures kvblend against other engines on this machine: same model file, same tokens, as many threads.

    tests/bench/peers.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --json peer.json

The peers are llama.cpp (built from source with clang for this processor), ik_llama.cpp (its wheel, whose kernels are those of
AVX2) and OpenVINO GenAI (its wheel); --peers chooses. KVBLEND_CPU=avx2 holds kvblend to AVX2; beside it stands ik_llama.cpp,
for the others are built for, or choose, all that the processor has.

1. Installs each in a virtual environment of its own (llama.cpp: minutes; once).
2. Search: measures each in every combination of its settings, to find the best one for each figure.
3. Comparison: kvblend and the peers in turn, N rounds, each in a process of its own while the others do not run. Ratios
   are those of the medians, against the best of the peers for each figure; beside them the smallest and largest ratio of
   neighbours.

kvblend's prefill is its time to the first token, tokenization included; the peers' is theirs from token ids. What is
best for llama.cpp may be another type of weights: Q8_0, requantized from the same file. Blended prompts (ttft_bench) are
held against the prefill of as many tokens by the peer that is best at the longest prompt. With several models each is measured
so, one after the other; one whose file has no chat template gets kvblend's format 'plain'. A peer that cannot read a model's
file is named and left out.

Needs python3 with venv, for llama.cpp clang and OpenMP for clang (Debian: clang libomp-dev), and kvblend's release build with
throughput_bench and ttft_bench. The machine should be doing nothing else.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import bench_support as support
from bench_support import BenchError
from peer_engines.engine import log
from peer_engines.ik_llamacpp import IkLlamaCpp
from peer_engines.llamacpp import LlamaCpp
from peer_engines.open_vino import OpenVino

BLENDED_MODES = ["query 0.15", "query 0.05"]
ENGINES = {engine.name: engine for engine in (LlamaCpp, IkLlamaCpp, OpenVino)}
NAMES = {"llamacpp": LlamaCpp.name, "ik_llamacpp": IkLlamaCpp.name, "openvino": OpenVino.name}


# --- figures ------------------------------------------------------------------------------------------------------------


class Figure:
    """Tokens per second of prefill (steps 0) or of decoding `steps` tokens behind a prompt."""

    def __init__(self, tokens, steps):
        self.tokens, self.steps = tokens, steps
        self.name = f"decode behind {tokens}" if steps else f"prefill {tokens}"
        self.repeats = 3 if tokens <= 2048 else 1  # in each process
        self.ours, self.peers = [], {}  # rates of each round; of peers by name
        self.ids_ours, self.ids_peers = [], {}

    def rates_of_peer(self, result):
        if self.steps:
            return [self.steps / seconds for seconds in result["decode_seconds"]]
        return [self.tokens / seconds for seconds in result["prefill_seconds"]]

    def measure_ours(self, options):
        part = ["decode", "--decode-contexts", self.tokens, "--decode-steps", self.steps] if self.steps else \
            ["prefill", "--prefill-tokens", self.tokens]
        result = support.run_json(
            [options.throughput_bench, options.model, options.data, *options.format, "--parts", *part, "--rounds",
             self.repeats, "--warm-up", 1, *(["--cpu-time"] if options.cpu_time else []), "--threads", options.threads, "--kv-dtype", options.kv_dtype, "--gemm", options.gemm,
             "--json", "-"], "throughput_bench")
        row = result["decode" if self.steps else "prefill"][0]
        self.ours.append(row["tokens_per_second"]["median"])
        self.ids_ours = row.get("token_ids", [])
        return result["backend"]

    def measure_peer(self, peer, setting):
        task = peer.task(self.tokens, self.steps, 1, self.repeats)
        result = peer.measure(setting, [task])[0]
        self.peers.setdefault(peer.name, []).append(statistics.median(self.rates_of_peer(result)))
        self.ids_peers[peer.name] = result["token_ids"]

    def result(self, best):
        """best: of each peer its settings by figure."""
        ours = support.samples(self.ours)
        peers = {name: {**support.samples(rates), "setting": best[name][self.name]} for name, rates in self.peers.items()}
        fastest = max(peers, key=lambda name: peers[name]["median"])
        pairs = [a / b for a, b in zip(self.ours, self.peers[fastest])]
        result = {"figure": self.name, "unit": "tok/s", "kvblend": ours, "peers": peers, "best_peer": fastest,
                  "ratio": ours["median"] / peers[fastest]["median"], "ratio_min": min(pairs), "ratio_max": max(pairs)}
        if self.steps:
            ids = self.ids_peers[fastest]
            result["same_tokens"] = next((i for i, (a, b) in enumerate(zip(self.ids_ours, ids)) if a != b),
                                         min(len(self.ids_ours), len(ids)))
            result["decoded_tokens"] = self.steps + 1
        return result


def measure_blended(options):
    """Time to first token by mode, of a process of its own."""
    return support.measured_json(
        [options.ttft_bench, options.model, options.data, *options.format, "--passages", options.passages, "--rounds", 1, "--threads", options.threads,
         "--gemm", options.gemm, "--kv-dtype", options.kv_dtype, "--mode", ",".join(["full", *BLENDED_MODES]), "--json"], "ttft_bench")


def compare_blended(options, peer, setting):
    ours, peers, num_tokens = {mode: [] for mode in ["full", *BLENDED_MODES]}, [], 0
    for round_number in range(options.rounds):
        log(f"round {round_number + 1} of {options.rounds}: blended prompts")
        result = measure_blended(options)
        num_tokens = result["prompt_tokens"]
        for row in result["modes"]:
            ours[row["mode"]].append(row["ttft_seconds"]["median"])
        if num_tokens > len(peer.tokens):
            raise BenchError(f"the blended prompt has {num_tokens} tokens; allowed: up to {len(peer.tokens)}")
        peers += peer.measure(setting, [peer.task(num_tokens, 1, 0, 1)])[0]["prefill_seconds"]
    rows = []
    for mode, seconds in ours.items():
        mine, theirs = support.samples(seconds), support.samples(peers)
        rows.append({"mode": mode, "unit": "s", "kvblend": mine, "peer": theirs,
                     "ratio": theirs["median"] / mine["median"],
                     "ratio_min": min(b / a for a, b in zip(seconds, peers)),
                     "ratio_max": max(b / a for a, b in zip(seconds, peers)),
                     "speed_up_over_full": statistics.median(ours["full"]) / mine["median"]})
    return {"prompt_tokens": num_tokens, "peer": peer.name, "setting": setting, "rows": rows}


# --- reports ------------------------------------------------------------------------------------------------------------


def tables(result, as_table):
    names = list(result["peers"])
    header = ["figure", "kvblend, tok/s", *(f"{name}, tok/s" for name in names), "ratio to the best of them", "its best setting"]
    rows = [[f["figure"], support.spread(f["kvblend"]), *(support.spread(f["peers"][name]) for name in names),
             f"{f['ratio']:.2f} ({f['ratio_min']:.2f} to {f['ratio_max']:.2f})",
             f"{f['best_peer']}: {ENGINES[f['best_peer']].describe(f['peers'][f['best_peer']]['setting'])}"]
            for f in result["figures"]]
    parts = [as_table(header, rows)]
    blended = result.get("blended")
    if blended:
        header = [f"{blended['prompt_tokens']:,} tokens", "kvblend, s to first token", f"{blended['peer']}, s", "ratio",
                  "over own full prefill"]
        rows = [[f["mode"], support.spread(f["kvblend"]), support.spread(f["peer"]),
                 f"{f['ratio']:.1f} ({f['ratio_min']:.1f} to {f['ratio_max']:.1f})", f"{f['speed_up_over_full']:.1f}"]
                for f in blended["rows"]]
        parts.append(as_table(header, rows))
    return "\n\n".join(parts)


def peers_line(result) -> str:
    return "; ".join(peer["released_as"] for peer in result["peers"].values())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    integers = lambda text: [int(item) for item in text.split(",")]
    words = lambda text: text.split(",")
    parser.add_argument("--model", type=pathlib.Path, nargs="+", default=[support.DEFAULT_MODEL], dest="models",
                        help="GGUF files (default: %(default)s)")
    parser.add_argument("--data", type=pathlib.Path, default=support.DEFAULT_DATA,
                        help="questions with passages, of which prompts are made (default: %(default)s)")
    parser.add_argument("--bin", type=pathlib.Path, default=support.DEFAULT_BIN, help="kvblend's benches (default: %(default)s)")
    parser.add_argument("--folder", type=pathlib.Path, default=support.ROOT / "build/peer",
                        help="where the virtual environment and the requantized model go (default: %(default)s)")
    parser.add_argument("--venv", type=pathlib.Path, help="virtual environment of llama.cpp (default: FOLDER/venv)")
    parser.add_argument("--peers", type=words, default=list(NAMES), help="of llamacpp, ik_llamacpp, openvino (default: all)")
    parser.add_argument("--install-only", action="store_true", help="install the peers and stop")
    parser.add_argument("--threads", type=int, default=support.processors(), help="of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison (default: %(default)s)")
    parser.add_argument("--prefill", type=integers, default=[512, 2048, 6000], help="prompt sizes (default: 512,2048,6000)")
    parser.add_argument("--decode", type=integers, default=[512, 6000], help="prompt sizes to decode behind (default: 512,6000)")
    parser.add_argument("--steps", type=integers, default=[48, 32], help="tokens to decode behind each (default: 48,32)")
    parser.add_argument("--passages", type=int, default=10, help="of the blended prompt; 0: measure none (default: %(default)s)")
    parser.add_argument("--gemm", default="auto", help="kvblend's matrix products (default: %(default)s)")
    parser.add_argument("--kv-dtype", default="auto", help="kvblend's pages (default: %(default)s)")
    parser.add_argument("--cpu-time", action="store_true",
                        help="processor time of one thread each instead, for busy machines; without blended prompts")
    group = parser.add_argument_group("settings of llama.cpp to search, lists")
    group.add_argument("--fa", type=integers, default=[1, 0], help="flash attention on, off (default: 1,0)")
    group.add_argument("--kv", type=words, default=["f16", "f32"], help="f16, f32, bf16, q8_0 (default: f16,f32)")
    group.add_argument("--weights", type=words, default=["given", "q8_0"], help="given, q8_0 (default: given,q8_0)")
    group.add_argument("--ubatch", type=integers, default=[512], help="tokens (default: 512)")
    group.add_argument("--repack", type=integers, default=[1], help="weights repacked for the processor, 1, 0 (default: 1)")
    group = parser.add_argument_group("settings of the others to search, lists; flash attention as above")
    group.add_argument("--ik-kv", type=words, default=["q8_0", "f16"], help="of ik_llama.cpp: q8_0, f16, f32 (default: q8_0,f16)")
    group.add_argument("--ov-kv", type=words, default=["u8", "f16"], help="of OpenVINO: u8, f16, f32 (default: u8,f16)")
    group.add_argument("--ov-precision", type=words, default=["auto", "f32"],
                       help="of OpenVINO's products: auto (bf16 wherever there are instructions for it), f32, bf16 (default: auto,f32)")
    parser.add_argument("--settings-from", type=pathlib.Path, metavar="JSON",
                        help="take the best settings from an earlier run's JSON and search nothing; for one model")
    parser.add_argument("--json", type=pathlib.Path, help="writes everything that was measured there; of several models a list")
    options = parser.parse_args()
    options.venv = options.venv or options.folder / "venv"
    if len(options.steps) != len(options.decode):
        parser.error(f"--steps has {len(options.steps)} numbers, --decode {len(options.decode)}; allowed: as many")
    if options.cpu_time:
        options.threads, options.passages = 1, 0
    if options.settings_from and len(options.models) > 1:
        parser.error(f"--settings-from is for one model; there are {len(options.models)}")
    for name, allowed in (("weights", ["given", "q8_0"]), ("kv", ["f16", "f32", "bf16", "q8_0"]), ("fa", [0, 1]),
                          ("repack", [0, 1]), ("peers", list(NAMES)), ("ik_kv", ["q8_0", "f16", "f32"]),
                          ("ov_kv", ["u8", "f16", "f32"]),
                          ("ov_precision", ["auto", "f32", "bf16"])):
        for value in getattr(options, name):
            if value not in allowed:
                parser.error(f"--{name.replace('_', '-')} has '{value}'; allowed: {', '.join(map(str, allowed))}")
    if min([options.threads, options.rounds, *options.prefill, *options.decode, *options.steps, *options.ubatch]) < 1:
        parser.error("--threads, --rounds, --prefill, --decode, --steps, --ubatch: allowed: 1 or more")
    return options


def same_tokens_as_kvblend(options):
    """Prompts by size, as kvblend has them; the longest is also what others are cut from."""
    sizes = sorted({*options.prefill, *options.decode, 8000 if options.passages else 0} - {0})
    tokens = support.measured_json([options.throughput_bench, options.model, options.data, *options.format,
                                    "--prefill-tokens", ",".join(map(str, sizes)), "--write-tokens"], "throughput_bench")
    return {int(size): ids for size, ids in tokens.items()}


def has_chat_template(options) -> bool:
    done = subprocess.run([support.need_binary(options.bin, "kvblend"), "model", "inspect", options.model, "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    try:
        return json.loads(done.stdout)["has_chat_template"]
    except ValueError:
        raise BenchError(f"kvblend model inspect {options.model} printed no JSON") from None


def best_settings(options, peers, figures):
    """Each peer's best setting by figure, and what the search gave. Peers that cannot run the model are taken out."""
    if options.settings_from:
        earlier = json.loads(support.need_file(options.settings_from, "--settings-from").read_text(encoding="utf-8"))
        best = {name: {f["figure"]: f["peers"][name]["setting"] for f in earlier["figures"] if name in f["peers"]} for name in peers}
        for name, settings in best.items():
            missing = [figure.name for figure in figures if figure.name not in settings]
            if missing:
                raise BenchError(f"{options.settings_from} has no setting of {name} for {', '.join(missing)}")
        return best, earlier["search"]
    log("searching the peers' best settings, tok/s")
    best, search = {}, []
    for name in list(peers):
        try:
            best[name], results = peers[name].search(figures)
        except BenchError as error:
            log(f"{name} is left out: {error}")
            del peers[name]
            continue
        search += results
    if not peers:
        raise BenchError("none of the peers could be measured")
    return best, search


def measure_model(options, machine) -> dict:
    options.format = [] if has_chat_template(options) else ["--chat-format", "plain"]
    options.exact = same_tokens_as_kvblend(options)
    tokens = options.exact[max(options.exact)]
    peers = {NAMES[name]: ENGINES[NAMES[name]](options, tokens) for name in options.peers}
    figures = [Figure(size, 0) for size in options.prefill]
    figures += [Figure(size, steps) for size, steps in zip(options.decode, options.steps)]
    best, search = best_settings(options, peers, figures)
    if options.json and len(options.models) == 1 and not options.settings_from:
        # For --settings-from, should the comparison be interrupted.
        settings = [{"figure": f.name, "peers": {name: {"setting": best[name][f.name]} for name in peers}} for f in figures]
        options.json.write_text(json.dumps({"search": search, "figures": settings}, indent=1) + "\n", encoding="utf-8")

    backend = ""
    for round_number in range(options.rounds):
        for figure in figures:
            backend = figure.measure_ours(options)
            for name, peer in peers.items():
                figure.measure_peer(peer, best[name][figure.name])
            # What an interrupted run leaves.
            rates = ", ".join(f"{name} {rates[-1]:.1f}" for name, rates in figure.peers.items())
            log(f"round {round_number + 1} of {options.rounds}: {figure.name}: kvblend {figure.ours[-1]:.1f}, {rates} tok/s")
    result = {"machine": machine, "arguments": sys.argv[1:], "kvblend": backend,
              "peers": {name: {"released_as": peer.released_as, "info": peer.info} for name, peer in peers.items()},
              "threads": options.threads, "rounds": options.rounds, "model": options.model.name, "search": search,
              "figures": [figure.result(best) for figure in figures]}
    if options.passages:
        longest = max((f for f in figures if not f.steps), key=lambda f: f.tokens)
        fastest = next(row["best_peer"] for row in result["figures"] if row["figure"] == longest.name)
        result["blended"] = compare_blended(options, peers[fastest], best[fastest][longest.name])
    print_result(options, result)
    return result


def print_result(options, result):
    print(support.machine_line(result["machine"]))
    print(f"kvblend: {result['kvblend']}")
    for name, peer in result["peers"].items():
        print(f"{name} of {peer['released_as']}: {peer['info']}")
        if name == LlamaCpp.name and "OPENMP = 1" not in peer["info"]:
            print("llama.cpp was built without OpenMP, which makes it slower: install libomp-dev and remove the virtual environment\n")
    print(f"medians of {options.rounds} rounds (smallest to largest), {options.threads} threads, {options.model.name}"
          + (", per second of processor time\n" if options.cpu_time else "\n"))
    print(tables(result, support.text_table))
    for row in result["figures"]:
        if "same_tokens" in row:
            print(f"\n{row['figure']}: the first {row['same_tokens']} of {row['decoded_tokens']} decoded tokens are the same", flush=True)


def main() -> int:
    options = parse_arguments()
    if options.install_only:
        for name in options.peers:
            ENGINES[NAMES[name]].install(options)
        return 0
    if not options.cpu_time:
        support.wait_until_idle(180)
    machine = support.machine()
    models = [support.need_file(model, "--model").resolve() for model in options.models]
    support.need_file(options.data, "--data")
    options.throughput_bench = support.need_binary(options.bin, "throughput_bench")
    options.ttft_bench = support.need_binary(options.bin, "ttft_bench")
    results = []
    for options.model in models:
        results.append(measure_model(options, machine))
    if options.json:
        result = results[0] if len(results) == 1 else results
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
