"""The shell scripts parse, explain themselves, and refuse what they do not know."""

import os
import shutil
import unittest

from project import ROOT, read, run

SCRIPTS = ("deploy/install_dependencies.sh", "deploy/build.sh", "deploy/fetch_model.sh", "deploy/quickstart.sh",
           "deploy/make_correction.sh", "deploy/build_wheel.sh", "deploy/docker/collect_files.sh",
           "deploy/docker/install_cuda.sh", "tests/run.sh", "tests/lint.sh", "tests/python/run.sh",
           "tests/deploy/check_compose.sh", "tests/deploy/check_image.sh", "tests/deploy/check_kubernetes.sh", "tests/deploy/check_wheel.sh")
# Called by other scripts only.
INNER_SCRIPTS = (".ci/run", "tests/fuzz/run_fuzzer.sh", "tests/deploy/check_deb.sh")
SOURCED_SCRIPTS = ("tests/deploy/bare_debian.sh",)


class ScriptsTest(unittest.TestCase):
    def test_they_parse_and_can_be_run(self):
        for script in SCRIPTS + INNER_SCRIPTS:
            self.assertEqual(0, run("bash", "-n", script).returncode, script)
            self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK), script)
        for script in SOURCED_SCRIPTS:
            self.assertEqual(0, run("bash", "-n", script).returncode, script)

    def test_help(self):
        for script in SCRIPTS:
            done = run(os.path.join(ROOT, script), "--help")
            self.assertEqual(0, done.returncode, script + done.stderr)
            self.assertIn("Usage:", done.stdout, script)

    def test_unknown_arguments_are_refused(self):
        for script, argument, named in (("deploy/install_dependencies.sh", "--no-such-flag", "--no-such-flag"),
                                        ("deploy/fetch_model.sh", "no-such-model", "'no-such-model'"),
                                        ("deploy/quickstart.sh", "--no-such-flag", "--no-such-flag"),
                                        ("deploy/quickstart.sh", "--model=no-such-model", "'no-such-model'"),
                                        ("deploy/quickstart.sh", "--model", "smollm2, gemma3-270m"),
                                        ("deploy/make_correction.sh", "--no-such-flag", "--no-such-flag"),
                                        ("tests/run.sh", "--no-such-flag", "--no-such-flag"),
                                        ("tests/run.sh", "--sanitizers=msan", "'msan'"),
                                        ("tests/run.sh", "--fuzz=long", "'long'")):
            done = run(os.path.join(ROOT, script), argument)
            self.assertEqual(2, done.returncode, script)
            self.assertIn(named, done.stderr, script)

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed")
    def test_clang_tidy_reads_a_file_whatever_the_release_build_precompiled(self):
        done = run("tests/lint.sh", "--tidy", "engine/schedule/queue_pace.cc")
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_ci_runs_the_tests_of_the_readme(self):
        self.assertIn("./tests/run.sh --lint --sanitizers=asan --fuzz=", read(".ci/run"))

    def test_package_lists_have_no_duplicates_and_differ(self):
        build = run("deploy/install_dependencies.sh", "--build", "--print").stdout.split()
        runtime = run("deploy/install_dependencies.sh", "--runtime", "--print").stdout.split()
        self.assertIn("libgrpc++-dev", build)
        self.assertIn("libgrpc++1.51", runtime)
        self.assertFalse(set(build) & set(runtime))
