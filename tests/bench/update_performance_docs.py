#!/usr/bin/env python3
"""Measures, and writes the tables of docs/performance.md and the pages beside it.

    tests/bench/update_performance_docs.py                    # kernels, throughput, ttft: about 10 minutes
    tests/bench/update_performance_docs.py --sections peer    # against other engines: about 40 minutes, the first time more
    tests/bench/update_performance_docs.py --sections peer-int8    # the same with --gemm int8

Every section lies between <!-- begin: NAME --> and <!-- end: NAME -->; what stands there is replaced by the new tables with
machine, date and command, all else in the file stays. Sections that are not asked for stay too. The machine should be doing
nothing else: a table from a busy one says so. Needs the release build's kernels_bench, throughput_bench and ttft_bench.
"""
import argparse
import json
import pathlib
import re
import shlex
import sys

import bench_support as support
from bench_support import BenchError

# The page of every section.
PAGES = {"kernels": "docs/cpu-kernels.md", "throughput": "docs/performance.md", "ttft": "docs/performance.md",
         "peer": "docs/engine-comparison.md", "peer-int8": "docs/engine-comparison.md"}
SECTIONS = list(PAGES)
LINEAR_ROWS = "1|32|300|1024|6000"
KERNELS_FILTER = f"BM_Linear/({LINEAR_ROWS})/|BM_[^L]|BM_LinearFromMemory"
# Arguments of a benchmark -> what they are.
SIZES = [
    (r"Linear/(\d+)/(\d+)/(\d+)", r"\1 x \2 -> \3"),
    (r"ExpertLinear/(\d+)", r"\1 x 2048 -> 1536, 8 of 128 experts each, in 4 bits"),
    (r"TolerantLinearOfCodes/(\d+)/(\d+)/(\d+)", r"\1 x \2 -> \3, weights in 4 bits"),
    (r"LinearFromMemory/(\d+)", r"\1 x 576 -> 3072, 60 matrices one after the other"),
    (r"DecodeAttentionFromMemory/sequences:(\d+)/tokens:(\d+)/page:(\d+)/in_order:1",
     r"\1 x \2 tokens, 30 layers, pages of \3 in order"),
    (r"DecodeAttentionFromMemory/sequences:(\d+)/tokens:(\d+)/page:(\d+)/in_order:0",
     r"\1 x \2 tokens, 30 layers, pages of \3 shuffled"),
    (r"SelectiveAttention/6000", "6000 rows (full prefill)"),
    (r"SelectiveAttention/1", "1 row (decode)"),
    (r"SelectiveAttention/(\d+)", r"\1 gathered rows"),
    (r"AttentionMass/(\d+)", r"last \1 rows"),
    (r"SelectiveAttentionWithMass/(\d+)", r"last \1 rows"),
    (r"KvLoad/\d+", "6000 tokens, 30 layers, from {label}"),
    (r"KvLoadCorrected/.*", "6000 tokens, 30 layers, from {label}"),
    (r"KvLoadInt8Pages/\d+", "6000 tokens, 30 layers, from {label}"),
    (r"SpreadDeviation/(\d+)", r"\1% of 6000 tokens, 30 layers, to the others"),
    (r"KvScatter/0", "6000 tokens, interleaved"),
    (r"KvScatter/1", "6000 tokens, split halves"),
    (r"EncodeKv/0", "6000 tokens of K to int8"),
    (r"EncodeKv/1", "6000 tokens of V to int8"),
    (r"RmsNorm|Rope", "6000 x 576"),
    (r"GatedActivation", "6000 x 1536"),
]
SHARES = [("of_peak", "of peak"), ("of_onednn", "of bare oneDNN"), ("of_read", "of reading"), ("of_copy", "of a copy")]


def shown(command, options) -> str:
    """The command as a reader types it, from the project's root."""
    words = []
    for word in map(str, command):
        for path, name in ((options.bin, "build/release/bin"), (options.model, "MODEL"), (options.peer_settings, "SETTINGS"),
                           (support.ROOT, ".")):
            word = word.replace(str(path), name)
        words.append(shlex.quote(word.removeprefix("./")))
    return " ".join(words)


def head(command, options, note="") -> str:
    return f"{support.machine_line(options.machine)}{note}.\n\n    {shown(command, options)}\n"


def duration(nanoseconds) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= unit:
            return f"{support.number(nanoseconds / unit)} {name}"
    return f"{nanoseconds:.0f} ns"


def kernels(options):
    command = [support.need_binary(options.bin, "kernels_bench"), f"--benchmark_filter={KERNELS_FILTER}",
               "--benchmark_min_time=0.1", f"--benchmark_repetitions={options.rounds}"]
    if options.threads:
        command.append(f"--threads={options.threads}")
    figures = support.measured_json([*command, "--benchmark_out_format=json"], "kernels_bench", last="--benchmark_out=")
    context = figures["context"]
    rows = []
    for row in figures["benchmarks"]:
        if options.rounds > 1 and row.get("aggregate_name") != "median":
            continue
        if row.get("error_occurred"):
            raise BenchError(f"kernels_bench: {row['name']}: {row.get('error_message')}")
        name = row["run_name"].removeprefix("BM_").removesuffix("/real_time")
        size = next((re.sub(pattern, text, name) for pattern, text in SIZES if re.fullmatch(pattern, name)), "")
        counters = {key: float(row[key]) for key in ("GFLOP/s", "GB/s", *dict(SHARES)) if row.get(key)}
        # What bounds it: memory where bytes are counted, unless the arithmetic comes nearer to its own peak.
        by_bytes = "GB/s" in counters and counters.get("of_peak", 0) < max(counters.get("of_read", 0),
                                                                           counters.get("of_copy", 0))
        if "GB/s" not in counters and "GFLOP/s" not in counters:
            continue  # what a loop of the thread pool costs, which has no peak
        unit = "GB/s" if by_bytes or "GFLOP/s" not in counters else "GFLOP/s"
        shares = [f"{counters[key]:.0%} {text}" for key, text in SHARES if key in counters
                  and (key in ("of_read", "of_copy")) == (unit == "GB/s")]
        rows.append([name.split("/")[0], size.format(label=row.get("label", "")), duration(row["real_time"]),
                     f"{support.number(counters[unit])} {unit}", ", ".join(shares)])
    peaks = (f"Peaks of this run: {float(context['gemm_peak_gflops']):,.0f} GFLOP/s, copying "
             f"{float(context['copy_peak_gbps']):.1f} GB/s (read and written), reading {float(context['read_peak_gbps']):.1f} "
             f"GB/s. {context['backend']}. Medians of {options.rounds} repetitions.")
    return (head(command, options) + "\n" + peaks + "\n\n"
            + support.markdown_table(["operation", "size", "time", "figure", "share"], rows))


def throughput(options):
    command = [support.need_binary(options.bin, "throughput_bench"), options.model, options.data, "--rounds", options.rounds,
               "--threads", options.threads, "--json"]
    figures = support.measured_json(command, "throughput_bench")
    rows = []
    for row in figures.get("prefill", []):
        rows.append([f"full prefill of {row['tokens']:,} tokens", support.spread(row["tokens_per_second"]) + " tok/s",
                     f"{row['seconds']['median']:.3f} s to the first token"])
    for row in figures.get("decode", []):
        rows.append([f"decoding behind {row['context']:,} tokens", support.spread(row["tokens_per_second"]) + " tok/s",
                     f"{row['steps']} tokens"])
    batch = figures.get("batch")
    if batch:
        rows.append([f"decoding {batch['requests']} requests together behind {batch['context']:,} tokens",
                     support.spread(batch["tokens_per_second"]) + " tok/s",
                     f"{batch['ratio']['median']:.2f} times one alone"])
    load = figures.get("load")
    if load:
        rows.append(["loading the model, file in the page cache", support.spread(load["seconds"]) + " s",
                     f"{load['seconds_without_self_check']['median']:.2f} s without the self-check"])
    memory = figures.get("memory")
    if memory:
        rows.append([f"peak resident memory, one request of {memory['tokens']:,} tokens",
                     f"{memory['peak_bytes'] / 1e6:,.0f} MB", f"{memory['peak_bytes_loaded'] / 1e6:,.0f} MB before it"])
    note = f"; {figures['backend']}, {options.model.name}, pages in {figures['kv_dtype']}"
    return (head([*command[:-1]], options, note) + f"\nMedians of {options.rounds} rounds (smallest to largest).\n\n"
            + support.markdown_table(["what", "figure", ""], rows))


def ttft(options):
    command = [support.need_binary(options.bin, "ttft_bench"), options.model, options.data, "--passages", 10, "--rounds",
               options.rounds, "--threads", options.threads, "--json"]
    figures = support.measured_json(command, "ttft_bench")
    full = next(row for row in figures["modes"] if row["mode"] == "full")["ttft_seconds"]["median"]
    rows = [[f"`{row['mode']}`", support.spread(row["ttft_seconds"]), f"{full / row['ttft_seconds']['median']:.1f}x",
             f"{row['load_seconds']:.3f}", f"{row['select_seconds']:.3f}", f"{row['prefill_seconds']:.3f}",
             row["recomputed_tokens"]] for row in figures["modes"]]
    note = f"; {figures['backend']}, {options.model.name}, chunks stored as {figures['chunk_format']} in memory"
    return (head(command[:-1], options, note)
            + f"\nTen passages, {figures['prompt_tokens']:,} tokens; seconds, medians of {options.rounds} rounds.\n\n"
            + support.markdown_table(["mode", "to the first token", "sooner than full prefill", "loading", "selecting",
                                      "computing", "recomputed tokens"], rows))


def peer(options, gemm=None):
    import peers
    command = [support.ROOT / "tests/bench/peers.py", "--model", options.model, "--rounds", options.rounds]
    if gemm:
        command += ["--gemm", gemm]
    if options.threads:
        command += ["--threads", options.threads]
    if options.peer_settings:
        command += ["--settings-from", options.peer_settings]
    if options.peer_json:
        figures = json.loads(support.need_file(options.peer_json, "--peer-json").read_text(encoding="utf-8"))
        options.machine = figures["machine"]
        command = [command[0], *figures["arguments"]]  # of that run
    else:
        real = [sys.executable, *command, "--bin", options.bin, "--data", options.data]
        if options.peer_venv:
            real += ["--venv", options.peer_venv]
        figures = support.measured_json([*real, "--json"], "peers.py", show_progress=True)
    note = f"; {figures['kvblend']}; {peers.peers_line(figures)}; {figures['threads']} threads each"
    same = [f"{row['figure']}: {row['same_tokens']} of {row['decoded_tokens']}" for row in figures["figures"]
            if "same_tokens" in row]
    same = f"\n\nDecoded tokens that are the same, from the first ({figures['model']} against the best peer): " + \
        "; ".join(same) + "." if same else ""
    return (head(command, options, note) + f"\nMedians of {figures['rounds']} rounds (smallest to largest), in turn.\n\n"
            + peers.tables(figures, support.markdown_table) + same)


def replace_section(text, name, content) -> str:
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise BenchError(f"the file must have {begin} and {end} once each, in this order")
    before, rest = text.split(begin)
    return before + begin + "\n" + content.strip() + "\n" + end + rest.split(end)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", type=lambda text: text.split(","), default=SECTIONS[:3],
                        help=f"which of {', '.join(SECTIONS)} to measure and write (default: all but those with other engines)")
    parser.add_argument("--model", type=pathlib.Path, default=support.DEFAULT_MODEL, help="GGUF file (default: %(default)s)")
    parser.add_argument("--data", type=pathlib.Path, default=support.DEFAULT_DATA, help="questions with passages (default: %(default)s)")
    parser.add_argument("--bin", type=pathlib.Path, default=support.DEFAULT_BIN, help="kvblend's benches (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="0: one per processor (default)")
    parser.add_argument("--rounds", type=int, default=5, help="of each (default: %(default)s)")
    parser.add_argument("--peer-venv", type=pathlib.Path, help="virtual environment with llama.cpp (default: peers.py's)")
    parser.add_argument("--peer-settings", type=pathlib.Path,
                        help="the peers' settings from an earlier result of peers.py --json")
    parser.add_argument("--peer-json", type=pathlib.Path, help="an earlier result of peers.py --json instead of measuring")
    parser.add_argument("--file", type=pathlib.Path, help="what to write into (default: the section's own page in docs)")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"--sections has '{unknown[0]}'; allowed: {', '.join(SECTIONS)}")
    if options.threads < 0 or options.rounds < 1:
        parser.error("--threads: allowed: 0 or more; --rounds: 1 or more")
    if set(options.sections) - {"kernels"}:
        options.model = support.need_file(options.model, "--model")
    support.need_file(options.data, "--data")
    files = {name: support.need_file(options.file or support.ROOT / PAGES[name], "--file") for name in options.sections}
    measure = {"kernels": kernels, "throughput": throughput, "ttft": ttft, "peer": peer,
               "peer-int8": lambda options: peer(options, "int8")}
    support.wait_until_idle(180)
    options.machine = support.machine()  # once: a section's own load is no other's
    for name in options.sections:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        content = measure[name](options)
        # Written at once, so that an interrupted run keeps what it has.
        text = replace_section(files[name].read_text(encoding="utf-8"), name, content)
        files[name].write_text(text, encoding="utf-8")
        print(f"{files[name]}: wrote {name}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
