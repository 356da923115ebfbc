"""The examples of README.md, docs/api-guide.md, docs/http-api.md and docs/operator-guide.md work as they stand there."""

import json
import os
import re
import subprocess
import sys

import pytest

from conftest import BIN_DIR, ENVIRONMENT, ROOT


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def cli_examples():
    """The commands of README's section on the command line. Measuring and fitting take minutes and have their own tests."""
    section = (ROOT / "README.md").read_text().split("## From the command line")[1].split("##")[0]
    commands = re.findall(r"^    (kvblend .*(?:\n      .*)*)", section, re.MULTILINE)
    assert len(commands) >= 5
    return [command for command in commands if not re.search(r" (bench|calibrate) ", command)]


def curl_examples():
    """The commands of docs/http-api.md, each of which may take several lines."""
    commands = re.findall(r"^    (curl .*(?:\n      .*)*)", (ROOT / "docs/http-api.md").read_text(), re.MULTILINE)
    assert len(commands) == 5
    return commands


@pytest.mark.parametrize("command", curl_examples())
def test_curl_examples(server, command):
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{server.api_port}")
    done = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sS --fail ", 1)], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "stream" in command:
        assert done.stdout.rstrip().endswith("data: [DONE]")
    else:
        assert json.loads(done.stdout)


@pytest.mark.parametrize("page", ["README.md", "docs/api-guide.md", "docs/http-api.md", "docs/operator-guide.md"])
def test_python_examples(v1, server, page):  # v1: generates the modules that the examples import
    generated = [path for path in sys.path if os.path.isdir(os.path.join(path, "kvblend", "v1"))]
    # The blocks of a page build on each other.
    program = "\n".join(python_blocks(page))
    program = program.replace("127.0.0.1:50051", f"127.0.0.1:{server.grpc_port}")
    program = program.replace("127.0.0.1:8000", f"127.0.0.1:{server.api_port}")
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT | {"PYTHONPATH": generated[0]},
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Oslo" in done.stdout


@pytest.mark.parametrize("command", cli_examples())
def test_command_line_examples(server, tmp_path, command):
    (tmp_path / "oslo.txt").write_text("Oslo\nOslo is the capital of Norway.\n\n")
    (tmp_path / "bergen.txt").write_text("Bergen\nBergen is a city in Norway.\n\n")
    (tmp_path / "request.json").write_text(json.dumps({
        "prompt": {"chunks": ["Oslo is the capital of Norway.\n"], "question": "What is the capital of Norway?"},
        "sampling": {"max_tokens": 8}}))
    environment = ENVIRONMENT | {"PATH": f"{BIN_DIR}:{os.environ['PATH']}",
                                 "KVBLEND_SERVER": f"127.0.0.1:{server.grpc_port}"}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
