"""OpenVINO GenAI, which reads the GGUF file itself."""
import itertools

from peer_engines import engine

VERSION = "2026.4.1.0"


class OpenVino(engine.Engine):
    name = "OpenVINO GenAI"
    released_as = f"openvino-genai {VERSION}"

    @classmethod
    def install(cls, options):
        return engine.install_wheels(options.folder / "openvino", cls.name, [("openvino-genai", VERSION), ("numpy", "2.4.6")])

    def settings(self):
        for kv, precision in itertools.product(self.options.ov_kv, self.options.ov_precision):
            yield {"kv": kv, "precision": precision}

    @staticmethod
    def describe(setting) -> str:
        return f"KV {setting['kv']}, precision {setting.get('precision', 'auto')}"

    def job(self, setting):
        # A file of earlier settings may have no precision.
        return {"precision": "auto", **setting, "model": str(self.options.model)}

    def work(self, job, what):
        # With all instructions that the processor has: held to fewer by ONEDNN_MAX_CPU_ISA, this version ends with an error.
        return engine.run_worker(self.python, "openvino_worker.py", job, f"OpenVINO, {what}")
