#!/usr/bin/env python3
"""How much a server bears: the highest rate with blending and without it, and many clients at once beside an older build.

    tests/bench/server/load.py --parts rates
    tests/bench/server/load.py --parts clients --older OLD/build/release/bin

rates: questions of --passages passages each come at random moments (Poisson), passages by Zipf's law with exponent 1, all of them
stored; for each of --modes the highest rate at which the 95th percentile of the time to the first token stays within --within times
what it is without load, or, with --at, what it is at one rate.
clients: --clients clients ask one question after the other, of --older's server and of this build's, without guessed tokens
and with them, in turns; requests per second, and the time between an answer's tokens.
"""
import json
import pathlib
import statistics
import tempfile

from bench_server import Server, bench_arguments, server, support

QUIET = ("--correction", "none", "--learn-correction", "off")  # nothing is computed but what is asked for


def serve(running, options, *flags):
    lines = support.run(
        [pathlib.Path(options.bin) / "kvblend", "bench", "serve", "--server", running.address, "--data", options.data, "--passages",
         options.passages, "--output-tokens", options.output_tokens, "--zipf", 1, "--json", "-", *flags], "bench serve",
        show_progress=True)
    return [json.loads(line) for line in lines.splitlines()]


def rates(options, folder):
    with server(options, folder, *QUIET, "--max-context-tokens", options.context) as running:
        found = serve(running, options, "--rows", options.modes, "--search", options.within,
                      "--requests", options.requests, "--unloaded", 20)
    highest = {row["mode"]: row for row in found if row["kind"] == "highest_rate"}
    unloaded = {row["mode"]: row for row in found if row["kind"] == "unloaded"}
    base = highest[options.modes.split(",")[0]]["highest"]
    rows = [["mode", "p95 without load", "highest rate", "times the first"]]
    for mode, row in highest.items():
        rows.append([mode, f"{unloaded[mode]['ttft_s']['p95']:.3f} s", f"{row['highest']:.3f} per s", f"{row['highest'] / base:.2f}x"])
    print(support.markdown_table(rows[0], rows[1:]), flush=True)
    return found


def at_rates(options, folder):
    """Whether each mode bears its rate: a search's question asked once, so with more requests."""
    modes, wanted = options.modes.split(","), [float(rate) for rate in options.at.split(",")]
    if len(modes) != len(wanted):
        raise support.BenchError(f"--at has {len(wanted)} rates, --modes {len(modes)} modes; one for each is needed")
    found = []
    with server(options, folder, *QUIET, "--max-context-tokens", options.context) as running:
        for mode, rate in zip(modes, wanted):
            found += serve(running, options, "--rows", mode, "--rate", rate, "--requests", options.requests, "--unloaded", 20)
    table = []
    for mode, rate in zip(modes, wanted):
        rows = {row["kind"]: row for row in found if row.get("mode") == mode}
        alone, loaded = rows["unloaded"]["ttft_s"]["p95"], rows["rate"]["ttft_s"]["p95"]
        table.append([mode, f"{alone:.3f} s", f"{rate:g} per s", f"{loaded:.3f} s", f"{loaded / alone:.2f}x", f"{rate / wanted[0]:.2f}x"])
    print(support.markdown_table(["mode", "p95 without load", "rate", "p95 at it", "of without", "times the first"], table), flush=True)
    return found


def clients(options, folder):
    older = support.need_binary(options.older, "kvblend-server").parent
    builds = {"older build": (older, []), "without guesses": (options.bin, [*QUIET, "--max-draft-tokens", 0]),
              "with guesses": (options.bin, QUIET)}
    found = {name: [] for name in builds}
    for turn in range(options.rounds):
        for name in list(builds) if turn % 2 == 0 else reversed(list(builds)):
            folder_of_programs, flags = builds[name]
            running = Server(folder_of_programs, options.model, folder, "--max-context-tokens", options.context, *flags,
                             with_http_api=folder_of_programs != older)
            try:
                row = serve(running, options, "--rows", options.mode, "--clients", options.clients, "--distinct", options.clients,
                            "--requests", options.requests)[-1]
            finally:
                running.stop()
            if row["errors"]:
                raise support.BenchError(f"{name}: requests failed: {row['errors']}")
            found[name].append({"answers_per_second": row["answers_per_second"], "inter_token_s": row["inter_token_s"],
                                "ttft_s": row["ttft_s"]})
    base = statistics.median(run["answers_per_second"] for run in found["older build"])
    rows = [["server", "answers per second", "of the older build's", "between tokens, p50", "p99", "first token, p50"]]
    for name, runs in found.items():
        speed = support.samples([run["answers_per_second"] for run in runs])
        middle = {key: statistics.median(run["inter_token_s"][key] for run in runs) for key in ("p50", "p99")}
        first = statistics.median(run["ttft_s"]["p50"] for run in runs)
        rows.append([name, support.spread(speed), f"{speed['median'] / base:.2f}x", f"{1000 * middle['p50']:.1f} ms",
                     f"{1000 * middle['p99']:.0f} ms", f"{first:.2f} s"])
    print(support.markdown_table(rows[0], rows[1:]), flush=True)
    return found


def main():
    parser = bench_arguments(__doc__)
    parser.add_argument("--parts", default="rates", help="rates, clients")
    parser.add_argument("--modes", default="full,query:0.15,query:0.05", help="of rates; the first is what others are compared with")
    parser.add_argument("--within", type=float, default=3)
    parser.add_argument("--at", help="of rates: R,... asks whether each of --modes bears its rate instead of searching")
    parser.add_argument("--older", help="folder of an older build's programs (clients)")
    parser.add_argument("--mode", default="query:0.15", help="of clients")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--output-tokens", default="32")
    parser.add_argument("--requests", type=int, default=60, help="of each try, and of each round")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    support.need_file(options.model, "--model")
    support.need_file(options.data, "--data")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts.split(","):
            if part == "rates":
                figures[part] = (at_rates if options.at else rates)(options, folder)
            elif part == "clients":
                if not options.older:
                    raise support.BenchError("--parts clients needs --older, the folder of another build's programs")
                figures[part] = clients(options, folder)
            else:
                raise support.BenchError(f"--parts is {part}; allowed: rates, clients")
    print(support.machine_line(support.machine()))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    support.main_with_errors(main)
