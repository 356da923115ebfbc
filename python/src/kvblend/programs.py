"""The programs that the wheel carries: `kvblend` and `kvblend-server` of the command line.

All but `kvblend serve` is C++ and takes this process over, so that signals and exit codes are its own. `serve` is written in
Python since what it adds to kvblend-server is what Python has at hand: fetching a model from PyPI, keeping a key, waiting.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

NATIVE = Path(__file__).resolve().parent / "native"


def path_of(program: str) -> Path:
    """The path of a packaged program; ends the process where the wheel has none."""
    path = NATIVE / "bin" / program
    if not path.is_file():
        sys.exit(f"{program} is not in this package: it was built with clients only (KVBLEND_WHEEL=client)")
    return path


def _become(program: str, arguments: list[str]) -> NoReturn:
    # `kvblend model fetch` asks python3 for pip: the one that this package is installed for has it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    path = path_of(program)
    os.execv(path, [str(path), *arguments])


def kvblend() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        from kvblend.serve import main  # the other commands need not wait for its imports
        sys.exit(main(arguments[1:]))
    if arguments[:1] in ([], ["-h"], ["--help"]):
        print("kvblend serve [--help]: starts a server, with the default model if none is named, and a key.\n")
        sys.stdout.flush()
    _become("kvblend", arguments)


def kvblend_server() -> None:
    _become("kvblend-server", sys.argv[1:])
