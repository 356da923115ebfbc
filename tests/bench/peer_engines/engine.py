"""What the engines share: virtual environments, and a worker that measures in a process of its own."""
import json
import os
import pathlib
import statistics
import subprocess
import sys

import bench_support as support
from bench_support import BenchError

HERE = pathlib.Path(__file__).resolve().parent


def log(message):
    print(message, file=sys.stderr, flush=True)


def installed_version(python, module) -> str:
    """Empty where there is none, because an installation was interrupted for example."""
    if not python.is_file():
        return ""
    done = subprocess.run([python, "-c", f"from importlib.metadata import version; print(version('{module}'))"],
                          capture_output=True, text=True)
    return done.stdout.strip()


def create_venv(venv):
    support.run([sys.executable, "-m", "venv", venv], "python3 -m venv")


def pip_install(python, arguments, what, **options):
    support.run([python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *arguments], what, **options)


def install_wheels(venv, name, pins) -> pathlib.Path:
    """Python of a virtual environment with wheels of exactly these versions, of which the first is the engine's."""
    python = venv / "bin/python"
    module, version = pins[0]
    found = installed_version(python, module)
    if not found:
        log(f"installing {module} {version} in {venv}")
        create_venv(venv)
        pip_install(python, ["--only-binary", ":all:", *(f"{m}=={v}" for m, v in pins)], f"installing {name}")
        found = installed_version(python, module)
    if found != version:
        raise BenchError(f"{venv} has {module} '{found}'; wanted: {version}. Remove it to have it installed anew")
    return python


def run_worker(python, worker, job, what, environment=None):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "GOMP_"))}
    return support.run_json([python, HERE / worker], what, input=json.dumps(job), env={**kept, **(environment or {})})


class Engine:
    """Measures prompts with one peer. Subclasses have `name`, install(options), which gives its python, settings(),
    describe(setting), job(setting) and work(job)."""

    def __init__(self, options, tokens):
        self.python = self.install(options)
        self.options, self.tokens = options, tokens
        self.info = ""  # what the engine says of itself

    def measure(self, setting, tasks):
        result = self.work({**self.job(setting), "threads": self.options.threads, "tasks": tasks,
                            "cpu_time": self.options.cpu_time}, self.describe(setting))
        self.info = result["system_info"]
        return result["tasks"]

    def task(self, num_tokens, steps, warm_up, repeats):
        return {"tokens": self.options.exact.get(num_tokens, self.tokens[:num_tokens]), "steps": steps,
                "warm_up": warm_up, "repeats": repeats}

    def search(self, figures):
        """The best setting of each figure, and what every setting gave. A setting that the engine refuses is left out."""
        results = []
        sizes = sorted({figure.tokens for figure in figures})
        steps = {size: max([figure.steps for figure in figures if figure.tokens == size]) for size in sizes}
        for setting in self.settings():
            tasks = [self.task(size, steps[size], 1 if size <= 1024 else 0, 3 if size <= 1024 else 1) for size in sizes]
            try:
                measured = self.measure(setting, tasks)
            except BenchError as error:
                log(f"  {self.name}, {self.describe(setting)}: {str(error).splitlines()[-1]}")
                continue
            row = {"engine": self.name, "setting": setting, "figures": {}}
            for size, result in zip(sizes, measured):
                for figure in figures:
                    if figure.tokens == size:
                        row["figures"][figure.name] = statistics.median(figure.rates_of_peer(result))
            results.append(row)
            log(f"  {self.name}, {self.describe(setting)}: " + ", ".join(f"{n} {v:.1f}" for n, v in row["figures"].items()))
        if not results:
            raise BenchError(f"{self.name} ran in none of its settings")
        return {f.name: max(results, key=lambda row: row["figures"][f.name])["setting"] for f in figures}, results
