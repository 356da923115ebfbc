"""tests/summary.py counts what ctest, GoogleTest and pytest report, and never loses a failure."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GTEST_PASSING = """<testsuites><testsuite name="A">
<testcase name="a" status="run" result="completed"/>
<testcase name="b" status="run" result="completed"/>
</testsuite></testsuites>"""
GTEST_FAILING = """<testsuites><testsuite name="A">
<testcase name="a" status="run" result="completed"><failure message="1"/><failure message="2"/></testcase>
<testcase name="b" status="run" result="completed"/>
</testsuite></testsuites>"""


def summarize(ctest_cases, gtest=None, pytest=None, more_failures=0):
    """(closing line, exit status) for one results folder with these files."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "release", "results")
        os.makedirs(os.path.join(results, "gtest"))
        cases = "".join(f'<testcase name="{name}" status="{status}"/>' for name, status in ctest_cases)
        with open(os.path.join(results, "ctest.xml"), "w", encoding="utf-8") as file:
            file.write(f"<testsuite>{cases}</testsuite>")
        for name, text in (gtest or {}).items():
            with open(os.path.join(results, "gtest", name + ".xml"), "w", encoding="utf-8") as file:
                file.write(text)
        if pytest is not None:
            with open(os.path.join(results, "pytest.xml"), "w", encoding="utf-8") as file:
                file.write(pytest)
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(ROOT, "tests", "summary.py"), "--more-failures", str(more_failures),
             results], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1], done.returncode


class SummaryTest(unittest.TestCase):
    def test_counts_cases_of_gtest_and_others_as_one(self):
        self.assertEqual(("3 passed, 0 failed", 0),
                         summarize([("store_test", "run"), ("script", "run")], {"store_test": GTEST_PASSING}))

    def test_failed_cases(self):
        self.assertEqual(("1 passed, 1 failed", 1), summarize([("store_test", "fail")], {"store_test": GTEST_FAILING}))

    def test_a_crash_counts_as_a_failure(self):
        self.assertEqual(("0 passed, 1 failed", 1), summarize([("store_test", "fail")]))

    def test_a_report_at_exit_counts_as_a_failure(self):
        self.assertEqual(("2 passed, 1 failed", 1), summarize([("store_test", "fail")], {"store_test": GTEST_PASSING}))

    def test_pytest_adds_to_the_sum_and_skipping_is_failing(self):
        pytest = '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/></testsuites>'
        self.assertEqual(("3 passed, 3 failed", 1), summarize([("script", "run")], pytest=pytest))

    def test_pytest_that_did_not_finish_is_a_failure(self):
        self.assertEqual(("1 passed, 1 failed", 1), summarize([("script", "run")], pytest="pytest did not finish"))

    def test_failed_preparations(self):
        self.assertEqual(("1 passed, 2 failed", 1), summarize([("script", "run")], more_failures=2))

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(("0 passed, 1 failed", 1), summarize([]))


if __name__ == "__main__":
    unittest.main()
