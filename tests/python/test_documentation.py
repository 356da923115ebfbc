"""The examples of docs/python.md and of the package's own page work as they stand there."""

import importlib.util
import re
import subprocess
import sys

import pytest

from conftest import ENVIRONMENT, ROOT

PAGES = ("docs/python.md", "python/README.md")


def blocks():
    return [pytest.param(block, id=f"{page}-{number}") for page in PAGES
            for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))]


@pytest.mark.parametrize("program", blocks())
def test_python_examples(server, program):
    needed = set(re.findall(r"^from (langchain_core|llama_index|haystack)\b", program, re.MULTILINE))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {missing[0]}; tests/python/run.sh --integrations installs it")
    program = program.replace("127.0.0.1:50051", server.target).replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
