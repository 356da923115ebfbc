"""The shell scripts parse, explain themselves, and refuse what they do not know."""

import os
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = ("deploy/install_dependencies.sh", "deploy/build.sh", "deploy/fetch_model.sh", "deploy/quickstart.sh",
           "tests/run.sh", "tests/lint.sh")
# Called by other scripts only.
INNER_SCRIPTS = (".ci/run", "tests/fuzz/run_fuzzer.sh")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


class ScriptsTest(unittest.TestCase):
    def test_they_parse_and_can_be_run(self):
        for script in SCRIPTS + INNER_SCRIPTS:
            self.assertEqual(0, run("bash", "-n", script).returncode, script)
            self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK), script)

    def test_help(self):
        for script in SCRIPTS:
            done = run(os.path.join(ROOT, script), "--help")
            self.assertEqual(0, done.returncode, script + done.stderr)
            self.assertIn("Usage:", done.stdout, script)

    def test_unknown_arguments_are_refused(self):
        for script in ("deploy/install_dependencies.sh", "deploy/quickstart.sh", "tests/run.sh"):
            done = run(os.path.join(ROOT, script), "--no-such-flag")
            self.assertEqual(2, done.returncode, script)
            self.assertIn("--no-such-flag", done.stderr, script)
        done = run(os.path.join(ROOT, "tests/run.sh"), "--sanitizers=msan")
        self.assertEqual(2, done.returncode)
        self.assertIn("'msan'", done.stderr)
        done = run(os.path.join(ROOT, "tests/run.sh"), "--fuzz=long")
        self.assertEqual(2, done.returncode)
        self.assertIn("'long'", done.stderr)

    def test_ci_runs_the_tests_of_the_readme(self):
        with open(os.path.join(ROOT, ".ci/run"), encoding="utf-8") as file:
            self.assertIn("./tests/run.sh --lint --sanitizers=asan --fuzz=", file.read())

    def test_package_lists_have_no_duplicates_and_differ(self):
        build = run("deploy/install_dependencies.sh", "--build", "--print").stdout.split()
        runtime = run("deploy/install_dependencies.sh", "--runtime", "--print").stdout.split()
        self.assertIn("libgrpc++-dev", build)
        self.assertIn("libgrpc++1.51", runtime)
        self.assertFalse(set(build) & set(runtime))


if __name__ == "__main__":
    unittest.main()
