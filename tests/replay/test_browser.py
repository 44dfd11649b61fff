"""The page in a real browser, without a window: what a person does with keys and mouse, and what comes of it.

Runs where `chromedriver` and a Chrome or Chromium are found (Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import socket
import subprocess
import time
import urllib.request

import pytest
from PIL import Image

DRIVER = shutil.which("chromedriver")
CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(
    not (DRIVER and CHROME), reason="needs chromedriver and Chromium: apt-get install chromium chromium-driver"
)
KEYS = {"left": "\ue012", "right": "\ue014", "home": "\ue011", "end": "\ue010", "escape": "\ue00c", "shift": "\ue008"}


class Browser:
    """As much of WebDriver as these tests need."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.session = ""
        for _ in range(100):
            try:
                if self.ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.1)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        wanted = {"goog:chromeOptions": {"binary": CHROME, "args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        opened = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{opened['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def close(self):
        try:
            if self.session:
                self.ask("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait()

    def open(self, path, width=1280, height=860, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.ask("POST", f"{self.session}/url", {"url": path.as_uri()})

    def devtools(self, command, parameters):
        return self.ask("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script):
        return self.ask("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def press(self, *keys):
        keys = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": key} for key in keys]
        actions += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.ask("POST", f"{self.session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, x, y):
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0}]
        moves.append({"type": "pointerUp", "button": 0})
        self.ask("POST", f"{self.session}/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def click_on(self, selector):
        box = self.box(selector)
        self.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def box(self, selector):
        return self.run(f"return document.querySelector({selector!r}).getBoundingClientRect().toJSON()")

    def text(self, selector):
        return self.run(f"return document.querySelector({selector!r}).textContent")

    def picture(self, whole=False):
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def complaints(self):
        return self.ask("POST", f"{self.session}/se/log", {"type": "browser"})
