"""A hub on localhost: what ``huggingface_hub`` asks of one, with the faults that a real one has.

``GET  /api/models/OWNER/REPO[/revision/REV]?blobs=True``  commit, and files with sizes and LFS digests
``GET  /OWNER/REPO/resolve/COMMIT/FILE``                   a redirect to the second host, as to a CDN
``GET  /cdn/DIGEST?signature=...``                         the bytes, or those of a Range
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Repo:
    """``files`` by path; ``branches`` are the names of its revisions, each a commit."""

    files: dict[str, bytes]
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    untracked: set[str] = field(default_factory=set)
    """Files that are stored in Git itself, not in LFS."""
    lies: dict[str, str] = field(default_factory=dict)
    """sha256 by path, where it isn't that of the bytes."""
    gated: bool = False
    token: str = ""
    """Without it a private repository isn't there."""


class Hub:
    """What is served, what went wrong on purpose, and what was asked for."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.drops: list[int] = []
        """Bytes after which the connections that send files break off, one after the other."""
        self.status = 0
        """Not 0: how every question is answered."""
        self.body = b""
        self.ignores_ranges = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers, in order."""
        self.endpoint = self.cdn = ""

    def ranges(self) -> list[str]:
        """The Range of each request for bytes; "" for all of them."""
        return [headers.get("range", "") for _, path, headers in self.requests if path.startswith("/cdn/")]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub and its CDN at two ports of localhost, until the end of the block."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests' output is theirs."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append((self.command, path, headers))
        if self.hub.status:
            return self._send(self.hub.status, self.hub.body)
        words = path.strip("/").split("/")
        if words[0] == "cdn":
            return self._send_file(words[1])
        repo = self.hub.repos.get("/".join(words[2:4] if words[:2] == ["api", "models"] else words[:2]))
        if repo is None or repo.token not in ("", self._token()):
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if words[:2] == ["api", "models"]:
            return self._send_info(repo, words[2:4], "/".join(words[5:]) or "main")
        return self._send_redirect(repo, words[3], "/".join(words[4:]))

    def _token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")

    def _send_info(self, repo: Repo, name: list[str], revision: str) -> None:
        commits = repo.branches | {commit: commit for commit in repo.branches.values()}
        if revision not in commits:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = [_sibling(repo, path, data) for path, data in repo.files.items()]
        info = {"id": "/".join(name), "sha": commits[revision], "siblings": files, "private": False, "tags": []}
        return self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _send_redirect(self, repo: Repo, commit: str, path: str) -> None:
        if repo.gated and not self._token():
            return self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"})
        if path not in repo.files or commit not in repo.branches.values():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        digest = hashlib.sha256(repo.files[path]).hexdigest()
        return self._send(302, b"", {"Location": f"{self.hub.cdn}/cdn/{digest}?signature=secret"})

    def _send_file(self, digest: str) -> None:
        files = (data for repo in self.hub.repos.values() for data in repo.files.values())
        data = next(data for data in files if hashlib.sha256(data).hexdigest() == digest)
        begin, status, headers = 0, 200, {}
        if (wanted := self.headers.get("Range")) and not self.hub.ignores_ranges:
            begin, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        limit = self.hub.drops.pop(0) if self.hub.drops else None
        self._send(status, data[begin:], headers, limit)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, limit: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:limit])
        if limit is not None:
            self.wfile.flush()
            self.close_connection = True


def _sibling(repo: Repo, path: str, data: bytes) -> dict[str, object]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git}
    if path not in repo.untracked:
        digest = repo.lies.get(path, hashlib.sha256(data).hexdigest())
        entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
    return entry
