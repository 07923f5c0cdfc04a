"""Headless Chromium, driven as a person would by chromedriver, in the W3C WebDriver protocol (which Selenium uses)."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = (
    "" if CHROMIUM and DRIVER else "no Chromium with its driver is installed (apt install chromium chromium-driver)"
)
KEYS = {
    "tab": "\ue004", "escape": "\ue00c", "right": "\ue014", "left": "\ue012", "down": "\ue015", "up": "\ue013",
    "enter": "\ue007", "home": "\ue011", "end": "\ue010", "alt": "\ue00a", "control": "\ue009", "shift": "\ue008",
}  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class BrowserError(Exception):
    """What the driver answers with an error."""


class Browser:
    """One window."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def open(self, url: str) -> None:
        self.call("/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in JavaScript returns."""
        return self.call("/execute/sync", {"script": script, "args": [*arguments]})

    def find(self, selector: str) -> Any:
        """The first element that is shown; waits for it."""
        return self.wait(lambda: next(iter(self.find_all(selector)), None), f"no element '{selector}'")

    def find_all(self, selector: str) -> list[Any]:
        """All elements that are shown."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())", selector
        )  # type: ignore[no-any-return]

    def wait(self, test: Callable[[], Any], problem: str | Callable[[], str], seconds: float = 20) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if result := test():
                return result
            time.sleep(0.05)
        raise AssertionError(problem if isinstance(problem, str) else problem())

    def text(self, selector: str = "main") -> str:
        """The text that a reader sees."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)  # type: ignore[no-any-return]

    def wait_for(self, text: str, selector: str = "main") -> None:
        self.wait(lambda: text in self.text(selector), lambda: f"no '{text}' in: {self.text(selector)[:600]}")

    def click(self, selector: str) -> None:
        self.call(f"/element/{self.find(selector)[ELEMENT]}/click")

    def click_text(self, text: str, selector: str = "button") -> None:
        """Click the first such element with this text."""

        def find() -> Any:
            script = (
                "return [...document.querySelectorAll(arguments[0])]"
                ".find(e => e.checkVisibility() && e.innerText.trim() === arguments[1])"
            )
            return self.run(script, selector, text)

        element = self.wait(find, f"no {selector} with the text '{text}'")
        self.call(f"/element/{element[ELEMENT]}/click")

    def type(self, text: str, selector: str | None = None) -> None:
        """Type into an element that is emptied first; or with None, where the focus is."""
        if selector is not None:
            name = self.find(selector)[ELEMENT]
            self.call(f"/element/{name}/clear")
            self.call(f"/element/{name}/value", {"text": text})
            return
        self.press(*text)

    def press(self, *keys: str) -> None:
        """Press keys one after the other; "alt+down" holds the first."""
        actions: list[dict[str, str]] = []
        for combination in keys:
            names = [
                KEYS.get(name, name) for name in (combination.split("+") if len(combination) > 1 else [combination])
            ]
            actions += [{"type": "keyDown", "value": name} for name in names]
            actions += [{"type": "keyUp", "value": name} for name in reversed(names)]
        self.call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def hover(self, selector: str) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": self.find(selector)}
        self.call("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def select(self, value: str, selector: str) -> None:
        """Choose an option of a select."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"
        self.run(script, self.find(selector), value)

    def focus(self) -> str:
        """Text or name of the element with the focus."""
        return self.run(
            "const e = document.activeElement; return e.getAttribute('aria-label') ?? e.innerText ?? e.tagName"
        )  # type: ignore[no-any-return]

    def log(self) -> list[str]:
        """Messages of the console: warnings and errors, violations of the page's policy among them."""
        entries = self.call("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def set_width(self, width: int, height: int = 900) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def set_theme(self, theme: str) -> None:
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def devtools(self, command: str, **values: Any) -> Any:
        return self.call("/goog/cdp/execute", {"cmd": command, "params": values})

    def save_picture(self, file: Path) -> None:
        """The whole page as PNG."""
        data = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    assert CHROMIUM is not None and DRIVER is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1100,900",
    ]  # fmt: skip
    options = {"binary": CHROMIUM, "args": arguments}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    service = Browser(f"http://127.0.0.1:{port}")
    try:

        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                return bool(service.call("/status", method="GET")["ready"])
            return False

        service.wait(is_ready, "chromedriver does not start", 60)
        session = service.call("/session", {"capabilities": {"alwaysMatch": wanted}})
        browser = Browser(f"{service.url}/session/{session['sessionId']}")
        try:
            yield browser
        finally:
            browser.call("", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(20)
