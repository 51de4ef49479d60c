"""A server of llama.cpp's kind as a process of its own on localhost, and the questions asked of it.

with Server([path, "-m", model], answer_within=600) as server:
    answers = server.ask([{"prompt": tokens, "n_predict": 64}])     # all at the same time
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any, Self

from kinetic.api.bench_llama import NO_GPU
from kinetic.errors import FileProblem

HOST = "127.0.0.1"

READY_WITHIN, ANSWER_WITHIN, END_WITHIN = 300.0, 900.0, 2.0
"""Seconds: to load the model, to answer one question, and to go when asked to: llama.cpp finishes answers first."""

TRIES = 3
"""Ports: another program may take one between its being found free and its being used."""

MOST = 64 << 20
"""Bytes of one answer."""

Body = dict[str, Any]


class Server:
    """Raises FileProblem: PEER_FAILED if it can't be started, dies or answers something else, PEER_TIMEOUT."""

    def __init__(
        self, command: Sequence[str], *, ready_within: float = READY_WITHIN, answer_within: float = ANSWER_WITHIN
    ) -> None:
        self._command = command
        self._ready_within, self._answer_within = ready_within, answer_within
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Self:
        try:
            for tried in range(TRIES):
                self._start()
                if self._is_ready(last=tried == TRIES - 1):
                    return self
            raise AssertionError("the last try returns or raises")
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._port = _free_port()
        command = [*self._command, "--host", HOST, "--port", str(self._port)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=_environment(command[0])
            )
        except OSError as error:
            raise _failed(f"{command[0]} can't be run: {error.strerror}") from error

    def _is_ready(self, last: bool) -> bool:
        """Waits for it; False if it ended because its port was taken, and may be tried on another."""
        until = time.monotonic() + self._ready_within
        while time.monotonic() < until:
            if self._ended() is not None:
                if not last and _is_taken(self._port):
                    return False
                raise _failed(f"the server ended before it was ready {self._why()}")
            if self._is_healthy() and self._ended() is None:
                return True
            time.sleep(0.05)
        raise FileProblem(
            f"the server was not ready within {self._ready_within:g} s: {self._last_line()}", name="PEER_TIMEOUT"
        )

    def _is_healthy(self) -> bool:
        try:
            return self._exchange("GET", "/health", None, 5.0)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    # --- questions ---

    def ask(self, bodies: Sequence[Body], path: str = "/completion") -> list[Body]:
        """The answers to questions asked at the same time, in their order."""
        pool = ThreadPoolExecutor(len(bodies))
        try:
            return list(pool.map(lambda body: self._answer("POST", path, body), bodies))
        except BaseException:
            self.stop()  # first: threads that wait for it would never end
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def facts(self) -> Body:
        """What the server says of itself, {} if it says nothing."""
        try:
            return self._answer("GET", "/props", None)
        except FileProblem:
            if self._ended() is not None:
                raise
            return {}

    def _answer(self, method: str, path: str, body: Body | None) -> Body:
        try:
            status, data = self._exchange(method, path, body, self._answer_within)
            answer = json.loads(data)
        except TimeoutError as error:
            raise FileProblem(
                f"the server gave no answer within {self._answer_within:g} s", name="PEER_TIMEOUT"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _failed(f"the server broke off {self._why(END_WITHIN)}") from error
        except ValueError as error:
            raise _failed("the server answered something else than JSON") from error
        if status != 200 or not isinstance(answer, dict):
            raise _failed(f"the server refused {path} with status {status}: {_short(answer)}")
        return answer

    def _exchange(self, method: str, path: str, body: Body | None, timeout: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(MOST)
        finally:
            connection.close()

    # --- the end ---

    def stop(self) -> None:
        """Ends the process, whatever it is doing; it is gone when this returns."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(END_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _why(self, wait: float = 0.0) -> str:
        """How it ended, for a sentence. A connection breaks a moment before its process is gone."""
        process = self._process
        if process is None:
            return "(it was stopped)"
        try:
            return f"(exit {process.wait(wait)}): {self._last_line()}"
        except subprocess.TimeoutExpired:
            return f"but is still running: {self._last_line()}"

    def _last_line(self) -> str:
        """The last line that it printed which says something."""
        number = self._log.fileno()
        # Not by seeking: the server writes where this file's position is.
        text = os.pread(number, 4096, max(0, os.fstat(number).st_size - 4096))
        lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "no message")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _is_taken(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) == 0


def _environment(program: str) -> Mapping[str, str]:
    """Ours, with the shared libraries that lie beside the program, and no graphics processor."""
    here = os.path.dirname(os.path.realpath(program))
    places = [here, os.path.join(os.path.dirname(here), "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, **NO_GPU, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, places))}


def _short(answer: object) -> str:
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    said = error.get("message", error) if isinstance(error, dict) else error
    return str(said)[:200]


def _failed(why: str) -> FileProblem:
    return FileProblem(why, name="PEER_FAILED")
