#!/usr/bin/env python3
"""Makes Markdown tables of gpu_bench's report: tables.py REPORT [--write FILE].

    tests/gpu/run.sh --stages bench --out gpu_bench.json
    tests/bench/gpu/tables.py gpu_bench.json --write docs/gpu-performance.md

--write replaces what stands in FILE between <!-- begin: gpu --> and <!-- end: gpu -->; without it the tables are printed.
"""

import argparse
import json
import pathlib
import sys

BEGIN, END = "<!-- begin: gpu -->\n", "<!-- end: gpu -->\n"


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def milliseconds(seconds):
    return f"{seconds * 1e3:.1f}"


def percent(share):
    return f"{share:.0%}"


def operations_table(report):
    text = row("operation", "shape", "us", "of the product", "of the copy") + "|---|---|--:|--:|--:|\n"
    for line in report["operations"]:
        # What an operation is bound by says more than how little of the other it uses.
        product = line.get("share_of_gemm_peak")
        copy = line["share_of_copy_peak"]
        text += row(line["operation"], line["shape"], f"{line['seconds'] * 1e6:.1f}",
                    percent(product) if product is not None and product >= 0.05 else "", percent(copy))
    return text


def blended_name(blended):
    name = "nothing recomputed" if blended["policy"] == "none" else f"`{blended['policy']}` {blended['ratio']:.2f}"
    return name + (", corrected" if blended["corrected"] else "")


def prefill_table(report):
    text = row("model", "prefill", "first token, ms", "sooner than full", "recomputed", "loading alone, ms", "computing alone, ms")
    text += "|---|---|--:|--:|--:|--:|--:|\n"
    for model in report["models"]:
        full = model["full_prefill"]
        text += row(model["model"], f"full, {model['tokens']} tokens: {percent(full['share_of_gemm_peak'])} of the product",
                    milliseconds(full["ttft_seconds"]), "1.0x", "", "", "")
        for blended in model["blended"]:
            text += row("", blended_name(blended), milliseconds(blended["ttft_seconds"]),
                        f"{blended['times_faster_than_full']:.1f}x", blended["recomputed_tokens"],
                        milliseconds(blended["load_seconds"]), milliseconds(blended["compute_seconds"]))
    return text


def decode_table(report):
    text = row("model", "answers", "step, ms", "tokens/s", "of the copy") + "|---|--:|--:|--:|--:|\n"
    for model in report["models"]:
        for decode in model["decode"]:
            text += row(model["model"], decode["sequences"], f"{decode['step_seconds'] * 1e3:.2f}",
                        f"{decode['tokens_per_second']:.0f}", percent(decode["share_of_copy_peak"]))
    return text


def tables(report):
    head = (f"{report['device']}, driver for CUDA {report['cuda_driver'] // 1000}.{report['cuda_driver'] % 1000 // 10}, "
            f"{report['date']}; `tests/gpu/run.sh`. The fastest bf16 product of the same run: "
            f"{report['gemm_peak_flops_per_second'] / 1e12:.0f} TFLOP/s; the fastest copy: "
            f"{report['copy_peak_bytes_per_second'] / 1e12:.2f} TB/s, reading and writing. From the host's memory come "
            f"{report['upload_bytes_per_second'] / 1e9:.0f} GB/s, and enqueuing a kernel takes the host "
            f"{report['enqueue_seconds'] * 1e6:.1f} us.\n")
    if report["problems"]:
        head += "\nNot as it should be: " + "; ".join(report["problems"]) + "\n"
    return "\n".join([head, prefill_table(report), decode_table(report), operations_table(report)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    text = tables(json.loads(arguments.report.read_text(encoding="utf-8")))
    if arguments.write is None:
        print(text, end="")
        return
    page = arguments.write.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"tables.py: {arguments.write} lacks one '{BEGIN.strip()}' and one '{END.strip()}'")
    before, rest = page.split(BEGIN)
    arguments.write.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
