"""ik_llama.cpp from its wheel on PyPI, whose kernels are those of AVX2."""
import itertools

from peer_engines import engine

VERSION = "0.1.5"


class IkLlamaCpp(engine.Engine):
    name = "ik_llama.cpp"
    released_as = f"ik-llama-cpp-python {VERSION}"

    @classmethod
    def install(cls, options):
        return engine.install_wheels(options.folder / "ik_llamacpp", cls.name, [("ik-llama-cpp-python", VERSION), ("numpy", "2.4.6")])

    def settings(self):
        for fa, kv, repack in itertools.product(self.options.fa, self.options.ik_kv, [0, 1]):
            if fa or kv != "q8_0":  # which needs flash attention
                yield {"fa": fa, "kv": kv, "repack": bool(repack)}

    @staticmethod
    def describe(setting) -> str:
        return f"fa={setting['fa']}, KV {setting['kv']}, weights {'repacked' if setting['repack'] else 'as given'}"

    def job(self, setting):
        return {**setting, "model": str(self.options.model)}

    def work(self, job, what):
        return engine.run_worker(self.python, "ik_llamacpp_worker.py", job, f"ik_llama.cpp, {what}")
