#!/usr/bin/env python3
"""Draws docs/images again: the page at /ui behind an answer, light and dark, in headless Chromium.

    build/venv/bin/python tests/e2e/ui/make_screenshots.py [FOLDER]

Wants the environment of tests/run.sh, with KVBLEND_BIN_DIR and KVBLEND_MODEL as the tests have them, and Pillow, for small files.
"""

import argparse
import contextlib
import importlib
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import FLAGS, MODEL, ROOT, Server  # noqa: E402
from http_client import client_of  # noqa: E402
from support.browser import address, open_browser  # noqa: E402

WIDTH, HEIGHT = 1060, 500
MAX_BYTES = 150_000


def stubs(folder):
    """What Server wants of kvblend.v1."""
    sources = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
                    f"--grpc_python_out={folder}", *sources], check=True)
    sys.path.insert(0, str(folder))
    names = {}
    for module in ("chunks", "inference", "admin"):
        names.update(vars(importlib.import_module(f"kvblend.v1.{module}_pb2_grpc")))
    return types.SimpleNamespace(**names)


def ask(page):
    """The page's own example."""
    page.run("document.querySelector('#sample').click()")
    page.run("document.querySelector('#go').click()")
    page.wait_for("document.querySelector('#status').textContent === 'Done.'")


@contextlib.contextmanager
def others(server, page, number):
    """Answers for somebody else, so that there is a load to be seen."""
    client = client_of(server)
    model = client.models.list().data[0].id
    with contextlib.ExitStack() as streams:
        for _ in range(number):
            stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count."}], max_tokens=1500,
                                                    stream=True, extra_body={"ignore_eos": True})
            next(iter(streams.enter_context(stream)))
        # The second look that sees all of them has a rate.
        for _ in range(2):
            page.run("document.querySelector('#load-decoding').textContent = ''")
            page.wait_for(f"parseInt(document.querySelector('#load-decoding').textContent) === {number}")
        yield


def photograph(page, path):
    page.screenshot(path)
    Image.open(path).convert("RGB").quantize(192, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path} has {path.stat().st_size} bytes; allowed: {MAX_BYTES}"


def main():
    parser = argparse.ArgumentParser(description="Draws docs/images again.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs/images", metavar="FOLDER")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, open_browser() as new_page:
        server = Server(stubs(temporary), Path(temporary), FLAGS, MODEL)
        try:
            server.wait_until_ready()
            page = new_page()
            page.command("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
            page.command("Emulation.setScrollbarsHidden", hidden=True)
            page.open(address(server))
            ask(page)
            page.run("document.querySelector('.map').scrollTop = 1e9")  # the document that has the answer comes last
            with others(server, page, 2):
                for scheme in ("light", "dark"):
                    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                    photograph(page, folder / f"page-{scheme}.png")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
