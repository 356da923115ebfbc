"""llama.cpp, built from llama-cpp-python's source package with clang for this processor."""
import hashlib
import itertools
import os
import pathlib
import shutil
import tempfile

from bench_support import BenchError
from peer_engines import engine

VERSION = "0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"


def build(venv: pathlib.Path) -> pathlib.Path:
    """Python of the virtual environment, with llama.cpp built into it if it has none."""
    python = venv / "bin/python"
    version = engine.installed_version(python, "llama-cpp-python")
    if not version:
        for tool in ("clang", "clang++"):
            if shutil.which(tool) is None:
                raise BenchError(f"{tool} is not installed (Debian: apt-get install clang libomp-dev)")
        engine.log(f"building llama-cpp-python {VERSION} in {venv} (several minutes)")
        engine.create_venv(venv)
        compile_into(python)
        version = engine.installed_version(python, "llama-cpp-python")
    if version != VERSION:
        raise BenchError(f"{venv} has llama-cpp-python '{version}'; wanted: {VERSION}. Remove it to have it built anew")
    return python


def compile_into(python):
    engine.pip_install(python, ["-r", engine.HERE / "llamacpp_requirements.txt"], "pip install")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(f"llama-cpp-python=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
        pinned.flush()
        # No cache: it may hold a wheel that another compiler built. GCC 12 drops stores around AMX's tile configuration,
        # so that llama.cpp crashes where there is AMX.
        environment = dict(os.environ, CC="clang", CXX="clang++", CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
        engine.pip_install(python, ["--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--require-hashes",
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
    return engine.run_worker(python, "llamacpp_worker.py", job, f"llama.cpp, {what}")


class LlamaCpp(engine.Engine):
    name = "llama.cpp"
    released_as = f"llama-cpp-python {VERSION}"

    @classmethod
    def install(cls, options):
        return build(options.venv)

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        self.models = {"as given": options.model}
        if "q8_0" in options.weights:
            self.models["Q8_0"] = requantize(self.python, options.model, options.folder, options.threads)
        if "given" not in options.weights:
            del self.models["as given"]

    def settings(self):
        for weights, fa, kv, ubatch, repack in itertools.product(
                self.models, self.options.fa, self.options.kv, self.options.ubatch, self.options.repack):
            yield {"weights": weights, "fa": fa, "kv": kv, "ubatch": ubatch, "repack": bool(repack)}

    @staticmethod
    def describe(setting) -> str:
        return (f"weights {setting['weights']}, fa={setting['fa']}, KV {setting['kv']}, ubatch {setting['ubatch']}"
                + ("" if setting["repack"] else ", no repacking"))

    def job(self, setting):
        return {**{k: v for k, v in setting.items() if k != "weights"}, "model": str(self.models[setting["weights"]])}

    def work(self, job, what):
        return work(self.python, job, what)
