"""The load beside the store on the page at /ui, in headless Chromium."""

import json

import pytest

from support.browser import CHROMIUM, address
from conftest import FLAGS
from http_client import client_of
from test_keys import make_key

pytest_plugins = ["support.pages"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (deploy/install_dependencies.sh --browser)")

# The page's clock and its line to the server, in the hands of the test: timers of the load run, and requests for it are answered, when
# the test says so.
IN_HAND = """{
  const [setTimeout_, clearTimeout_, fetch_] = [window.setTimeout, window.clearTimeout, window.fetch];
  window.timers = new Map();
  window.asked = [];
  window.setTimeout = (run, delay) => {
    if (delay === 10000) return window.giveUp = run;
    if (![0, 3000, 15000].includes(delay)) return setTimeout_(run, delay);
    const timer = {delay};
    timers.set(timer, run);
    return timer;
  };
  window.clearTimeout = (timer) => timers.delete(timer) || clearTimeout_(timer);
  window.delays = () => [...timers.keys()].map(({delay}) => delay);
  window.runTimers = () => { for (const [timer, run] of [...timers]) { timers.delete(timer); run(); } };
  window.fetch = (path, options) => path !== 'v1/info' ? fetch_(path, options) : new Promise((resolve, reject) => {
    asked.push({resolve, reject});
    options.signal.onabort = () => reject(options.signal.reason);
  });
  window.answer = (info, status = 200) => asked.at(-1).resolve(new Response(JSON.stringify(info), {status}));
}"""
INFO = {
    "uptime_seconds": 100, "totals_left_out": False,
    "load": {"requests_waiting": 3, "requests_running": 5, "sequences_decoding": 4, "pages_used": 250, "pages_total": 1000, "pages_kept": 100,
             "tokens_waiting": "12345", "predicted_wait_seconds": 6.78, "decoded_tokens": "1000"},
    "store": {"used_bytes": "134000000", "budget_bytes": "268000000", "lookups": "50", "hits": "50",
              "prompt_chunks": "40", "prompt_chunks_found": "30"},
}
FIGURES = "Object.fromEntries([...document.querySelectorAll('#load-figures dd')].map(it => [it.id.slice(5), it.textContent]))"


@pytest.fixture
def page_in_hand(server, page):
    page.before_scripts(IN_HAND)
    page.open(address(server))
    page.wait_for("asked.length === 1")
    return page


def answer(page, info, status=200):
    """Answers the request in flight; waits until the page has drawn it and set its next timer."""
    page.run(f"answer({json.dumps(info)}, {status})")
    page.wait_for("timers.size === 1")


def look_again(page):
    page.run("runTimers()")


def with_load(seconds, **load):
    return INFO | {"uptime_seconds": seconds, "load": INFO["load"] | load}


def hide(page, *states):
    """As if another tab came before this one, or went."""
    page.run(f"""for (const value of {json.dumps(states)}) {{
      Object.defineProperty(document, 'hidden', {{value, configurable: true}});
      document.dispatchEvent(new Event('visibilitychange'));
    }}""")


def test_the_load_is_that_of_the_server(server, page):
    client = client_of(server)
    model = client.models.list().data[0].id
    page.open(address(server))
    page.wait_for("document.querySelector('#load-pages').textContent.includes(' of ')")
    assert page.run(FIGURES)["decoding"] == "0 answers"
    with client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count."}], max_tokens=1500,
                                        stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        page.wait_for(f"{FIGURES}.decoding === '1 answer'")
        page.wait_for(f"parseFloat({FIGURES}.rate) > 0")
    page.wait_for(f"{FIGURES}.decoding === '0 answers'")


def test_figures_are_those_that_were_told(page_in_hand):
    page = page_in_hand
    answer(page, INFO)
    told = page.run(FIGURES)
    assert told == {"decoding": "4 answers", "prefill": "1 request", "waiting": "3 12,345 tokens, 6.8 s", "rate": "– tokens/s",
                    "pages": "25% 250 of 1,000, 100 kept", "store": "50% 134 MB of 268 MB", "hits": "75% of 40 chunks"}
    widths = page.run("[...document.querySelectorAll('.fill i')].map(it => it.style.width)")
    assert widths == ["25%", "10%", "50%"]
    look_again(page)
    answer(page, with_load(104, decoded_tokens="1250", requests_waiting=0))
    assert page.run(FIGURES)["rate"] == "63 tokens/s" and page.run(FIGURES)["waiting"] == "0"
    # A server that began anew has no rate yet.
    look_again(page)
    answer(page, with_load(1, decoded_tokens="10"))
    assert page.run(FIGURES)["rate"] == "– tokens/s"


def test_one_request_at_a_time_and_none_while_nobody_looks(page_in_hand, new_page):
    page = page_in_hand
    # While one is in flight no other begins, whatever happens.
    page.run("document.querySelector('#key').onchange()")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert page.run("[asked.length, timers.size]") == [1, 0]
    answer(page, INFO)
    assert page.run("delays()") == [3000]
    # Behind another tab no timer is left that could ask. Seen again, it asks at once.
    other = new_page()
    other.command("Page.bringToFront")
    page.wait_for("document.hidden && timers.size === 0")
    assert page.run("asked.length") == 1
    page.command("Page.bringToFront")
    page.wait_for("!document.hidden && asked.length === 2")
    other.close()
    answer(page, with_load(200, decoded_tokens="9000"))
    assert page.run(FIGURES)["rate"] == "– tokens/s", "the mean of an hour away is not what it is now"
    # Hidden while it waits for an answer: it does not wait any longer, and says nothing of it.
    look_again(page)
    assert page.run("asked.length") == 3
    hide(page, True)
    page.wait_for("timers.size === 0")
    hide(page, False)
    page.wait_for("asked.length === 4")
    answer(page, INFO)
    assert page.text("#load-status") == ""
    # Seen again before the request that was given up has ended.
    look_again(page)
    hide(page, True, False)
    page.wait_for("timers.size === 1")
    assert page.run("delays()") == [0] and page.text("#load-status") == ""
    look_again(page)
    answer(page, INFO)


def test_it_can_be_stopped_by_keyboard(page_in_hand):
    page = page_in_hand
    answer(page, INFO)
    page.tab_to("it.id === 'load-live'")
    page.press(" ")
    assert page.run("[asked.length, timers.size]") == [1, 0]
    page.press(" ")
    page.wait_for("asked.length === 2")
    answer(page, INFO)
    # Figures that change by themselves are not read out; that it fails is.
    assert page.run("document.querySelector('#load-figures').closest('[aria-live], [role=status]')") is None
    assert page.run("document.querySelector('#load-status').getAttribute('role')") == "status"
    nodes = page.command("Accessibility.getFullAXTree")["nodes"]
    named = {node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "region" and "name" in node}
    assert {"Load", "Store"} <= named


def test_a_failure_is_told_and_passes(page_in_hand):
    page = page_in_hand
    answer(page, INFO)
    look_again(page)
    answer(page, {"error": {"message": "the server is shutting down"}}, 503)
    assert page.text("#load-status") == "the server is shutting down"
    assert page.run("document.querySelector('#load-figures').className") == "figures stale"
    assert page.run("delays()") == [15000], "less often"
    look_again(page)
    page.run("asked.at(-1).reject(new TypeError('Failed to fetch'))")
    page.wait_for("timers.size === 1")
    assert page.text("#load-status") == "the server cannot be reached"
    look_again(page)
    page.run("giveUp()")
    page.wait_for("timers.size === 1")
    assert page.text("#load-status") == "no answer within 10 s"
    look_again(page)
    answer(page, INFO)
    assert page.text("#load-status") == "" and page.run("document.querySelector('#load-figures').className") == "figures"


def test_the_load_is_for_admins(start_server, new_page, tmp_path):
    keys = {name: make_key("--tenant", name, *flags) for name, flags in {"red": [], "boss": ["--admin"]}.items()}
    (tmp_path / "keys.jsonl").write_text("".join(f"{line}\n" for _, line in keys.values()))
    server = start_server(*FLAGS, "--api-keys", tmp_path / "keys.jsonl")
    page = new_page()
    page.open(address(server))
    page.wait_for("document.querySelector('#key').checkVisibility()")
    assert not [url for url in page.requests if url.endswith("/v1/info")], "without a key there is no use in asking"
    page.tab_to("it.id === 'key'")
    page.write(keys["red"][0])
    page.press("Tab")
    page.wait_for("document.querySelector('#load-status').textContent.includes('admins')")
    assert not page.run("document.querySelector('#load-figures').checkVisibility()")
    assert not page.run("document.querySelector('#load-live').checkVisibility()")
    page.run("document.querySelector('#key').value = ''")
    page.tab_to("it.id === 'key'")
    page.write(keys["boss"][0])
    page.press("Tab")
    page.wait_for("document.querySelector('#load-pages').textContent.includes(' of ')")
    assert page.run("document.querySelector('#load-figures').checkVisibility()") and page.text("#load-status") == ""
    page.close()
    server.stop()
