"""A real browser, driven over its DevTools protocol: Debian's Chromium, and no other download."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60.0  # seconds until a browser that does not answer is given up


class Tab:
    """One tab: commands go out, events are kept in the order in which they come."""

    def __init__(self, socket):
        self.socket, self.events, self.ids, self.session = socket, [], itertools.count(1), None

    def send(self, method, **params):
        number = next(self.ids)
        place = {"sessionId": self.session} if self.session else {}
        self.socket.send(json.dumps({"id": number, "method": method, "params": params, **place}))
        while True:
            answer = json.loads(self.socket.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def heard(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]

    def evaluate(self, expression):
        result = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.05)

    def resize(self, width, height):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def prefer(self, **features):
        """Media features as the system would set them: `prefers_color_scheme="dark"`."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.send("Emulation.setEmulatedMedia", features=named)

    def press(self, key):
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text,
            )  # fmt: skip

    def screenshot(self, path, whole=True):
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def pdf(self):
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def open(self, path):
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")


@contextmanager
def browser():
    """A fresh browser with one blank tab, its console, network and log listened to."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [
            CHROMIUM, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={home}",
            "--no-first-run", "--hide-scrollbars", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        ) as process:
            try:
                with connect(_address(Path(home), process), max_size=None) as socket:
                    tab = Tab(socket)
                    target = tab.send("Target.createTarget", url="about:blank")["targetId"]
                    tab.session = tab.send("Target.attachToTarget", targetId=target, flatten=True)[
                        "sessionId"
                    ]
                    for domain in ("Page", "Runtime", "Network", "Log"):
                        tab.send(f"{domain}.enable")
                    yield tab
            finally:
                process.terminate()


def _address(home, process):
    """Chromium writes the port it chose, and the path to it, into its own folder."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        file = home / "DevToolsActivePort"
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise RuntimeError("Chromium did not start")
