"""A real Chromium without a screen, spoken to through its driver (W3C WebDriver) with nothing but the standard library.

`with Browser() as b`: it has a profile of its own, which goes with it. Missing() is raised where there is none.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

LIMIT_S = 120  # so late that only what never comes reaches it


class Missing(Exception):
    pass


class Browser:
    def __init__(self, width=1280, height=900):
        self.size = f"--window-size={width},{height}"
        self.driver = shutil.which("chromedriver")
        self.chromium = shutil.which("chromium")
        if not self.driver or not self.chromium:
            raise Missing("chromium or chromedriver is not here (packages chromium, chromium-driver)")

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = {**os.environ, "HOME": self.folder.name, "TMPDIR": self.folder.name}
        # A group of its own: the browser's many processes end with it, whatever becomes of the driver.
        self.process = subprocess.Popen([self.driver, f"--port={port}"], env=env, start_new_session=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            self.wait_for("the driver", lambda: self.call("GET", "/status")["ready"])
            arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", self.size,
                         "--no-proxy-server", f"--user-data-dir={self.folder.name}/profile", "--disable-extensions",
                         "--disable-background-networking", "--no-first-run"]
            wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                      "goog:chromeOptions": {"binary": self.chromium, "args": arguments}}
            made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.__exit__()
            raise
        self.base += f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        except Exception:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.folder.cleanup()

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self.opener.open(request, timeout=LIMIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {json.load(error)['value']}") from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """The value that the body of a function returns in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector):
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        self.call("POST", f"/element/{next(iter(found.values()))}/click", {})

    def text(self, selector="body"):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def complaints(self):
        """What the page's console has said since it was asked last: errors, refused scripts, failed requests."""
        return [f"{line['level']}: {line['message']}" for line in self.call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        import base64
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("GET", "/screenshot")))

    def wait_for(self, what, condition):
        end, last = time.monotonic() + LIMIT_S, None
        while time.monotonic() < end:
            try:
                last = condition()
                if last:
                    return last
            except (OSError, RuntimeError) as error:
                last = error
            time.sleep(0.05)
        raise AssertionError(f"{what} never came; the last look: {last}")
