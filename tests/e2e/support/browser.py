"""A headless Chromium, driven through its DevTools protocol: what a person does with mouse and keyboard, and what they see."""

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import tempfile

from websockets.sync.client import connect

from conftest import WAIT_SECONDS, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEYS = {"Enter": ("\r", 13), "Tab": ("\t", 9), "ArrowRight": ("", 39), "ArrowLeft": ("", 37), "ArrowDown": ("", 40),
        "End": ("", 35), "Home": ("", 36), " ": (" ", 32)}


def address(server):
    """Of the page."""
    return f"http://127.0.0.1:{server.api_port}/ui"


class Page:
    """One page. Keeps the addresses that it asked for and what went wrong in it."""

    def __init__(self, socket, domains=("Page", "Runtime", "Network", "Log", "DOM")):
        self._socket = socket
        self._ids = itertools.count(1)
        self.requests = []
        self.problems = []
        for domain in domains:
            self.command(f"{domain}.enable")

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def command(self, method, **params):
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=WAIT_SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer)

    def run(self, script):
        """The value of a JavaScript expression; promises are awaited."""
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def before_scripts(self, script):
        """Runs a script in every page that is opened from now on, before its own."""
        self.command("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url):
        self.command("Page.navigate", url=url)
        wait_until(lambda: self.run("document.readyState") == "complete", url)

    def wait_for(self, script):
        return wait_until(lambda: self.run(script), script)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def press(self, key, modifiers=0):
        text, code = KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.command("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.command("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        """Types into what has the focus."""
        self.command("Input.insertText", text=text)

    def tab_to(self, condition):
        """Presses Tab until `condition`, in which `it` is what has the focus, holds; not at all if it does."""
        for _ in range(200):  # what is stored has a button each
            if self.run(f"(it => Boolean({condition}))(document.activeElement)"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab never reaches what {condition} says")

    def choose_files(self, selector, paths):
        root = self.command("DOM.getDocument")["root"]["nodeId"]
        node = self.command("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.command("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self):
        self._socket.close()


@contextlib.contextmanager
def open_browser():
    """Yields a function that opens a page."""
    # Chromium's helpers may still write into the profile after it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, contextlib.ExitStack() as sockets:
        with subprocess.Popen(
                [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                 "--no-first-run", "--remote-debugging-port=0", "--window-size=1200,1000", f"--user-data-dir={profile}",
                 "about:blank"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as browser:
            try:
                for line in browser.stderr:
                    if found := re.search(r"DevTools listening on (ws://(\S+?)/\S+)", line):
                        break
                else:
                    raise AssertionError("Chromium did not start")
                root = Page(sockets.enter_context(connect(found[1], max_size=None)), domains=())

                def new_page():
                    target = root.command("Target.createTarget", url="about:blank")["targetId"]
                    return Page(sockets.enter_context(
                        connect(f"ws://{found[2]}/devtools/page/{target}", max_size=None)))

                yield new_page
            finally:
                browser.terminate()
                browser.stderr.close()
