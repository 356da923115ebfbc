"""Where the project lies, and its files and programs, for the tests of this folder."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("KVBLEND_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def output_of(*command):
    """The output of a command that must succeed."""
    done = run(*command)
    assert done.returncode == 0, f"{command} failed: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
