"""Documentation stays with the code: metrics and flags are listed, links lead somewhere."""

import functools
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


PAGES = ["README.md", "CONTRIBUTING.md", *tracked("docs", "deploy", "python", suffix=".md")]


def without_code(text):
    """Without fenced blocks, whose lines that begin with # are no headings."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """What GitHub calls the headings: words in lower case with hyphens, and a number behind one that was there before."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", title.strip().lower().replace("*", "")).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(anchor)
    return found


@functools.cache
def anchors_of(path):
    return anchors(read(path))


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
        """To a file, and to a heading of it."""
        broken = []
        for page in PAGES:
            for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", without_code(read(page))):
                if "://" in target:
                    continue
                path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
                if not os.path.exists(os.path.join(ROOT, path)):
                    broken.append(f"{page}: {target}")
                elif anchor and path.endswith(".md") and anchor not in anchors_of(path):
                    broken.append(f"{page}: {target}#{anchor}")
        self.assertEqual([], broken)

    def test_anchors_are_those_of_github(self):
        self.assertEqual({"one-two", "one-two-1", "k_v-of-15-the-page", "a-link"}, anchors(
            "# One, two\n## One two\ntext\n### `k_v` of 1.5: the *page*\n```\n# no heading\n```\n## A [link](x.md)\n"))

