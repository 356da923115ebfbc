"""Documentation stays with the code: metrics and flags are listed, links lead somewhere."""

import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("KVBLEND_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


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
        help_text = subprocess.run([os.path.join(BIN, "kvblend-server"), "--help"], capture_output=True, text=True,
                                   check=True).stdout
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


if __name__ == "__main__":
    unittest.main()
