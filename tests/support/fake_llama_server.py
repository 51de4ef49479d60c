"""A server of llama.cpp's kind that knows no model: ``python fake_llama_server.py -m X --port N ...``.

Its answers follow from the prompt alone, unless FAKE_PEER says otherwise; several words, parted by spaces:

neighbours  another token 5 while another request is being answered
ubatch      another token 9 with ``-ub 16``
dies        ends before it is ready, with a message
dies-later  ends at the first question
silent      is never ready
slow        answers no question for a minute
old         answers without ids
refuses     status 400
stubborn    takes no notice of SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = os.environ.get("FAKE_PEER", "").split()
ARGUMENTS = sys.argv[1:]

_lock = threading.Lock()
_active = 0


def option(name: str) -> str:
    return ARGUMENTS[ARGUMENTS.index(name) + 1]


def tokens_of(body: dict[str, Any], neighbours: bool) -> list[int]:
    start = sum(body["prompt"]) % 1000
    tokens = [(start + 7 * i) % 1000 for i in range(body["n_predict"])]
    if neighbours and "neighbours" in FAULTS and len(tokens) > 5:
        tokens[5] += 1000
    if "ubatch" in FAULTS and option("-ub") == "16" and len(tokens) > 9:
        tokens[9] += 1000
    return tokens


def answered(body: dict[str, Any]) -> dict[str, Any]:
    """Waits a moment, so that questions asked at the same time meet."""
    global _active
    with _lock:
        _active += 1
    time.sleep(0.02)
    with _lock:
        beside = _active > 1
    time.sleep(0.02)
    with _lock:
        _active -= 1
    cached = len(body["prompt"]) // 2 if body["cache_prompt"] else 0
    return {"tokens": tokens_of(body, beside), "timings": {"cache_n": cached}}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        ready = "silent" not in FAULTS
        self._send(200 if ready else 503, {"build_info": "b1-fake"} if self.path == "/props" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "dies-later" in FAULTS:
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        if "slow" in FAULTS:
            time.sleep(60)
        if "refuses" in FAULTS:
            return self._send(400, {"error": {"message": "no such model"}})
        self._send(200, {"content": "text"} if "old" in FAULTS else answered(body))

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    if "stubborn" in FAULTS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "dies" in FAULTS:
        sys.exit("unknown architecture")
    if pids := os.environ.get("FAKE_PEER_PIDS"):
        with open(pids, "a") as file:
            file.write(f"{os.getpid()}\n")
    server = ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler)
    server.daemon_threads = True
    server.serve_forever()
