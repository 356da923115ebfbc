#!/usr/bin/env python3
"""Adds up the results of tests/run.sh: summary.py [--more-failures N] RESULTS_FOLDER...

A results folder holds ctest.xml (JUnit, written by ctest), gtest/*.xml (one per GoogleTest binary) and perhaps
pytest.xml. Prints one line per suite, then the closing line 'N passed, N failed'. Exits with 1 when anything failed.
"""

import argparse
import glob
import os
import sys
import xml.etree.ElementTree as ElementTree


def count_gtest(path):
    """(passed, failed) test cases of one GoogleTest result file, or None when it cannot be read."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    failed = sum(1 for case in root.iter("testcase") if case.find("failure") is not None)
    run = sum(1 for case in root.iter("testcase") if case.get("status") == "run" and case.get("result") == "completed")
    return run - failed, failed


def count_ctest(folder):
    """(passed, failed) of a ctest run: the cases of every GoogleTest binary, other tests as one each. A binary that
    failed without a failed case (a crash, a timeout, a sanitizer's report) counts as one failure."""
    passed = failed = 0
    try:
        cases = list(ElementTree.parse(os.path.join(folder, "ctest.xml")).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, 1
    for case in cases:
        ok = case.get("status") == "run"
        counts = count_gtest(os.path.join(folder, "gtest", case.get("name") + ".xml"))
        if counts is None:
            counts = (1, 0) if ok else (0, 1)
        elif not ok and counts[1] == 0:
            counts = (counts[0], 1)
        passed += counts[0]
        failed += counts[1]
    return passed, failed


def count_pytest(path):
    """(passed, failed) of a pytest run; skipped tests count as failed, because nothing here may be skipped."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return 0, 1
    total = sum(int(suite.get("tests", 0)) for suite in suites)
    failed = sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors", "skipped"))
    return total - failed, failed


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--more-failures", type=int, default=0, help="failures outside of any suite")
    parser.add_argument("folders", nargs="*", metavar="RESULTS_FOLDER")
    options = parser.parse_args(arguments)

    passed, failed = 0, options.more_failures
    for folder in options.folders:
        preset = os.path.basename(os.path.dirname(os.path.abspath(folder)))
        suites = [(f"ctest {preset}", count_ctest(folder))]
        for path in glob.glob(os.path.join(folder, "pytest.xml")):
            suites.append(("pytest", count_pytest(path)))
        for name, counts in suites:
            print(f"{name}: {counts[0]} passed, {counts[1]} failed")
            passed += counts[0]
            failed += counts[1]
    if passed == 0 and failed == 0:
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
