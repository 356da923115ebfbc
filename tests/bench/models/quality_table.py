#!/usr/bin/env python3
"""The table of docs/quality.md: how near each way of reuse comes to full prefill, for several models and data files.

    tests/bench/models/quality_table.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf \\
        --base-model models/gemma-3-270m-q4_k_m.gguf --data musique_dev.json 2wikimqa_dev.json

That is hours of computing, so everything is kept in FOLDER question by question, and the same command goes on after any
end. What matters most comes first: of each step of --steps, so many questions of each file, first the rows by which
schemes are judged, then the learned correction (where MODEL.kvcorrection lies beside the model), then the rest. All rows
are measured against full prefill of the same build; KL in nats is the mean over the 16 tokens that full prefill writes.
FOLDER/table.md is written anew after every part; --table only writes it. Behind a model's tables stands which prompts isolated
chunks break, that is, take further than BROKEN from full prefill, and what each row makes of just these.

A model that has learned no conversations (--base-model) gets prompts in the chat format 'plain' whose questions end with
"Answer:", because without it such models repeat the prompt, which is too easy to predict to tell schemes apart.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench_support as support

CUE = "\nAnswer:"
AGAINST = "cacheblend"
BROKEN = 0.35  # KL in nats with nothing recomputed
# Each group is a file of results of its own: results of other rows cannot stand in one file.
GROUPS = {
    "first": ["reuse", "query:0.05", "query:0.15", "hkvd:0.15", "reuse:isolated", "query:0.15:isolated"],
    "corrected": ["reuse", "query:0.05", "query:0.15"],
    "anchored": ["hkvd:0.05", "link", "random:0.05", "random:0.15"],
    "isolated": ["query:0.05:isolated", "hkvd:0.05:isolated", "link:isolated", "random:0.05:isolated",
                 "random:0.15:isolated"],
}


class Model:
    def __init__(self, path, is_base):
        self.path = support.need_file(path, "--base-model" if is_base else "--model")
        self.is_base = is_base
        self.correction = self.path.with_name(self.path.name + ".kvcorrection")


def data_with_cue(paths, folder):
    """The same questions with a cue at the end of the prompt, under the same names."""
    return support.changed_questions(paths, folder / "cue",
                                     lambda questions: [{**question, "cue": CUE} for question in questions])


def results_file(options, model, group) -> pathlib.Path:
    return options.folder / f"{model.path.name}.{group}.jsonl"


def measure(options, model, group, count):
    corrected = group == "corrected"
    if corrected and not model.correction.is_file():
        return
    data = data_with_cue(options.data, options.folder) if model.is_base else options.data
    command = [support.need_binary(options.bin, "kvblend"), "bench", "--model", model.path, "--no-self-check",
               "--threads", options.threads, "--correction", model.correction if corrected else "none",
               "--rows", ",".join(GROUPS[group]), "--against", AGAINST, "--measure", "kl,nll", "--n", count,
               "--reference-cache", options.folder / "references", "--resume", results_file(options, model, group),
               "--data", *data]
    if options.passages:
        command += ["--passages", options.passages]
    if model.is_base:
        command += ["--chat-format", "plain"]
    print(f"{model.path.name}: {group}, up to question {count}", flush=True)
    support.run(command, "kvblend bench", show_progress=True)


def summaries(options, model, group):
    path = results_file(options, model, group)
    if not path.is_file() or path.read_bytes().count(b"\n") < 3:  # the settings, and two questions for an interval
        return []
    return [json.loads(line) for line in support.run(
        [support.need_binary(options.bin, "kvblend"), "bench", "--merge", path, "--against", AGAINST, "--json", "-"],
        "kvblend bench --merge").splitlines()]


def row_name(row) -> str:
    if row["mode"] == "full":
        return "all"
    if row["mode"] == "reuse":
        return "nothing"
    ratio = "" if row.get("ratio") is None else f" {row['ratio']:g}"  # link recomputes so many tokens of each chunk
    return f"`{row['policy']}`{ratio}"


def cell(value, interval, digits=3) -> str:
    if value is None:
        return ""
    spread = f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval else ""
    return f"{value:.{digits}f}{spread}"


def table(options, model, label) -> str:
    lines, seen = [], set()
    for group in GROUPS:
        for row in summaries(options, model, group):
            corrected = group == "corrected" and bool(row.get("corrected"))
            chunks = ("" if row["mode"] == "full" else
                      ("anchored" if row["anchored"] else "isolated") + (", corrected" if corrected else ""))
            name = (row_name(row), chunks)
            if row["data"] != label or name in seen:
                continue
            seen.add(name)
            ci, against = row["ci95"], row["against"]
            is_reference = row["mode"] == "full" or against["kl_ratio"] == 1
            lines.append((chunks, [
                name[0], chunks, row["n"], cell(row["kl_mean"], ci["kl_mean"], 4), f"{row['kl_median']:.4f}",
                "" if is_reference else cell(against["kl_ratio"], against["ci95"]["kl_ratio"], 2),
                cell(row["top1_agreement"], ci["top1_agreement"]),
                cell(row["answer_nll_mean"], None), cell(against["answer_nll_difference"],
                                                         against["ci95"]["answer_nll_difference"])]))
    order = ["", "anchored", "anchored, corrected", "isolated"]
    lines.sort(key=lambda line: order.index(line[0]))
    header = ["recomputed", "chunks", "questions", "KL", "median", "of CacheBlend's", "agreement", "gold NLL",
              "less CacheBlend's"]
    return support.markdown_table(header, [cells for _, cells in lines])


def question_kl(options, model) -> dict:
    """KL by row and question, of all data files."""
    kl = {}
    for group in GROUPS:
        path = results_file(options, model, group)
        if group == "corrected" or not path.is_file():
            continue
        settings, *questions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for question in questions:
            for name, row in zip(settings["rows"], question["rows"]):
                kl.setdefault(name, {})[question["data"], question["question"]] = row["kl"]
    return kl


def broken_prompts(options, model) -> str:
    kl = question_kl(options, model)
    isolated = kl.get("reuse:isolated", {})
    broken = [question for question, value in isolated.items() if value > BROKEN]
    if not broken:
        return f"{model.path.name}: isolated chunks break none of {len(isolated)} prompts."
    others = [value for question, value in isolated.items() if question not in broken]
    ranges = [f"{name} {min(of):.2f} to {max(of):.2f}" for name, values in kl.items()
              if (of := [values[question] for question in broken if question in values])]
    return (f"{model.path.name}: isolated chunks break {len(broken)} of {len(isolated)} prompts (the others: at most "
            f"{max(others, default=0):.2f}; anchored ones: at most {max(kl['reuse'].values()):.2f}). KL of these: "
            f"{', '.join(ranges)}.")


def write_tables(options) -> str:
    parts = []
    for model in options.models:
        for path in options.data:
            parts.append(f"{model.path.name}, {path.stem}:\n\n{table(options, model, path.stem)}\n")
        parts.append(f"{broken_prompts(options, model)}\n")
    text = support.machine_line(support.machine()).split(";")[0] + "\n\n" + "\n".join(parts)
    support.write_whole(options.folder / "table.md", text)
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, action="append", default=[], help="GGUF file; repeat for more")
    parser.add_argument("--base-model", type=pathlib.Path, action="append", default=[],
                        help="the same for a model that has learned no conversations")
    parser.add_argument("--data", type=pathlib.Path, nargs="+", default=[support.DEFAULT_DATA],
                        help="questions with passages (default: %(default)s)")
    parser.add_argument("--steps", type=lambda text: [int(item) for item in text.split(",")], default=[10, 25, 50],
                        help="questions of each file that all rows get before any gets more (default: 10,25,50)")
    parser.add_argument("--passages", type=int, default=5, help="of each question; 0: all (default: %(default)s)")
    parser.add_argument("--groups", type=lambda text: text.split(","), default=list(GROUPS),
                        help=f"of rows (default: {','.join(GROUPS)})")
    support.add_table_arguments(parser)
    options = parser.parse_args()
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f"--groups has '{group}'; allowed: {', '.join(GROUPS)}")
    if min(options.steps) < 1 or options.passages < 0 or options.threads < 0:
        parser.error("--steps: allowed: 1 or more; --passages, --threads: 0 or more")
    options.models = [Model(path, False) for path in options.model] + [Model(path, True) for path in options.base_model]
    if not options.models:
        parser.error("no model; --model or --base-model names one")
    for path in options.data:
        support.need_file(path, "--data")
    return options


def main() -> int:
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        for count in options.steps:
            for group in options.groups:
                for model in options.models:
                    measure(options, model, group, count)
                    write_tables(options)
    print(write_tables(options))
    return 0


if __name__ == "__main__":
    support.main_with_errors(main)
