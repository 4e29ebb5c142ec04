"""Chromium without a screen, driven by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/).

Debian's python3-websocket speaks to it: a driver as selenium has it would be one more program between.
"""

import base64
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import websocket

from .wait import until

#: Width and height of windows: a desk's and a phone's.
DESK, PHONE = (1280, 800), (390, 844)

#: What keys are called, and what they type.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Home": (36, "")}


class Browser:
    """One page of a browser with an empty profile."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="weir-browser-")
        self.proc = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             "--remote-allow-origins=*", f"--user-data-dir={self.profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket, self.number = None, 0
        #: What the page has complained of: exceptions, refused resources, breaches of its policy.
        self.errors = []
        try:
            self.connect()
        except BaseException:
            self.close()
            raise

    def connect(self):
        port = Path(self.profile.name, "DevToolsActivePort")
        until(lambda: port.exists() and port.read_text().count("\n") >= 1, 30, "chromium")
        with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json", timeout=10) as answer:
            [page] = [target for target in json.load(answer) if target["type"] == "page"]
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=30)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (message := json.loads(self.socket.recv())).get("id") != self.number:
            self.note(message)
        assert "error" not in message, (method, message)
        return message["result"]

    def note(self, event):
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url):
        assert "errorText" not in self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression, which may be a promise."""
        outcome = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in outcome, (script, outcome)
        return outcome["result"].get("value")

    def wait(self, script, seconds=15):
        """Waits until an expression is true; its value."""
        values = []
        until(lambda: values.append(self.run(script)) or values[-1], seconds, f"{script} in the browser; {self.errors}")
        return values[-1]

    def text(self, selector):
        """What is shown there; `None` where nothing is there."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText")

    def rows(self, selector):
        """The texts of the cells of a table's rows."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector + ' tbody tr')})]"
                        ".map((tr) => [...tr.children].map((td) => td.innerText))")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def focus(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")

    def key(self, *names, modifiers=0):
        for name in names:
            code, text = KEYS[name]
            key = dict(key=name, code="Space" if name == " " else name, windowsVirtualKeyCode=code, modifiers=modifiers)
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **key)
            self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def window(self, size, scheme="light", motion="no-preference"):
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                          {"name": "prefers-reduced-motion", "value": motion}])

    def screenshot(self, path):
        """The whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        if self.socket:
            self.socket.close()
        self.proc.terminate()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        # Its children end after it, and write there until then.
        until(self.has_cleaned, what="the browser's files being gone")

    def has_cleaned(self):
        try:
            self.profile.cleanup()
        except OSError:
            return False
        return True
