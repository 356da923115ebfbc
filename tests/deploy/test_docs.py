"""Documentation stays with the code: metrics and flags are listed, links lead somewhere."""

import os
import re
import unittest

from project import BIN, ROOT, output_of, read


def tracked(*folders, suffix):
    for folder in folders:
        for where, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith(suffix):
                    yield os.path.relpath(os.path.join(where, name), ROOT)


class DocsTest(unittest.TestCase):
    def test_every_metric_is_listed(self):
        listed = read("docs/metrics.md")
        found = set()
        for path in tracked("server/metrics", suffix=".cc"):
            found.update(re.findall(r'"(kvblend_\w+[a-z])"', read(path)))
        self.assertGreater(len(found), 10)
        self.assertEqual([], sorted(name for name in found if f"`{name}`" not in listed))

    def test_every_flag_of_the_server_is_listed(self):
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        listed = read("docs/operator-guide.md")
        flags = set(re.findall(r"\(Env:KVBLEND_([A-Z_]+)\)", help_text))
        self.assertGreater(len(flags), 10)
        for flag in sorted(flags):
            name = flag.lower().replace("_", "-")
            self.assertTrue(f"--{name}" in listed or f"--no-{name}" in listed, name)

    def test_links_lead_somewhere(self):
        pages = ["README.md", "CONTRIBUTING.md", *tracked("docs", "deploy", suffix=".md")]
        broken = []
        for page in pages:
            for target in re.findall(r"\]\(([^)#\s]+)", read(page)):
                if "://" not in target and not os.path.exists(os.path.join(ROOT, os.path.dirname(page), target)):
                    broken.append(f"{page}: {target}")
        self.assertEqual([], broken)
