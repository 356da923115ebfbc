#!/usr/bin/env python3
"""Holds the speed of two builds of kvblend against each other: every bench in turns, old, new, new, old, ..., and ratios of best runs.

    tests/bench/compare_builds.py OLD/build/release/bin build/release/bin --model MODEL --data musique_dev.json

Prints the figures that differ by more than --noise, and how many do not. A ratio above 1 is a slower new build. Neighbours on a
virtual machine only ever make runs slower, so each build is taken at its best. Exits with 1 if a figure is slower beyond noise: by
more than --noise at best, and by more than half of that in the median. The machine should be doing nothing else.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

import bench_support as support

KERNELS = "BM_Linear/(1|32|300|1024)/|BM_[^L]|BM_LinearFromMemory"
LOWER_IS_BETTER = re.compile(r"seconds$|_s$|_ms$|^real_time$|bytes$")
HIGHER_IS_BETTER = re.compile(r"_per_second$")


def benches(options, scratch):
    """Name -> (command behind the binary's name, whether it writes JSON to `scratch`)."""
    inputs = [options.model, options.data]
    return {
        "ttft_bench": [*inputs, "--rounds", "1", "--json", scratch],
        "throughput_bench": [*inputs, "--json", scratch],
        "kernels_bench": [f"--benchmark_filter={KERNELS}", f"--benchmark_out={scratch}", "--benchmark_out_format=json"],
        "loading_bench": [*inputs, "--rounds", "3", "--depths", "2", "--disk", f"{scratch}.disk"],
        "disk_tier_bench": [f"{scratch}.tier", "--rounds", "3", "--entries", "20000"],
    }


def leaves(value, path=()):
    """(path, number) of every figure in a bench's JSON; lists of objects go by their names."""
    if isinstance(value, dict):
        if "median" in value:
            yield path, value["median"]
            return
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, dict):
                name = inner.get("name") or inner.get("mode") or index
                yield from leaves(inner, (*path, str(name)))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def table_figures(text):
    """The times of a printed table, by the words that their line begins with and by column."""
    for line in text.splitlines():
        label = re.match(r"\s*([A-Za-z][^\d]*(?:\d+ [a-z]+)?)", line)
        for column, match in enumerate(re.finditer(r"(\d+\.\d+)(?: ?(?:s|ms|us)\b)?", line)):
            if label:
                yield (label.group(1).strip(), f"{column}_s"), float(match.group(1))


def figures(folder, name, options) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "figures.json"
        text = support.run([support.need_binary(folder, name), *benches(options, out)[name]], f"{folder}: {name}")
        found = leaves(json.loads(out.read_text(encoding="utf-8"))) if out.exists() else table_figures(text)
        result = {}
        for path, value in found:
            if HIGHER_IS_BETTER.search(path[-1]) and value > 0:
                result["/".join(path)] = 1 / value
            elif LOWER_IS_BETTER.search(path[-1]) and value > 0:
                result["/".join(path)] = value
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=support.DEFAULT_MODEL)
    parser.add_argument("--data", type=pathlib.Path, default=support.DEFAULT_DATA)
    parser.add_argument("--bench", action="append", help="one of them; again for more (default: all)")
    parser.add_argument("--rounds", type=int, default=4, help="old, new, new, old is two (4)")
    parser.add_argument("--noise", type=float, default=0.05, help="share by which equal builds differ (0.05)")
    options = parser.parse_args()
    print(support.machine_line(support.machine()))
    slower = 0
    for name in options.bench or list(benches(options, pathlib.Path("figures"))):
        runs = {options.old: [], options.new: []}
        for turn in range(options.rounds):
            for folder in (options.old, options.new) if turn % 2 == 0 else (options.new, options.old):
                print(f"{name}: {folder}", file=sys.stderr, flush=True)
                runs[folder].append(figures(folder, name, options))
        rows, ratios = [], []
        for key in runs[options.old][0]:
            old, new = ([run[key] for run in runs[folder] if key in run] for folder in (options.old, options.new))
            if not old or not new:
                continue
            ratio, middle = min(new) / min(old), statistics.median(new) / statistics.median(old)
            ratios.append(ratio)
            worse = ratio > 1 + options.noise and middle > 1 + options.noise / 2
            slower += worse
            if abs(ratio - 1) > options.noise:
                rows.append([key, f"{min(old):.4g}", f"{min(new):.4g}", f"{ratio:.2f}", f"{middle:.2f}",
                             "slower" if worse else ""])
        print(f"\n{name}: {len(ratios)} figures, ratios' median {statistics.median(ratios):.3f}; beyond {options.noise:.0%}: {len(rows)}")
        if rows:
            print(support.text_table(["figure", "old", "new", "new / old", "of medians", ""], sorted(rows, key=lambda row: float(row[3]))))
    return 1 if slower else 0


support.main_with_errors(main)
