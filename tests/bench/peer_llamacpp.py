#!/usr/bin/env python3
"""Measures kvblend against llama.cpp on this machine: same model file, same tokens, as many threads.

    tests/bench/peer_llamacpp.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --json peer.json

1. Installs llama-cpp-python, built from source with clang for this processor, in a virtual environment (minutes; once).
2. Search: measures llama.cpp in every combination of the settings below, to find its best one for each figure.
3. Comparison: kvblend and llama.cpp in turn, N rounds, each in a process of its own while the other does not run. Ratios
   are those of the medians; beside them the smallest and largest ratio of neighbours.

kvblend's prefill is its time to the first token, tokenization included; llama.cpp's is llama_decode and the logits. What is
best for llama.cpp may be another type of weights: Q8_0, requantized from the same file. Blended prompts (ttft_bench) are
held against llama.cpp's prefill of as many tokens. With several models each is measured so, one after the other; one whose
file has no chat template gets kvblend's format 'plain'.

Needs clang, OpenMP for clang (Debian: clang libomp-dev), python3 with venv, and kvblend's release build with
throughput_bench and ttft_bench. The machine should be doing nothing else.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import bench_support as support
from bench_support import BenchError

VERSION = "0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
HERE = pathlib.Path(__file__).resolve().parent
BLENDED_MODES = ["query 0.15", "query 0.05"]


def log(message):
    print(message, file=sys.stderr, flush=True)


# --- installing ---------------------------------------------------------------------------------------------------------


def installed_version(python) -> str:
    """Empty where there is none, because a build was interrupted for example."""
    if not python.is_file():
        return ""
    done = subprocess.run([python, "-c", "import llama_cpp; print(llama_cpp.__version__)"], capture_output=True, text=True)
    return done.stdout.strip()


def install(venv: pathlib.Path) -> pathlib.Path:
    """Python of the virtual environment, with llama.cpp built into it if it has none."""
    python = venv / "bin/python"
    version = installed_version(python)
    if not version:
        for tool in ("clang", "clang++"):
            if shutil.which(tool) is None:
                raise BenchError(f"{tool} is not installed (Debian: apt-get install clang libomp-dev)")
        log(f"building llama-cpp-python {VERSION} in {venv} (several minutes)")
        support.run([sys.executable, "-m", "venv", venv], "python3 -m venv")
        build(python)
        version = installed_version(python)
    if version != VERSION:
        raise BenchError(f"{venv} has llama-cpp-python '{version}'; wanted: {VERSION}. Remove it to have it built anew")
    return python


def build(python):
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    support.run([*pip, "-r", HERE / "peer_requirements.txt"], "pip install")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(f"llama-cpp-python=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
        pinned.flush()
        # No cache: it may hold a wheel that another compiler built. GCC 12 drops stores around AMX's tile configuration,
        # so that llama.cpp crashes where there is AMX.
        environment = dict(os.environ, CC="clang", CXX="clang++", CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
        support.run([*pip, "--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--require-hashes",
                     "-r", pinned.name], "building llama-cpp-python", env=environment)


def requantize(python, model, folder, threads, kind="q8_0") -> pathlib.Path:
    """The model with weights of another type (q8_0, f32), kept under `folder`."""
    with open(model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12] if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(file.read()).hexdigest()[:12]
    target = folder / f"{model.stem}.{digest}.{kind.upper()}.gguf"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(".partial")
        work(python, {"quantize": {"from": str(model), "to": str(temporary), "type": kind, "threads": threads}}, "requantizing")
        temporary.rename(target)
    return target


def work(python, job, what):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "GOMP_"))}
    return support.run_json([python, HERE / "peer_llamacpp_worker.py"], f"llama.cpp, {what}", input=json.dumps(job),
                            env=environment)


# --- llama.cpp ----------------------------------------------------------------------------------------------------------


class Peer:
    def __init__(self, options, python, tokens):
        self.options, self.python, self.tokens = options, python, tokens
        self.models = {"as given": options.model}
        if "q8_0" in options.weights:
            self.models["Q8_0"] = requantize(python, options.model, options.folder, options.threads)
        if "given" not in options.weights:
            del self.models["as given"]
        self.system_info = ""

    def settings(self):
        for weights, fa, kv, ubatch, repack in itertools.product(
                self.models, self.options.fa, self.options.kv, self.options.ubatch, self.options.repack):
            yield {"weights": weights, "fa": fa, "kv": kv, "ubatch": ubatch, "repack": bool(repack)}

    def measure(self, setting, tasks):
        job = {**setting, "model": str(self.models[setting["weights"]]), "threads": self.options.threads, "tasks": tasks,
               "cpu_time": self.options.cpu_time}
        del job["weights"]
        result = work(self.python, job, describe(setting))
        self.system_info = result["system_info"]
        return result["tasks"]

    def task(self, num_tokens, steps, warm_up, repeats):
        return {"tokens": self.tokens[:num_tokens] if num_tokens not in self.options.exact else
                self.options.exact[num_tokens], "steps": steps, "warm_up": warm_up, "repeats": repeats}

    def search(self, figures):
        """The best setting of each figure, and what every setting gave."""
        results = []
        sizes = sorted({figure.tokens for figure in figures})
        steps = {size: max([figure.steps for figure in figures if figure.tokens == size]) for size in sizes}
        for setting in self.settings():
            tasks = [self.task(size, steps[size], 1 if size <= 1024 else 0, 3 if size <= 1024 else 1) for size in sizes]
            row = {"setting": setting, "figures": {}}
            for size, result in zip(sizes, self.measure(setting, tasks)):
                for figure in figures:
                    if figure.tokens == size:
                        row["figures"][figure.name] = statistics.median(figure.rates_of_peer(result))
            results.append(row)
            log("  " + describe(setting) + ": " + ", ".join(f"{n} {v:.1f}" for n, v in row["figures"].items()))
        best = {f.name: max(results, key=lambda row: row["figures"][f.name])["setting"] for f in figures}
        return best, results


def describe(setting) -> str:
    return (f"weights {setting['weights']}, fa={setting['fa']}, KV {setting['kv']}, ubatch {setting['ubatch']}"
            + ("" if setting["repack"] else ", no repacking"))


# --- figures ------------------------------------------------------------------------------------------------------------


class Figure:
    """Tokens per second of prefill (steps 0) or of decoding `steps` tokens behind a prompt."""

    def __init__(self, tokens, steps):
        self.tokens, self.steps = tokens, steps
        self.name = f"decode behind {tokens}" if steps else f"prefill {tokens}"
        self.repeats = 3 if tokens <= 2048 else 1  # in each process
        self.ours, self.peers = [], []
        self.ids_ours, self.ids_peers = [], []

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
        self.peers.append(statistics.median(self.rates_of_peer(result)))
        self.ids_peers = result["token_ids"]

    def result(self, setting):
        ours, peers = support.samples(self.ours), support.samples(self.peers)
        pairs = [a / b for a, b in zip(self.ours, self.peers)]
        result = {"figure": self.name, "unit": "tok/s", "kvblend": ours, "llama.cpp": peers, "setting": setting,
                  "ratio": ours["median"] / peers["median"], "ratio_min": min(pairs), "ratio_max": max(pairs)}
        if self.steps:
            result["same_tokens"] = next((i for i, (a, b) in enumerate(zip(self.ids_ours, self.ids_peers)) if a != b),
                                         min(len(self.ids_ours), len(self.ids_peers)))
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
        rows.append({"mode": mode, "unit": "s", "kvblend": mine, "llama.cpp": theirs,
                     "ratio": theirs["median"] / mine["median"],
                     "ratio_min": min(b / a for a, b in zip(seconds, peers)),
                     "ratio_max": max(b / a for a, b in zip(seconds, peers)),
                     "speed_up_over_full": statistics.median(ours["full"]) / mine["median"]})
    return {"prompt_tokens": num_tokens, "setting": setting, "rows": rows}


# --- reports ------------------------------------------------------------------------------------------------------------


def tables(result, as_table):
    header = ["figure", "kvblend, tok/s", "llama.cpp, tok/s", "ratio", "llama.cpp's best setting"]
    rows = [[f["figure"], support.spread(f["kvblend"]), support.spread(f["llama.cpp"]),
             f"{f['ratio']:.1f} ({f['ratio_min']:.1f} to {f['ratio_max']:.1f})", describe(f["setting"])]
            for f in result["figures"]]
    parts = [as_table(header, rows)]
    blended = result.get("blended")
    if blended:
        header = [f"{blended['prompt_tokens']:,} tokens", "kvblend, s to first token", "llama.cpp, s", "ratio",
                  "over own full prefill"]
        rows = [[f["mode"], support.spread(f["kvblend"]), support.spread(f["llama.cpp"]),
                 f"{f['ratio']:.1f} ({f['ratio_min']:.1f} to {f['ratio_max']:.1f})", f"{f['speed_up_over_full']:.1f}"]
                for f in blended["rows"]]
        parts.append(as_table(header, rows))
    return "\n\n".join(parts)


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
    parser.add_argument("--venv", type=pathlib.Path, help="virtual environment (default: FOLDER/venv)")
    parser.add_argument("--install-only", action="store_true", help="build llama.cpp and stop")
    parser.add_argument("--threads", type=int, default=support.processors(), help="of both (default: %(default)s)")
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
                          ("repack", [0, 1])):
        for value in getattr(options, name):
            if value not in allowed:
                parser.error(f"--{name} has '{value}'; allowed: {', '.join(map(str, allowed))}")
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


def measure_model(options, python, machine) -> dict:
    options.format = [] if has_chat_template(options) else ["--chat-format", "plain"]
    options.exact = same_tokens_as_kvblend(options)
    peer = Peer(options, python, options.exact[max(options.exact)])
    figures = [Figure(size, 0) for size in options.prefill]
    figures += [Figure(size, steps) for size, steps in zip(options.decode, options.steps)]

    if options.settings_from:
        earlier = json.loads(support.need_file(options.settings_from, "--settings-from").read_text(encoding="utf-8"))
        best, search = {f["figure"]: f["setting"] for f in earlier["figures"]}, earlier["search"]
        missing = [figure.name for figure in figures if figure.name not in best]
        if missing:
            raise BenchError(f"{options.settings_from} has no setting for {', '.join(missing)}")
    else:
        log("searching llama.cpp's best settings, tok/s")
        best, search = peer.search(figures)
        if options.json and len(options.models) == 1:  # for --settings-from, should the comparison be interrupted
            settings = [{"figure": name, "setting": setting} for name, setting in best.items()]
            options.json.write_text(json.dumps({"search": search, "figures": settings}, indent=1) + "\n", encoding="utf-8")

    backend = ""
    for round_number in range(options.rounds):
        for figure in figures:
            log(f"round {round_number + 1} of {options.rounds}: {figure.name}")
            backend = figure.measure_ours(options)
            figure.measure_peer(peer, best[figure.name])
    result = {"machine": machine, "arguments": sys.argv[1:], "kvblend": backend, "llama_cpp_python": VERSION, "llama.cpp": peer.system_info,
              "threads": options.threads, "rounds": options.rounds, "model": options.model.name, "search": search,
              "figures": [figure.result(best[figure.name]) for figure in figures]}
    if options.passages:
        longest = max((f for f in figures if not f.steps), key=lambda f: f.tokens)
        result["blended"] = compare_blended(options, peer, best[longest.name])
    print_result(options, result)
    return result


def print_result(options, result):
    machine, backend, system_info = result["machine"], result["kvblend"], result["llama.cpp"]
    print(support.machine_line(machine))
    print(f"kvblend: {backend}\nllama.cpp of llama-cpp-python {VERSION}: {system_info}")
    print(f"medians of {options.rounds} rounds (smallest to largest), {options.threads} threads, {options.model.name}"
          + (", per second of processor time\n" if options.cpu_time else "\n"))
    if "OPENMP = 1" not in system_info:
        print("llama.cpp was built without OpenMP, which makes it slower: install libomp-dev and remove the virtual environment\n")
    print(tables(result, support.text_table))
    for row in result["figures"]:
        if "same_tokens" in row:
            print(f"\n{row['figure']}: the first {row['same_tokens']} of {row['decoded_tokens']} decoded tokens are the same", flush=True)


def main() -> int:
    options = parse_arguments()
    python = install(options.venv)
    if options.install_only:
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
        results.append(measure_model(options, python, machine))
    if options.json:
        result = results[0] if len(results) == 1 else results
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
