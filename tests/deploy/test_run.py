"""Which stages tests/run.sh runs, and what it makes of those that fail or cannot run: every script it calls is a stub."""

import os
import shutil
import subprocess
import tempfile
import unittest

from project import ROOT


# Each notes that it was called. Nothing builds, so that no suite runs.
STUBS = {
    "deploy/install_dependencies.sh": "exit 0",
    "deploy/build.sh": "exit 1",
    "tests/lint.sh": "exit 0",
    "tests/gpu/check_kernels.sh": "echo looking for nvcc; echo there is no nvcc; exit 77",
    "tests/deploy/check_deb.sh": "echo there is no dpkg; exit 77",
    "tests/deploy/check_wheel.sh": "exit 0",
    "tests/deploy/check_image.sh": "echo there is no buildah; exit 77",
    "tests/deploy/check_compose.sh": "echo there is no dockerd; exit 77",
    "tests/deploy/check_kubernetes.sh": "exit 1",
}


def run(*arguments, **stubs):
    """(lines of output, exit status, calls of the scripts) of tests/run.sh in a tree of stubs, some of which may be others."""
    with tempfile.TemporaryDirectory() as root:
        for name, body in {**STUBS, **stubs}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/bash\necho "{name} $*" >>{root}/calls\n{body}\n')
            os.chmod(path, 0o755)
        for name in ("run.sh", "summary.py"):
            shutil.copy(os.path.join(ROOT, "tests", name), os.path.join(root, "tests"))
        done = subprocess.run([os.path.join(root, "tests/run.sh"), *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, "KVBLEND_MODEL": os.path.join(root, "tests/run.sh"),
                                   "PATH": f"{root}/bin:{os.environ['PATH']}"})
        with open(os.path.join(root, "calls"), encoding="utf-8") as file:
            calls = file.read().splitlines()
    return done.stdout.splitlines(), done.returncode, calls


class RunTest(unittest.TestCase):
    def test_failed_builds_and_missing_tools_are_told_apart(self):
        lines, status, calls = run("--lint")
        self.assertEqual(["deploy/install_dependencies.sh --test", "tests/lint.sh ", "tests/gpu/check_kernels.sh ",
                          "deploy/build.sh release"], calls)
        self.assertEqual(("0 passed, 1 failed, 1 skipped", 1), (lines[-1], status))
        self.assertIn("failed: build release", lines)
        self.assertIn("skipped: nvcc: CUDA kernels for sm_80 and sm_90: there is no nvcc", lines)

    def test_all_is_everything(self):
        lines, _, calls = run("--all")
        for call in ("deploy/install_dependencies.sh --test --clang --browser", "tests/lint.sh ", "tests/gpu/check_kernels.sh ",
                     "deploy/build.sh release", "tests/deploy/check_deb.sh ", "tests/deploy/check_wheel.sh ",
                     "tests/deploy/check_image.sh ", "tests/deploy/check_compose.sh ", "tests/deploy/check_kubernetes.sh ",
                     "deploy/build.sh asan", "deploy/build.sh tsan", "deploy/build.sh asan fuzzers"):
            self.assertIn(call, calls)
        self.assertEqual("0 passed, 5 failed, 4 skipped", lines[-1])

    def test_all_sends_10000_mutated_requests_to_the_sanitizers_build(self):
        stubs = {"deploy/build.sh": '[ "$*" = asan ]', "bin/ctest": "exit 0",
                 "build/venv/bin/python": 'echo "$KVBLEND_TEST_MUTATIONS to $(basename $(dirname $KVBLEND_BIN_DIR))" >>calls'}
        calls = run("--all", **stubs)[2]
        pytest = calls.index("10000 to asan")
        self.assertTrue(calls[pytest - 1].endswith(" tests/e2e/mutations"))
        self.assertNotIn("10000 to asan", run("--sanitizers=asan", **stubs)[2])

    def test_packages_are_left_alone_on_demand(self):
        _, _, calls = run("--no-install")
        self.assertEqual(["tests/gpu/check_kernels.sh ", "deploy/build.sh release"], calls)
