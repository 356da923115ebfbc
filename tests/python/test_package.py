"""What is in the wheel besides the programs, and what is told of what cannot be built; its types, as others
check against them."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from kvblend.programs import NATIVE

from conftest import ENVIRONMENT, ROOT


def test_the_licence_is_in_it():
    (found,) = [path for path in importlib.metadata.files("kvblend") if path.name == "LICENSE"]
    assert found.read_text() == (ROOT / "LICENSE").read_text() == (ROOT / "python/LICENSE").read_text()


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="not installed: dpkg-query, which tells the libraries' packages")
def test_the_licences_of_its_libraries_are_in_it():
    packages = dict(line.split() for line in (NATIVE / "share/doc/libraries.txt").read_text().splitlines())
    assert set(packages) == {path.name for path in (NATIVE / "lib").iterdir()} and len(packages) > 10
    for name, package in packages.items():
        text = (NATIVE / "share/doc" / package / "copyright").read_text()
        assert "icense" in text and text == open(f"/usr/share/doc/{package}/copyright", encoding="utf-8").read(), name


@pytest.mark.parametrize("whole, said", [
    (True, "kvblend has no source distribution: it is built from its whole repository, by deploy/build_wheel.sh"),
    (False, "CMakeLists.txt: kvblend is built from its whole repository, by deploy/build_wheel.sh")])
def test_a_source_distribution_is_refused_with_one_line(tmp_path, whole, said):
    """It would lack proto, CMakeLists.txt and the programs; and so would one that somebody makes of python/
    alone."""
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    if whole:
        shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    done = subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=tmp_path / "python", capture_output=True, text=True,
                          env=ENVIRONMENT, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith(said), done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "python/dist").exists()


TYPED = """
from __future__ import annotations

import kvblend
from kvblend.v1 import admin_pb2

def blocking(client: kvblend.Client) -> str:
    info: admin_pb2.GetInfoResponse = client.info(timeout=3)
    pieces = client.stream("Why?", [kvblend.Document("A text."), "another"], history=[("user", "x")])
    first: str = next(pieces)
    pieces.close()
    events = client.stream_events(kvblend.make_request("Why?"))
    tokens: int = next(events).prompt.prompt_tokens
    events.close()
    chunks = client.list_chunks()
    key: str = next(chunks).key
    chunks.close()
    return info.version + first + str(tokens) + key

async def in_a_loop(client: kvblend.AsyncClient) -> str:
    info: admin_pb2.GetInfoResponse = await client.info()
    pieces = client.stream("Why?")
    first: str = await anext(pieces)
    await pieces.aclose()
    chunks = client.list_chunks()
    key: str = (await anext(chunks)).key
    await chunks.aclose()
    return info.version + first + key

for make in (kvblend.HttpClient, kvblend.AsyncHttpClient, kvblend.GrpcClient, kvblend.AsyncGrpcClient):
    make("http://127.0.0.1:8000", timeout=None)
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="not installed: mypy; tests/python/run.sh --integrations "
                    "installs it")
def test_a_program_that_closes_streams_has_the_types_for_it(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "typed.py"], cwd=tmp_path,
                          env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
