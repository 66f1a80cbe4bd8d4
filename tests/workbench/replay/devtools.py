"""A headless Chromium, driven by its DevTools protocol over a pair of pipes: no port, and no library.

The page's own words about itself are kept as they come: console messages, exceptions, policy violations, requests.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LATEST_SECONDS = 300.0
# The browser reads commands from 3 and writes answers to 4.
_WITH_PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_KEYS = {
    "Tab": 9, "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37,
    "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
_WATCH = """
globalThis.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""


@dataclass
class Browser:
    """A running Chromium."""

    commands: int
    answers: int
    number: int = 0
    unread: bytes = b""
    events: list[Json] = field(default_factory=list)

    def ask(self, method: str, session: str | None = None, **parameters: object) -> Json:
        """One command, and its answer. ``AssertionError`` where the browser reports an error, or says nothing."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        sent = json.dumps(command).encode() + b"\0"
        while sent:
            sent = sent[os.write(self.commands, sent) :]
        deadline = time.monotonic() + _LATEST_SECONDS
        while True:
            found = self._next(deadline, method)
            if found.get("id") == self.number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]
            self.events.append(found)

    def wait_for(self, method: str, session: str) -> Json:
        """The event of that name, come or to come."""
        deadline = time.monotonic() + _LATEST_SECONDS
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event["params"]
            self.events.append(self._next(deadline, method))

    def _next(self, deadline: float, waited_for: str) -> Json:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium does not answer: {waited_for}"
            piece = os.read(self.answers, 1 << 20)
            assert piece, f"Chromium has ended: {waited_for}"
            self.unread += piece
        found, _, self.unread = self.unread.partition(b"\0")
        return json.loads(found)

    @contextmanager
    def page(
        self, file: Path, width: int = 1_400, height: int = 900, *, dark: bool = False, scripts: bool = True
    ) -> Generator[Page]:
        """A file, opened in a tab of its own and loaded; what it reports is kept from the beginning."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.colours(dark=dark)
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        page.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.ask("Page.navigate", url=file.as_uri())
        self.wait_for("Page.loadEventFired", session)
        if scripts:
            page.settle()
        try:
            yield page
        finally:
            self.ask("Target.closeTarget", targetId=target)


@dataclass
class Page:
    """A page in a tab."""

    browser: Browser
    session: str

    def ask(self, method: str, **parameters: object) -> Json:
        """One command for this page."""
        return self.browser.ask(method, self.session, **parameters)

    def value(self, expression: str) -> Json:
        """What a JavaScript expression gives, awaited. ``AssertionError`` where it throws."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def settle(self) -> None:
        """Wait until what is to be drawn is drawn."""
        self.value("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")

    def until(self, expression: str) -> None:
        """Wait until that is so. ``AssertionError`` where it does not come to be."""
        deadline = time.monotonic() + _LATEST_SECONDS / 4
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            self.settle()

    def press(self, key: str, times: int = 1) -> None:
        """A key, as from a keyboard."""
        parameters: dict[str, object] = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        for _ in range(times):
            typed = {"text": "\r"} if key == "Enter" else {}
            self.ask("Input.dispatchKeyEvent", type="keyDown", **parameters, **typed)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **parameters)
        self.settle()

    def click(self, selector: str, x: float | None = None, y: float | None = None) -> None:
        """The left button of the mouse on the first such element: so far from its left and top, else in its middle."""
        left, top, width, height = self.value(
            f"(() => {{ const found = document.querySelector({selector!r}); found.scrollIntoView({{block: 'center'}});"
            "const at = found.getBoundingClientRect(); return [at.left, at.top, at.width, at.height]; })()"
        )
        place = {"x": left + (width / 2 if x is None else x), "y": top + (height / 2 if y is None else y)}
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        self.settle()

    def give(self, control: str, value: int, event: str) -> None:
        """Give a control a value, as whoever moves it does."""
        self.value(
            f"(() => {{ const control = document.querySelector({control!r}); control.value = {value};"
            f"control.dispatchEvent(new Event({event!r})); }})()"
        )

    def colours(self, *, dark: bool) -> None:
        """What the reader prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        """A PNG of the whole page."""
        done = self.ask("Page.captureScreenshot", captureBeyondViewport=True, format="png", **self._whole())
        file.write_bytes(base64.b64decode(done["data"]))

    def _whole(self) -> dict[str, object]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def reported(self, *methods: str) -> list[Json]:
        """The parameters of all events of these names so far."""
        self.settle()
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event["method"] in methods]

    def complaints(self) -> list[Json]:
        """All that went wrong: policy violations, exceptions, console and log messages."""
        events = self.reported("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [*self.value("violations"), *events]

    def asked_for(self) -> set[str]:
        """The addresses of all requests."""
        return {str(event["request"]["url"]) for event in self.reported("Network.requestWillBeSent")}


@contextmanager
def chromium(folder: Path) -> Generator[Browser]:
    """Start Chromium with its files in that folder, and end it."""
    assert PROGRAM is not None
    theirs_in, commands = os.pipe()
    answers, theirs_out = os.pipe()
    # No sandbox: it needs rights that a container may lack, and the only pages are files of ours.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server", "--remote-debugging-pipe",
               f"--user-data-dir={folder / 'chromium'}", "about:blank"]  # fmt: skip
    # Above 4, so that taking 3 and 4 does not close what is to be put there.
    inherited = [_above(theirs_in), _above(theirs_out)]
    launch = [sys.executable, "-c", _WITH_PIPES, *map(str, inherited), PROGRAM, *options]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(launch, pass_fds=inherited, stdout=log, stderr=log)
    for each in (*inherited, theirs_in, theirs_out):
        os.close(each)
    browser = Browser(commands, answers)
    try:
        yield browser
        browser.ask("Browser.close")
    finally:
        os.close(commands)
        os.close(answers)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _above(descriptor: int) -> int:
    """The same, under a number above those that Chromium asks for."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
