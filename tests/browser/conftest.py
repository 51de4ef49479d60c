"""A headless Chromium, and a web server on this machine that remembers what it was asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import absent

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --enable-logging=stderr"
).split()

# No name leads anywhere: what the browser itself would ask for stays here too.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"

DARK = "--blink-settings=preferredColorScheme=0"


class Seen(NamedTuple):
    """What one start of the browser gave."""

    output: str
    console: list[str]
    """What the page's console said: errors, violations of its policy."""


class Browser:
    """Each call is a fresh browser with a profile of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.count = 0

    def __call__(self, *arguments: str) -> Seen:
        self.count += 1
        profile = self.folder / f"profile-{self.count}"
        command = [self.program, *OPTIONS, OFFLINE, f"--user-data-dir={profile}", *arguments]
        # The launcher and the browser write below HOME.
        environment = os.environ | {"HOME": str(self.folder), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
        result = subprocess.run(command, env=environment, capture_output=True, timeout=120)
        shutil.rmtree(profile, ignore_errors=True)
        told = result.stderr.decode("utf-8", "replace")
        assert result.returncode == 0, told
        return Seen(result.stdout.decode("utf-8"), re.findall(r":CONSOLE[:(].*", told))

    def dom(self, url: str, *options: str) -> Seen:
        """The document as it is once it is loaded, as HTML."""
        return self(*options, "--dump-dom", url)

    def picture(self, url: str, width: int, height: int, *options: str) -> tuple[bytes, Seen]:
        """A PNG of the first ``height`` lines."""
        path = self.folder / f"picture-{self.count}.png"
        seen = self(*options, f"--window-size={width},{height}", f"--screenshot={path}", url)
        return path.read_bytes(), seen


class Site:
    """Pages by path, and every path that was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _handler(site) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                body = site.pages.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


def _starts(program: str) -> bool:
    """Some systems have a command of that name that only says how to install the browser."""
    return subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    program = next(filter(_starts, filter(None, map(shutil.which, NAMES))), None)
    if program is None:
        absent("chromium", f"none of {', '.join(NAMES)} is installed")
    return Browser(program, tmp_path_factory.mktemp("browser"))


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()
