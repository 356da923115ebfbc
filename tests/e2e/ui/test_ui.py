"""The page at /ui and the page of `generate --html`, in headless Chromium."""

import re

import pytest

from support.browser import CHROMIUM, address
from conftest import CHUNKS, FLAGS, MODEL, QUESTION, SYSTEM_TEXT, run
from test_keys import make_key

pytest_plugins = ["support.pages"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (deploy/install_dependencies.sh --browser)")


def ask(page, question=""):
    """From wherever the focus is, by keyboard."""
    page.tab_to("it.id === 'question'")
    if question:  # else the one that stands there
        page.write(question)
    page.press("Enter")
    page.wait_for("document.querySelector('#go').disabled === false && document.querySelector('#status').textContent !== ''")
    assert page.text("#status") == "Done.", page.text("#status")


def add_text(page, title, text):
    page.tab_to("it.id === 'add-text'")
    page.press("Enter")
    page.write(title)
    page.press("Tab")
    page.write(text)
    page.press("Tab")
    page.press("Enter")


def test_a_question_by_keyboard_alone(server, page):
    page.open(address(server))
    page.wait_for("document.querySelector('#model').textContent.includes('tokens')")
    assert not page.run("document.querySelector('#key').checkVisibility()")
    for number, text in enumerate(CHUNKS):
        add_text(page, f"Passage {number + 1}", text)
    # What looks like markup is text.
    add_text(page, "<img src=x onerror=alert(1)>", "<script>document.title = 'taken over'</script> ünïcödé 😀")
    assert page.run("document.querySelectorAll('#documents li').length") == 4
    ask(page, QUESTION)

    assert page.text("#blended-answer").strip() and page.text("#full-answer").strip()
    assert re.search(r"First token [\d.]+ times (sooner|later); (the same answer|another wording)\.", page.text("#verdict"))
    assert "to the first token" in page.text("#blended-clock")
    sources = page.run("[...document.querySelectorAll('#blended-answer .sourced')].map(it => it.title)")
    assert sources and all(re.fullmatch(r"Passage \d \(attention \d+%\)|<img .*%\)", source) for source in sources), sources
    page.tab_to("it.className === 'sourced'")
    assert page.text("#blended-source").endswith(sources[0])
    assert page.run("document.activeElement.textContent.trim()") in page.text("#blended-source")
    assert page.run("document.title") == "kvblend"
    assert page.run("document.querySelectorAll('#documents img, #documents script, .map script').length") == 0

    # The heat map has every token; some were chosen, and the scores differ.
    assert "😀" in page.text(".map")
    tokens = page.run("document.querySelectorAll('.map span').length")
    told = page.text("#report > p")
    assert f"{tokens:,} tokens" in told
    chosen = page.run("document.querySelectorAll('.map .recomputed').length")
    assert 0 < chosen < tokens / 2
    assert f"{chosen} tokens recomputed" in page.text(".legend").replace("1 token ", "1 tokens ")
    assert page.run("new Set([...document.querySelectorAll('.map .reused')].map(it => it.style.background)).size") > 5

    # By keyboard from token to token.
    page.tab_to("it.closest('.map') && it.dataset.detail")
    first = page.text(".detail")
    page.press("ArrowRight")
    assert page.text(".detail") != first
    page.press("End")
    assert "question" in page.text(".detail")

    # What was stored is listed, and goes.
    page.wait_for("document.querySelectorAll('#store tbody tr').length >= 4")
    assert all(url.startswith((address(server)[:-2], "data:")) for url in page.requests), page.requests


def test_the_example_needs_no_typing(server, page):
    page.open(address(server))
    page.tab_to("it.id === 'sample'")
    page.press("Enter")
    assert page.run("document.querySelectorAll('#documents li').length") == 8
    ask(page)
    assert page.text("#blended-answer").strip()
    reused = int(re.search(r"([\d,]+) tokens reused", page.text(".legend"))[1].replace(",", ""))
    assert reused > 800
    # Nor does a phone have to be scrolled to the side.
    page.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.wait_for("document.querySelector('#store').checkVisibility()")


def test_a_document_may_go_while_it_is_stored(server, page):
    page.open(address(server))
    for number, text in enumerate(CHUNKS):
        add_text(page, f"Going {number + 1}", text)
    # Removed when the server has begun to answer, before the page reads of it.
    page.run("""{
      const fetch_ = window.fetch;
      window.fetch = async (path, options) => {
        const answer = await fetch_(path, options);
        if (path === 'v1/chunks') document.querySelector('#documents li:last-child button').click();
        return answer;
      };
      0;
    }""")
    ask(page, QUESTION)
    assert page.text("#blended-answer").strip()
    titles = page.run("[...document.querySelectorAll('#documents strong')].map(it => it.textContent)")
    states = page.run("[...document.querySelectorAll('#documents li > .hint')].map(it => it.textContent)")
    assert titles == ["Going 1", "Going 2"] and all("stored" in state for state in states), states


def test_a_text_that_is_being_typed_stays(server, page):
    page.open(address(server))
    add_text(page, "First", CHUNKS[0])
    page.wait_for("document.querySelectorAll('#documents li').length === 1")
    page.tab_to("it.id === 'add-text'")
    page.press("Enter")
    page.write("Half a title")
    page.press("Tab")
    page.write("Half a text")
    typed = "[document.querySelector('.edit input').value, document.querySelector('.edit textarea').value]"
    focus = "document.activeElement === document.querySelector('.edit textarea')"
    for button in ("#sample", "#documents li button"):  # the second removes a document
        page.run(f"document.querySelector('{button}').click()")
        assert page.run(typed) == ["Half a title", "Half a text"] and page.run(focus), button
    page.write(" more")
    ask(page)
    assert page.run(typed) == ["Half a title", "Half a text more"]
    # Added, the form goes, and so it does when it is cancelled.
    page.run("document.querySelector('.edit button').click()")
    assert page.run("document.querySelectorAll('.edit').length") == 0
    assert "Half a text more" in page.text("#documents li:last-child")
    page.tab_to("it.id === 'add-text'")
    page.press("Enter")
    page.run("document.querySelector('.edit button:last-child').click()")
    assert page.run("[document.querySelectorAll('.edit').length, document.activeElement.id]") == [0, "add-text"]
    assert page.run("document.querySelectorAll('#documents li').length") == 9


def test_files_are_cut_into_chunks(server, page, tmp_path):
    words = " ".join(f"The {number}th lighthouse of Westhaven was built of granite." for number in range(150))
    (tmp_path / "lighthouses.txt").write_text(words)
    (tmp_path / "note.md").write_text("The keeper of the lighthouse is called Ida.")
    page.open(address(server))
    page.choose_files("#files", [tmp_path / "lighthouses.txt", tmp_path / "note.md"])
    page.wait_for("document.querySelector('#documents').textContent.includes('note')")
    titles = page.run("[...document.querySelectorAll('#documents strong')].map(it => it.textContent)")
    assert titles[0] == "lighthouses (1)" and "lighthouses (3)" in titles and titles[-1] == "note"


def test_dark_and_narrow(server, page):
    page.open(address(server))

    def brightness(style):
        colour = page.run(f"getComputedStyle(document.body).{style}")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness("backgroundColor") > 600 > 200 > brightness("color")
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert brightness("color") > 600 > 200 > brightness("backgroundColor")
    add_text(page, "A title", " ".join(CHUNKS))
    page.command("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=1, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 360


def test_the_page_asks_for_a_key(start_server, new_page, tmp_path):
    key, line = make_key("--tenant", "red")
    (tmp_path / "keys.jsonl").write_text(line + "\n")
    server = start_server(*FLAGS, "--api-keys", tmp_path / "keys.jsonl")
    page = new_page()
    page.open(address(server))
    page.wait_for("document.querySelector('#key').checkVisibility()")
    # As a word processor quotes it, and with a space of no width, which nobody sees.
    for typed, said in ((f"\u201c{key}\u201d", "U+201C"), (f"{key}\u200b", "U+200B")):
        page.tab_to("it.id === 'key'")
        page.write(typed)
        page.press("Tab")
        page.wait_for(f"document.querySelector('#model').textContent === 'the API key has a character that no key has: {said}'")
        page.run("document.querySelector('#key').value = ''")
    page.tab_to("it.id === 'key'")
    page.write(f" {key} ")
    page.press("Tab")
    page.wait_for("document.querySelector('#model').textContent.includes('tokens')")
    page.close()
    server.stop()


def test_an_error_is_told(server, page):
    page.open(address(server))
    page.run("document.querySelector('#ratio').value = 7")
    page.tab_to("it.id === 'question'")
    page.write("Why?")
    page.press("Enter")
    page.wait_for("document.querySelector('#status').className === 'error'")
    assert "ratio is 7" in page.text("#status")
    page.problems.clear()  # the browser's own note of the 400


def test_a_failed_question_shows_nothing_of_the_last_one(server, page):
    page.open(address(server))
    add_text(page, "Passage", CHUNKS[0])
    page.run("document.querySelector('#max-tokens').value = ''")  # the server's own
    ask(page, QUESTION)
    assert page.text("#blended-answer") and page.text(".map")
    page.run("document.querySelector('#ratio').value = 7")
    page.tab_to("it.id === 'question'")
    page.press("Enter")
    page.wait_for("document.querySelector('#status').className === 'error'")
    assert "ratio is 7" in page.text("#status")
    for pane in ("#blended-answer", "#full-answer", "#verdict", "#report"):
        assert page.text(pane) == "", pane
    page.problems.clear()  # the browser's own note of the 400


def test_texts_from_right_to_left(server, page, tmp_path):
    arabic = "\u0645\u0631\u062d\u0628\u0627 (1948)!"
    page.open(address(server))
    add_text(page, arabic, arabic)
    add_text(page, "Passage", CHUNKS[0])
    ask(page, arabic)

    def directions(selector):
        return page.run(f"[...document.querySelectorAll('{selector}')].map(it => getComputedStyle(it).direction)")

    assert directions("#question") == ["rtl"]
    assert directions("#documents strong, #documents .text") == ["rtl", "rtl", "ltr", "ltr"]
    assert sorted(set(directions(".map p"))) == ["ltr", "rtl"]
    for selector in (".answer", "#system"):
        assert page.run(f"[...document.querySelectorAll('{selector}')].every(it => it.dir === 'auto')"), selector

    path = tmp_path / "report.html"
    done = run("kvblend", "generate", "--model", MODEL, "--no-self-check", "--max-context-tokens", 512, "--question",
               arabic + "x" * 200, "--max-tokens", 4, "--html", path, "--quiet")
    assert done.returncode == 0, done.stderr
    page.open(path.as_uri())
    assert directions("h1") == ["rtl"]
    page.command("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=1, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 360


def test_a_report_as_a_page(page, tmp_path):
    path = tmp_path / "report.html"
    done = run("kvblend", "generate", "--model", MODEL, "--no-self-check", "--max-context-tokens", 512, "--put", "--system",
               SYSTEM_TEXT, "--chunk", CHUNKS[0], "--chunk", "</script><b>bold</b> " + CHUNKS[1], "--question",
               "Who <i>built</i> it?", "--max-tokens", 4, "--html", path, "--quiet")
    assert done.returncode == 0, done.stderr
    page.open(path.as_uri())
    assert page.text("h1") == "Who <i>built</i> it?"
    assert page.text("p.answer") == done.stdout.rstrip("\n")
    assert "</script><b>bold</b>" in page.text(".map")
    assert page.run("document.querySelectorAll('.map .recomputed').length") > 0
    assert page.requests == [path.as_uri()]

    done = run("kvblend", "generate", "--model", MODEL, "--no-self-check", "--question", "Why?", "--max-tokens", 1, "--html",
               tmp_path / "no" / "report.html")
    assert done.returncode == 2 and f"cannot write {tmp_path / 'no' / 'report.html'}: " in done.stderr
