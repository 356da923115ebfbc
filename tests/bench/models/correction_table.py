#!/usr/bin/env python3
"""The tables of docs/quality.md, "How far a correction goes": what a learned correction is worth at other lengths, in
other chunk formats and over longer answers than it is usually measured at.

    tests/bench/models/correction_table.py --fit musique_dev.json hotpotqa_dev.json --first 24 --data musique_dev.json 2wikimqa_dev.json \\
        --case 5 --case 10:n=12 --case 5:format=int4 --case 5:tokens=128,n=12

First the correction is fitted on the questions of --fit from --first on (--correction FILE takes one that is there), then
each case asks the first --n questions of every file. A case is a number of passages, 0 for all, and behind it what
differs from the usual: n questions, the format of stored chunks, over how many of full prefill's tokens KL is the mean,
or join=K: behind a question's own passages stand those of the next K - 1. Each row of --rows is measured as the chunks are
stored and with the correction, against CacheBlend as published on the same questions; --system has them asked with
another system text than the correction was fitted behind. What is fitted and measured stays in FOLDER, question by
question, so the same command goes on after any end; FOLDER/corrections.md has the tables, --table only writes them.
"""
import argparse
import hashlib
import itertools
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench_support as support

ROWS = ["reuse", "query:0.02", "query:0.05", "query:0.15"]
AGAINST = "cacheblend"
DEFAULT_CASES = ["5", "10:n=12", "5:format=int4", "5:tokens=128,n=12"]


class Case:
    """PASSAGES[:KEY=VALUE,...]"""

    def __init__(self, text):
        passages, _, rest = text.partition(":")
        self.n, self.format, self.tokens, self.join = None, "int8", 16, 1
        try:
            self.passages = int(passages)
            for part in filter(None, rest.split(",")):
                key, value = part.split("=")
                if key not in ("n", "format", "tokens", "join"):
                    raise ValueError
                setattr(self, key, value if key == "format" else int(value))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"'{text}'; allowed: PASSAGES[:KEY=VALUE,...] with n, format, tokens and join") from None
        joined = f"-join{self.join}" if self.join > 1 else ""
        self.name = re.sub(r"[^a-z0-9]+", "-", f"{self.passages}-{self.format}-{self.tokens}{joined}")

    def title(self) -> str:
        passages = f"{self.passages} passages" if self.passages else "all passages"
        joined = f" of {self.join} questions" if self.join > 1 else ""
        return f"{passages}{joined}, {self.format} chunks, KL over {self.tokens} tokens"

    def data(self, options) -> list:
        """The questions as this case asks them: the files themselves, or copies under the same names."""
        if self.join == 1 and not options.system:
            return options.data
        system = {"system": options.system} if options.system else {}

        def change(questions):
            passages = [question["ctxs"] for question in questions] * 2  # the last question's next is the first
            return [{**question, **system, "ctxs": list(itertools.chain(*passages[i:i + self.join]))}
                    for i, question in enumerate(questions)]

        folder = options.folder / f"data-join{self.join}-{digest(options.system)}"
        return support.changed_questions(options.data, folder, change)


def digest(text) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fit(options):
    if options.correction.is_file():
        return
    command = [support.need_binary(options.bin, "kvblend"), "calibrate", "--model", options.model, "--correction", "none",
               "--data", *options.fit, "--first", options.first, "--held-out", "0.2",
               "--passages", 5, "--output", options.correction, "--resume", options.correction.with_suffix(".moments")]
    support.run(command, "kvblend calibrate", show_progress=True)


def results_file(options, case) -> pathlib.Path:
    # Results of other rows or prompts cannot stand in one file.
    what = [] if options.rows == ROWS else [digest(",".join(options.rows))]
    what += [digest(options.system)] if options.system else []
    return options.folder / ".".join([options.model.name, "corrections", case.name, *what, "jsonl"])


def measure(options, case):
    rows = [f"{row}{kind}" for row in options.rows for kind in ("", ":uncorrected")]
    command = [support.need_binary(options.bin, "kvblend"), "bench", "--model", options.model, "--no-self-check",
               "--threads", options.threads, "--correction", options.correction, "--chunk-format", case.format,
               "--rows", ",".join(rows), "--against", AGAINST, "--measure", "kl", "--kl-tokens", case.tokens,
               "--n", case.n or options.n, "--reference-cache", options.folder / "references",
               "--resume", results_file(options, case), "--data", *case.data(options)]
    if case.passages:
        command += ["--passages", case.passages]
    print(f"{case.title()}: {case.n or options.n} questions of each file", flush=True)
    support.run(command, "kvblend bench", show_progress=True)


def with_interval(value, interval, digits) -> str:
    return f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval else f"{value:.{digits}f}"


def row_lines(rows) -> list:
    """One line for each row as stored and corrected, of one data file."""
    kept = {(row["mode"], row["policy"], row.get("ratio"), row["anchored"], bool(row.get("corrected"))): row for row in rows}
    lines = []
    for (mode, policy, ratio, anchored, corrected), after in kept.items():
        before = kept.get((mode, policy, ratio, anchored, False))
        if not corrected or before is None:
            continue
        share = "" if ratio is None else f" {ratio:g}"
        lines.append(["nothing" if mode == "reuse" else f"`{policy}`{share}", after["n"], f"{before['kl_mean']:.4f}",
                      with_interval(after["kl_mean"], after["ci95"]["kl_mean"], 4), f"{after['kl_median']:.4f}",
                      f"{after['kl_mean'] / before['kl_mean']:.2f}", f"{before['against']['kl_ratio']:.2f}",
                      with_interval(after["against"]["kl_ratio"], after["against"]["ci95"]["kl_ratio"], 2),
                      f"{before['top1_agreement']:.3f}", f"{after['top1_agreement']:.3f}"])
    for row in rows:
        if row["policy"] == "hkvd" and not row["anchored"]:
            lines.append(["CacheBlend 0.15", row["n"], f"{row['kl_mean']:.4f}", "", "", "", "", "",
                          f"{row['top1_agreement']:.3f}", ""])
    return lines


def case_tables(options, case) -> str:
    path = results_file(options, case)
    if not path.is_file() or path.read_bytes().count(b"\n") < 3:  # the settings, and two questions for an interval
        return ""
    rows = [json.loads(line) for line in support.run(
        [support.need_binary(options.bin, "kvblend"), "bench", "--merge", path, "--against", AGAINST, "--json", "-"],
        "kvblend bench --merge").splitlines()]
    header = ["recomputed", "questions", "as stored", "corrected", "median", "of as stored", "of CacheBlend's, as stored",
              "corrected", "agreement, as stored", "corrected"]
    parts = []
    for label in dict.fromkeys(row["data"] for row in rows):
        lines = row_lines([row for row in rows if row["data"] == label])
        parts.append(f"{case.title()}, {label}:\n\n{support.markdown_table(header, lines)}\n")
    return "\n".join(parts)


def write_tables(options) -> str:
    parts = [case_tables(options, case) for case in options.case]
    text = support.machine_line(support.machine()).split(";")[0] + "\n\n" + "\n".join(filter(None, parts))
    support.write_whole(options.folder / "corrections.md", text)
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=support.DEFAULT_MODEL, help="GGUF file (default: %(default)s)")
    parser.add_argument("--correction", type=pathlib.Path, help="a correction that is there already, instead of --fit")
    parser.add_argument("--fit", type=pathlib.Path, nargs="+", help="questions to fit on; ask others, or others of them")
    parser.add_argument("--first", type=int, default=24, help="of each file of --fit, the first to fit on (default: %(default)s)")
    parser.add_argument("--data", type=pathlib.Path, nargs="+", required=True, help="questions to ask")
    parser.add_argument("--n", type=int, default=24, help="questions of each file (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", default=ROWS, help="as kvblend bench has them (default: %(default)s)")
    parser.add_argument("--system", default="", metavar="TEXT", help="system text to ask with (default: kvblend bench's own)")
    parser.add_argument("--case", type=Case, action="append", help=f"repeat for more (default: {' '.join(DEFAULT_CASES)})")
    support.add_table_arguments(parser)
    options = parser.parse_args()
    options.case = options.case or [Case(text) for text in DEFAULT_CASES]
    if (options.correction is None) == (options.fit is None):
        parser.error("either --fit or --correction")
    support.need_file(options.model, "--model")
    if options.correction:
        support.need_file(options.correction, "--correction")
    else:
        names = "-".join(support.need_file(path, "--fit").stem for path in options.fit)
        options.correction = options.folder / f"{options.model.name}.{names}.kvcorrection"
    for path in options.data:
        support.need_file(path, "--data")
    return options


def main() -> int:
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        fit(options)
        for case in options.case:
            measure(options, case)
            write_tables(options)
    print(write_tables(options))
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
