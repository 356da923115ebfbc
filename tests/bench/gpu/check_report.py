"""Runs gpu_bench in tiny shapes and looks at its report: check_report.py BINARY [ARGUMENT...].

Everything that a report is read for is there and adds up; a wrong argument is refused. Times are not looked at.
"""

import json
import math
import subprocess
import sys

OPERATIONS = {"SelectiveAttention", "AttentionMass", "ValueLengths", "KvLoad", "CorrectKv", "KvScatter", "KvDeviation", "SpreadDeviation", "RmsNorm", "Rope", "GatedActivation",
              "GatherRows", "Linear"}


def check(condition, what):
    if not condition:
        sys.exit(f"check_report.py: {what}")


def finite(value, path="report"):
    if isinstance(value, dict):
        for name, part in value.items():
            finite(part, f"{path}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            finite(part, f"{path}[{index}]")
    elif isinstance(value, float):
        check(math.isfinite(value), f"{path} is {value}")
    else:
        check(value is not None, f"{path} is null")


def check_report(report):
    finite(report)
    for name in ("date", "device", "backend", "cuda_driver", "gemm_peak_flops_per_second", "copy_peak_bytes_per_second",
                 "upload_bytes_per_second", "enqueue_seconds"):
        check(name in report, f"{name} is missing")
    lines = report["operations"]
    found = {line["operation"] for line in lines}
    check(found == OPERATIONS, f"operations missing or unknown: {sorted(found ^ OPERATIONS)}")
    shapes = [(line["operation"], line["shape"]) for line in lines]
    check(len(shapes) == len(set(shapes)), "two lines of one operation and shape")
    for line in lines:
        name = f"{line['operation']}, {line['shape']}"
        check(0 < line["seconds_min"] <= line["seconds"] <= line["seconds_max"], f"{name}: times out of order")
        check(line["error"] <= line["error_bound"], f"{name}: error {line['error']}")
        check(line["bytes"] > 0, f"{name}: no bytes")
        product = line["share_of_copy_peak"] * report["copy_peak_bytes_per_second"] * line["seconds"]
        check(math.isclose(product, line["bytes"], rel_tol=1e-6), f"{name}: the share of the copy does not add up")
        if line["operation"] in ("SelectiveAttention", "AttentionMass", "Linear"):
            product = line["share_of_gemm_peak"] * report["gemm_peak_flops_per_second"] * line["seconds"]
            check(math.isclose(product, line["flops"], rel_tol=1e-6), f"{name}: the share of the product does not add up")
    check(report["problems"] == [], f"problems: {report['problems']}")
    check(report["models"], "no model")
    for model in report["models"]:
        check(model["full_prefill"]["ttft_seconds"] > 0, "full prefill took no time")
        check({blended["policy"] for blended in model["blended"]} == {"none", "query", "hkvd"}, "policies")
        check({blended["corrected"] for blended in model["blended"]} == {False, True}, "with and without a correction")
        check([decode["sequences"] for decode in model["decode"]][0] == 1 and len(model["decode"]) == 2, "decode")
        for decode in model["decode"]:
            check(0 < decode["step_seconds_min"] <= decode["step_seconds"] <= decode["step_seconds_max"], "steps out of order")
        for blended in model["blended"]:
            check((blended["recomputed_tokens"] > 0) == (blended["ratio"] > 0), "tokens are recomputed where a ratio asks for it")
            check(blended["recomputed_tokens"] < 0.2 * model["tokens"],
                  f"{blended['policy']}: recomputed {blended['recomputed_tokens']}")
            ratio = model["full_prefill"]["ttft_seconds"] / blended["ttft_seconds"]
            check(math.isclose(ratio, blended["times_faster_than_full"], rel_tol=1e-6), "times faster")


def main(binary, arguments):
    done = subprocess.run([binary, *(arguments or ["--tiny"])], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    check_report(json.loads(done.stdout))
    for wrong in ("--tiny=1", "--models=Nobody-7B", "--operations=Nothing", "--device=first"):
        done = subprocess.run([binary, wrong], capture_output=True, text=True, check=False)
        name = wrong.strip("-").partition("=")[0]
        check(done.returncode == 2 and name in done.stderr, f"{wrong}: accepted, or refused without a word")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
