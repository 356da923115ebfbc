"""tests/summary.py counts what ctest, GoogleTest and pytest report, never loses a failure, and names what was skipped."""

import os
import subprocess
import sys
import tempfile
import unittest

from project import ROOT


GTEST_PASSING = """<testsuites><testsuite name="A">
<testcase classname="A" name="a" status="run" result="completed"/>
<testcase classname="A" name="b" status="run" result="completed"/>
</testsuite></testsuites>"""
GTEST_FAILING = """<testsuites><testsuite name="A">
<testcase classname="A" name="a" status="run" result="completed"><failure message="1"/><failure message="2"/></testcase>
<testcase classname="A" name="b" status="run" result="completed"/>
</testsuite></testsuites>"""
GTEST_SKIPPING = """<testsuites><testsuite name="A">
<testcase classname="A" name="a" status="run" result="skipped">
<skipped message="tests/a_test.cc:12&#x0A;this processor&#x0A;has no VNNI"><![CDATA[...]]></skipped></testcase>
<testcase classname="A" name="b" status="run" result="completed"/>
<testcase classname="A" name="DISABLED_c" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="t" name="a"/><testcase classname="t" name="b"/>
<testcase classname="t" name="c"><failure message="1"/></testcase>
<testcase classname="t" name="d"><error message="1"/></testcase>
<testcase classname="t" name="e"><skipped type="pytest.skip" message="no redis-server">t.py:3: ...</skipped></testcase>
</testsuite></testsuites>"""


def summarize(ctest_cases, *arguments, gtest=None, **pytest):
    """(all lines, exit status) for one results folder with these files; a case of ctest is (name, status[, inner XML]); keywords
    are other files by the names that they have without .xml."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "release", "results")
        os.makedirs(os.path.join(results, "gtest"))
        cases = "".join(f'<testcase name="{name}" status="{status}">{"".join(inner)}</testcase>'
                        for name, status, *inner in ctest_cases)
        files = {"ctest.xml": f"<testsuite>{cases}</testsuite>"}
        files.update({f"gtest/{name}.xml": text for name, text in (gtest or {}).items()})
        files.update({f"{name}.xml": text for name, text in pytest.items()})
        for name, text in files.items():
            with open(os.path.join(results, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests", "summary.py"), *arguments, results],
                              capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.returncode


class SummaryTest(unittest.TestCase):
    def expect(self, closing_line, status, *arguments, **files):
        lines, returned = summarize(*arguments, **files)
        self.assertEqual((closing_line, status), (lines[-1], returned))
        return lines

    def test_counts_cases_of_gtest_and_others_as_one(self):
        self.expect("3 passed, 0 failed, 0 skipped", 0, [("store_test", "run"), ("script", "run")],
                    gtest={"store_test": GTEST_PASSING})

    def test_failed_cases(self):
        self.expect("1 passed, 1 failed, 0 skipped", 1, [("store_test", "fail")], gtest={"store_test": GTEST_FAILING})

    def test_a_crash_counts_as_a_failure(self):
        self.expect("0 passed, 1 failed, 0 skipped", 1, [("store_test", "fail")])

    def test_a_report_at_exit_counts_as_a_failure(self):
        self.expect("2 passed, 1 failed, 0 skipped", 1, [("store_test", "fail")], gtest={"store_test": GTEST_PASSING})

    def test_what_gtest_skips_is_named_with_its_reason(self):
        lines = self.expect("1 passed, 0 failed, 1 skipped", 0, [("store_test", "run")],
                            gtest={"store_test": GTEST_SKIPPING})
        self.assertIn("skipped: store_test A.a: this processor has no VNNI", lines)

    def test_what_ctest_skips_is_named_with_the_last_line_it_printed(self):
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/><system-out>one\nno io_uring here\n</system-out>'
        lines = self.expect("1 passed, 0 failed, 1 skipped", 0, [("script", "run"), ("queue", "notrun", skipped)])
        self.assertIn("skipped: queue: no io_uring here", lines)

    def test_a_missing_program_is_not_a_skipped_test(self):
        skipped = '<skipped message="Unable to find executable"/>'
        self.expect("0 passed, 1 failed, 0 skipped", 1, [("store_test", "notrun", skipped)])

    def test_pytest_adds_to_the_sum(self):
        lines = self.expect("3 passed, 2 failed, 1 skipped", 1, [("script", "run")], pytest=PYTEST)
        self.assertIn("skipped: pytest t.e: no redis-server", lines)

    def test_every_run_of_pytest_counts(self):
        self.expect("5 passed, 4 failed, 2 skipped", 1, [("script", "run")], pytest=PYTEST, pytest_package=PYTEST)

    def test_pytest_that_did_not_finish_is_a_failure(self):
        self.expect("1 passed, 1 failed, 0 skipped", 1, [("script", "run")], pytest="pytest did not finish")

    def test_stages_outside_of_suites(self):
        lines = self.expect("1 passed, 2 failed, 1 skipped", 1, [("script", "run")], "--failed", "lint", "--failed",
                            "build asan", "--skipped", "nvcc: kernels=there is no nvcc, a=b")
        self.assertIn("failed: lint", lines)
        self.assertIn("skipped: nvcc: kernels: there is no nvcc, a=b", lines)

    def test_nothing_run_is_a_failure(self):
        self.expect("0 passed, 1 failed, 0 skipped", 1, [])
