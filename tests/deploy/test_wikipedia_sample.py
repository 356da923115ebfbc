"""deploy/wikipedia_sample.py: prose out of markup, and questions with passages out of prose."""

import bz2
import json
import os
import sys
import tempfile
import unittest
import zipfile
from xml.sax.saxutils import escape

from project import ROOT, run

sys.path.insert(0, os.path.join(ROOT, "deploy"))
import wikipedia_sample  # noqa: E402  (it is no package)

SCRIPT = os.path.join(ROOT, "deploy/wikipedia_sample.py")


def dump_of(pages):
    """pages: (namespace, title, markup)"""
    inner = "".join(f"<page><title>{escape(title)}</title><ns>{ns}</ns><revision><text>{escape(text)}</text></revision></page>"
                    for ns, title, text in pages)
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{inner}</mediawiki>'.encode()


def article(name):
    paragraph = " ".join(f"The {name} number {i} stands here with so many words that it can be asked about." for i in range(15))
    return ("0", name, "\n\n".join([paragraph] * 4))


class WikipediaSampleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, data=None):
        path = os.path.join(self.folder, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def test_markup_becomes_prose(self):
        for markup, text in (
                ("'''Oslo''' is the [[capital city|capital]] of [[Norway]].", "Oslo is the capital of Norway."),
                ("A{{cite|b={{c}}}} B<ref name=x>no</ref> C<ref name=x/>.", "A B C."),
                ("{| class=w\n| a\n|}\nAfter.", "After."),
                ("[[File:a.png|thumb|A [[cat]].]] Text<!-- no --> &amp; more.", "Text & more."),
                ("== History ==\nIt began.\n\n\n* one\n== See also ==\n* [[Other]]", "History\nIt began.\n\none"),
                ("See [https://example.org the site] and [https://example.org].", "See the site and ."),
                ("An {{unclosed template\n\nThe next paragraph.", "An \n\nThe next paragraph."),
        ):
            self.assertEqual(" ".join(text.split()), " ".join(wikipedia_sample.plain(markup).split()), markup)

    def test_questions_have_passages_of_different_articles_and_are_always_the_same(self):
        dump = self.path("dump.bz2", bz2.compress(dump_of([article(name) for name in "bcdefghi"] + [
            ("1", "Talk:b", article("talk")[2]), ("0", "moved", "#REDIRECT [[b]]")])))
        made = []
        for out in (self.path("first"), self.path("second")):
            done = run(SCRIPT, dump, out, "--passages", "4", "--questions", "3")
            self.assertEqual(0, done.returncode, done.stderr)
            with open(out, encoding="utf-8") as file:
                made.append(file.read())
        self.assertEqual(made[0], made[1])
        questions = json.loads(made[0])
        self.assertEqual(3, len(questions))
        bare, short, whole = questions
        self.assertEqual([""] * 4, [passage["title"] for passage in bare["ctxs"]])
        for passage in bare["ctxs"]:
            self.assertEqual(passage["text"].lower(), passage["text"])
            self.assertIn(" . ", passage["text"])
        for question in (short, whole):
            titles = [passage["title"] for passage in question["ctxs"]]
            self.assertEqual(4, len(set(titles)))
            self.assertFalse({"Talk:b", "moved"} & set(titles))
            self.assertIn(question["answers"][0], titles)
        for passage in short["ctxs"]:
            self.assertTrue(40 <= len(passage["text"].split()) < 140 and passage["text"].endswith("."), passage["text"])
        for passage in whole["ctxs"]:
            self.assertIn(passage["text"].split("\n")[0], article(passage["title"])[2])

    def test_questions_are_about_a_passage(self):
        passage = {"title": "Oslo", "text": "The town lies on Akerselva in the south."}
        asked = [wikipedia_sample.question_about(passage, {"title": "Bergen"}, number) for number in range(10)]
        self.assertEqual(10, len(set(asked)))
        self.assertIn("What do Oslo and Bergen have in common?", asked)
        self.assertIn("Where is Akerselva?", asked)
        passage["text"] = "no names"
        self.assertEqual("Where is Bergen?", wikipedia_sample.question_about(passage, {"title": "Bergen"}, 9))

    def test_a_dump_may_lie_in_a_wheel_and_may_be_cut_off(self):
        whole = dump_of([article(name) for name in "bcdefg"])
        wheel = self.path("some.whl")
        with zipfile.ZipFile(wheel, "w") as files:
            files.writestr("data/dump.bz2", bz2.compress(whole[:-300]))
        done = run(SCRIPT, f"{wheel}:data/dump.bz2", self.path("out"), "--passages", "3")
        self.assertEqual(0, done.returncode, done.stderr)

    def test_what_is_no_dump_is_refused(self):
        for data, message in ((dump_of([]), "too few passages"), (b"no xml", "is no XML")):
            done = run(SCRIPT, self.path("bad.bz2", bz2.compress(data)), self.path("out"))
            self.assertEqual(1, done.returncode)
            self.assertIn(message, done.stderr)
        for missing in (self.path("none.bz2"), self.path("plain.bz2", b"not packed")):
            done = run(SCRIPT, missing, self.path("out"))
            self.assertEqual(1, done.returncode)
            self.assertIn(f"cannot read {missing}", done.stderr)
        self.assertFalse(os.path.exists(self.path("out")))


if __name__ == "__main__":
    unittest.main()
