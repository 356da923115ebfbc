#!/usr/bin/env python3
"""Adds up the results of tests/run.sh: summary.py [--failed STAGE]... [--skipped STAGE=REASON]... RESULTS_FOLDER...

A results folder holds ctest.xml (JUnit, written by ctest), gtest/NAME.xml (for each of its tests that is a GoogleTest
binary) and perhaps pytest.xml and others named pytest_*.xml. Prints every skipped test with its reason and one line per suite, then the closing line
'N passed, N failed, N skipped'. Exits with 1 when anything failed or nothing has run.
"""

import argparse
import glob
import os
import re
import sys
import xml.etree.ElementTree as ElementTree


class Counts:
    """What became of some tests; `skipped` lists 'TEST: REASON'."""

    def __init__(self, passed=0, failed=0, skipped=()):
        self.passed = passed
        self.failed = failed
        self.skipped = list(skipped)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {len(self.skipped)} skipped"


def read_cases(path):
    """The test cases of a JUnit file, or None when it cannot be read."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def count_cases(cases, run):
    """The cases of one GoogleTest or pytest run, whose name is `run`."""
    counts = Counts()
    for case in cases:
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif skipped is not None:
            # GoogleTest puts a line with the place in the source before the reason.
            reason = re.sub(r"^\S+:\d+\n", "", skipped.get("message", "").strip()).replace("\n", " ")
            counts.skipped.append(f"{run} {case.get('classname')}.{case.get('name')}: {reason or 'no reason given'}")
        elif case.get("status", "run") == "run":
            counts.passed += 1
    return counts


def count_ctest(folder):
    """A ctest run: the cases of every GoogleTest binary, other tests as one each. A binary that failed without a
    failed case (a crash, a timeout, a sanitizer's report) counts as one failure."""
    counts = Counts()
    cases = read_cases(os.path.join(folder, "ctest.xml"))
    if cases is None:
        return Counts(failed=1)
    for case in cases:
        name, skipped = case.get("name"), case.find("skipped")
        gtest = read_cases(os.path.join(folder, "gtest", name + ".xml"))
        # ctest also calls a test skipped whose program is missing: only one that said so itself is.
        if skipped is not None and skipped.get("message", "").startswith("SKIP_RETURN_CODE"):
            said = (case.findtext("system-out") or "").strip().splitlines()
            counts.skipped.append(f"{name}: {said[-1] if said else 'no reason given'}")
            continue
        ok = case.get("status") == "run"
        of_case = count_cases(gtest, name) if gtest is not None else Counts(passed=int(ok))
        if not ok and of_case.failed == 0:
            of_case.failed = 1
        counts.add(of_case)
    return counts


def count_pytest(path):
    cases = read_cases(path)
    return Counts(failed=1) if cases is None else count_cases(cases, "pytest")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failed", action="append", default=[], help="a stage outside of any suite that failed")
    parser.add_argument("--skipped", action="append", default=[], help="STAGE=REASON of one that could not run here")
    parser.add_argument("folders", nargs="*", metavar="RESULTS_FOLDER")
    options = parser.parse_args(arguments)

    total = Counts(failed=len(options.failed), skipped=[stage.replace("=", ": ", 1) for stage in options.skipped])
    suites = []
    for folder in options.folders:
        preset = os.path.basename(os.path.dirname(os.path.abspath(folder)))
        suites.append((f"ctest {preset}", count_ctest(folder)))
        suites += [("pytest", count_pytest(path)) for path in sorted(glob.glob(os.path.join(folder, "pytest*.xml")))]
    for _, counts in suites:
        total.add(counts)
    if total.passed == 0 and total.failed == 0:
        total.failed = 1
    for line in total.skipped:
        print(f"skipped: {line}")
    for name, counts in suites:
        print(f"{name}: {counts}")
    for stage in options.failed:
        print(f"failed: {stage}")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
