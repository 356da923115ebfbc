"""What the benches' Python scripts share: running things, medians, tables, what machine this is. Standard library only."""
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_BIN = ROOT / "build/release/bin"
DEFAULT_DATA = ROOT / "tests/fixtures/musique_sample.json"
DEFAULT_MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTRUCTION_SETS = [("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_vnni", "AVX-512 VNNI"),
                    ("avx512_bf16", "AVX-512 bf16"), ("amx_bf16", "AMX bf16"), ("amx_int8", "AMX int8")]


class BenchError(Exception):
    """Says to the user what is wrong."""


def run(command, what, show_progress=False, **options) -> str:
    """Standard output of a command that must succeed; its standard error is shown at once, or when it does not."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if show_progress else subprocess.PIPE, text=True,
                              **options)
    except OSError as error:
        raise BenchError(f"{what}: cannot run {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise BenchError(f"{what}: {how}\n  {' '.join(command)}\n{(done.stderr or '')[-2000:].rstrip()}")
    return done.stdout


def run_json(command, what, **options):
    output = run(command, what, **options)
    try:
        return json.loads(output)
    except ValueError:
        raise BenchError(f"{what}: not JSON: {output[:200]!r}") from None


def measured_json(command, what, show_progress=False, last=""):
    """The JSON that a bench writes to the file behind its last argument, of which `last` is the beginning."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        run([*command, f"{last}{path}"], what, show_progress)
        return json.loads(path.read_text(encoding="utf-8"))


def need_file(path, what) -> pathlib.Path:
    path = pathlib.Path(path)
    if not path.is_file():
        raise BenchError(f"{what}: there is no file {path}")
    return path


def need_binary(folder, name) -> pathlib.Path:
    path = pathlib.Path(folder) / name
    if not path.is_file():
        raise BenchError(f"{path} is not built: cmake --preset release && cmake --build --preset release --target {name}")
    return path


def processors() -> int:
    return len(os.sched_getaffinity(0))


def samples(values) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": list(values)}


def cpu_fields() -> dict:
    """The first processor in /proc/cpuinfo."""
    fields = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if not line.strip():
                break
            fields[name.strip()] = value.strip()
    except OSError:
        pass
    return fields


BUSY_LOAD = 0.5  # average over a minute


def wait_until_idle(seconds) -> None:
    """Until what ran before no longer counts as load, but no longer than that."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > BUSY_LOAD and time.monotonic() < end:
        time.sleep(2)


def machine() -> dict:
    cpu = cpu_fields()
    flags = set(cpu.get("flags", "").split())
    load = os.getloadavg()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "family_model": f"family {cpu.get('cpu family', '?')}, model {cpu.get('model', '?')}",
        "processors": processors(),
        "instruction_sets": [name for flag, name in INSTRUCTION_SETS if flag in flags],
        "virtual": "hypervisor" in flags,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_before": round(load, 2),
    }


def machine_line(of: dict) -> str:
    sets = ", ".join(of["instruction_sets"]) or "no AVX2"
    virtual = " virtual machine" if of["virtual"] else ""
    line = (f"{of['date']}, {of['cpu']} ({of['family_model']}){virtual}, {of['processors']} processors ({sets}), "
            f"{of['memory_gb']} GB of memory")
    if of["load_before"] > BUSY_LOAD:
        line += f"; **the machine was busy** (load average {of['load_before']:.1f} before the run), no figures to rely on"
    return line


def markdown_table(header, rows) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def text_table(header, rows) -> str:
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
                     for row in cells)


def add_table_arguments(parser) -> None:
    """What the tools take that measure in parts, keep what they measured, and write a table of it."""
    parser.add_argument("--threads", type=int, default=0, help="0: one per processor (default: %(default)s)")
    parser.add_argument("--bin", type=pathlib.Path, default=DEFAULT_BIN, help="kvblend's (default: %(default)s)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/quality",
                        help="where results are kept (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")


def changed_questions(paths, folder, change) -> list:
    """Copies of data files in `folder`, under the same names, with change(questions) in place of a file's questions."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = [folder / path.name for path in paths]
    for path, copy in zip(paths, copies):
        copy.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    return copies


def write_whole(path, text) -> None:
    """The file is the old one or the new one, whenever this ends."""
    temporary = path.with_name(f"{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def number(value) -> str:
    """Three digits that matter, thousands with a comma."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def spread(of: dict) -> str:
    return f"{number(of['median'])} ({number(of['min'])} to {number(of['max'])})"


def main_with_errors(main) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that what runs is ended too
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
