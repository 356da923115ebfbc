#!/usr/bin/env python3
"""Makes questions with passages of a Wikipedia dump, for `kvblend calibrate --data`.

    wikipedia_sample.py DUMP.xml.bz2 OUT.json [--questions N] [--passages N]

DUMP is a pages-articles dump, or the first part of one; a wheel or another ZIP file that holds one does too, as
WHEEL:NAME. Of the markup no more is understood than prose needs: templates, tables, references, files and the lists at
an article's end go, links keep their words. A prompt has passages of different articles and a question about one of
them. By turns its passages are some paragraphs, a few sentences, or what corpora for retrieval often hold: text cut at
words, without titles, in lower case and with punctuation apart. A fit on one of these forms does not carry over to
others. Nobody knows the answers: `answers` has the title that is asked about. The same dump gives the same bytes.

Wikipedia's text is under CC BY-SA: OUT is for fitting on, and whoever passes it on does so under that licence.
"""
import argparse
import bz2
import hashlib
import html
import json
import re
import sys
import xml.etree.ElementTree
import zipfile

# Characters of a passage; what ends before it has so many is dropped. About as many tokens as a retriever's passages have.
SMALLEST, ENOUGH, LARGEST_PASSAGE = 1_200, 2_000, 3_600
MOST_OF_AN_ARTICLE = 6  # passages, so that many articles have their say
# By turns. Half of the prompts are short, for the less stands before a chunk, the less its K and V deviate.
FORMS = ("words", "sentences", "paragraphs", "sentences")
QUESTIONS = (
    "What is {title}?", "Who is mentioned in the passage about {title}?",
    "When did the events described in the passage about {title} take place?", "What is {title} best known for?",
    "What do {title} and {other} have in common?", "Which country or place is {title} associated with?",
    "Who was responsible for {title}?", "How is {title} related to {name}?", "What does the text say about {name}?",
    "Where is {name}?")
LARGEST = 200_000_000  # bytes of a dump, unpacked: of each a part is enough
LAST_SECTIONS = re.compile(
    r"^==+\s*(See also|References|Notes|Footnotes|External links|Further reading|Bibliography|Sources|Gallery)"
    r"\s*==+\s*$", re.MULTILINE | re.IGNORECASE)


def without_nested(text: str, opening: str, closing: str) -> str:
    """Drops what stands between the outermost pairs; an unclosed one goes no further than its paragraph."""
    kept, depth, begin = [], 0, 0
    for mark in re.finditer(re.escape(opening) + "|" + re.escape(closing) + r"|\n\n", text):
        if mark.group() == opening:
            if depth == 0:
                kept.append(text[begin:mark.start()])
            depth += 1
        elif mark.group() == closing and depth > 0:
            depth -= 1
            begin = mark.end() if depth == 0 else begin
        elif mark.group() == "\n\n" and depth > 0 and text.find(closing, mark.end()) < 0:
            depth, begin = 0, mark.start()
    if depth == 0:
        kept.append(text[begin:])
    return "".join(kept)


def plain(markup: str) -> str:
    end = LAST_SECTIONS.search(markup)
    text = markup[:end.start()] if end else markup
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|timeline|code|source)\b.*?</\1>", "", text,
                  flags=re.DOTALL | re.IGNORECASE)
    text = without_nested(text, "{{", "}}")
    text = without_nested(text, "{|", "|}")
    # A caption may hold links, so the inner ones go first.
    words = re.compile(r"\[\[(?!File:|Image:|Category:)(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", re.IGNORECASE)
    text = words.sub(r"\1", text)
    text = re.sub(r"\[\[[^\[\]]*\]\]", "", text)
    text = re.sub(r"\[https?://\S*\s*([^\]]*)\]", r"\1", text)
    text = re.sub(r"<[^<>]*>|'{2,}|__[A-Z]+__", "", text)
    text = html.unescape(text)
    text = re.sub(r"^==+\s*(.*?)\s*==+\s*$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"^[*#:;|!]+\s*", "", text, flags=re.MULTILINE)
    text = re.sub(r"\(\s*[,;]*\s*\)", "", text)
    text = re.sub(r"[ \t\u00a0]+", " ", text)
    return re.sub(r"\s*\n\s*\n\s*", "\n\n", text).strip()


def read_dump(name: str) -> bytes:
    """The dump, unpacked; of one larger than LARGEST the first part."""
    try:
        if ".whl:" in name or ".zip:" in name:
            archive, _, member = name.rpartition(":")
            with zipfile.ZipFile(archive) as files, files.open(member) as packed, bz2.open(packed) as dump:
                return dump.read(LARGEST)
        with bz2.open(name) as dump:
            return dump.read(LARGEST)
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise SystemExit(f"cannot read {name}: {error}") from None


def articles(dump: bytes):
    """(title, markup) of the pages of the main namespace, in the dump's order, up to where the dump is cut."""
    parser = xml.etree.ElementTree.XMLPullParser(["end"])
    title, namespace = "", ""
    try:
        parser.feed(dump)
        for _, element in parser.read_events():
            tag = element.tag.rpartition("}")[2]
            if tag == "title":
                title = element.text or ""
            elif tag == "ns":
                namespace = element.text or ""
            elif tag == "text" and namespace in ("", "0"):
                yield title, element.text or ""
            elif tag == "page":
                element.clear()
    except xml.etree.ElementTree.ParseError as error:
        raise SystemExit(f"the dump is no XML: {error}") from None


def passages_of(text: str):
    """Runs of paragraphs."""
    run = ""
    for paragraph in text.split("\n\n"):
        if len(run) + len(paragraph) > LARGEST_PASSAGE:
            run = ""
            continue
        run = f"{run}\n{paragraph}" if run else paragraph
        if len(run) >= ENOUGH:
            yield run
            run = ""
    if len(run) >= SMALLEST:
        yield run


def in_fixed_order(items: list, key) -> list:
    """An order that looks like chance and is the same everywhere."""
    return sorted(items, key=lambda item: hashlib.sha256(key(item).encode()).digest())


def drawn(text: str, least: int, most: int) -> int:
    """Looks like chance and is the same everywhere."""
    return least + int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (most - least + 1)


def few_sentences(text: str) -> str:
    wanted, taken = drawn(text, 40, 120), []
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        taken += sentence.split()
        if len(taken) >= wanted:
            break
    return " ".join(taken)


def cut_at_words(text: str) -> str:
    begin = drawn(f"begin {text}", 0, 20)
    words = text.lower().split()[begin:begin + drawn(f"words {text}", 300, 420)]
    return " ".join(re.sub(r"([.,;:!?()\"])", r" \1 ", " ".join(words)).split())


def question_about(passage: dict, other: dict, number: int) -> str:
    """By turns one of QUESTIONS; a name is one that stands within a sentence of the passage."""
    names = [name.strip() for name in re.findall(r"(?<=[a-z,] )((?:[A-Z][a-z]+ ?){1,3})", passage["text"]) if len(name) > 4]
    return QUESTIONS[number % len(QUESTIONS)].format(
        title=passage["title"], other=other["title"], name=names[len(names) // 2] if names else other["title"])


def prompt_of(taken: list[dict], number: int) -> dict:
    asked, other = in_fixed_order(taken, lambda passage: f"asked {passage['text']}")[:2]
    form = FORMS[number % len(FORMS)]
    passages = taken
    if form == "sentences":
        passages = [{"title": passage["title"], "text": few_sentences(passage["text"])} for passage in taken]
    elif form == "words":
        passages = [{"title": "", "text": cut_at_words(passage["text"])} for passage in taken]
    return {"question": question_about(asked, other, number // 2), "answers": [asked["title"]], "ctxs": passages}


def prompts(passages: list[dict], per_prompt: int):
    """Groups passages, in their order; those of a prompt are from different articles."""
    left = list(passages)
    while True:
        taken: list[dict] = []
        for passage in left:
            if len(taken) < per_prompt and all(passage["title"] != other["title"] for other in taken):
                taken.append(passage)
        if len(taken) < per_prompt:
            return
        left = [passage for passage in left if not any(passage is other for other in taken)]
        yield taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", metavar="DUMP")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--questions", type=int, default=60, help="at most so many (%(default)s)")
    parser.add_argument("--passages", type=int, default=5, help="of each, at least 2 (%(default)s)")
    arguments = parser.parse_args()
    if arguments.passages < 2:
        parser.error(f"--passages is {arguments.passages}; allowed: 2 and more")
    passages = []
    for title, markup in articles(read_dump(arguments.dump)):
        of_article = [{"title": title, "text": text} for text in passages_of(plain(markup))]
        passages += in_fixed_order(of_article, lambda passage: passage["text"])[:MOST_OF_AN_ARTICLE]
    made = []
    for taken in prompts(in_fixed_order(passages, lambda passage: passage["text"]), arguments.passages):
        if len(made) == arguments.questions:
            break
        made.append(prompt_of(taken, len(made)))
    if not made:
        print(f"{arguments.dump} has too few passages of {SMALLEST} characters or more", file=sys.stderr)
        return 1
    with open(arguments.out, "w", encoding="utf-8") as out:
        json.dump(made, out, ensure_ascii=False, indent=1)
        out.write("\n")
    print(f"{len(made)} questions", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
