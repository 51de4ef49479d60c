"""Runs programs one after the other, each in a process of its own with limits: ``python -m conformance.attacks.worker``

What the programs need is loaded once, and each is a fork of that: it starts in a hundredth of a second. A request
is a line of JSON on standard input, and so is its answer on standard output:

    {"arguments": ["ktc", "verify", "a.ktc"], "folder": "...", "seconds": 20, "memory": 268435456}
    {"exit_code": 11, "output": "...", "seconds": 0.01, "memory": 41943040}

``memory`` in a request is what the program may take beyond what it starts with, in an answer the most it had
resident. A program that runs out of time ends by SIGALRM, exit code -14. One that opens a
connection or starts another program ends with ``FORBIDDEN``: none of the attacks has reason to.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

FORBIDDEN = 70
"""Exit code of a program that did what no file may make it do."""

EVENTS = frozenset("socket.connect socket.bind subprocess.Popen os.exec os.posix_spawn os.system os.fork".split())
"""Names of Python's audit events."""

WARM_UP = 60
"""Seconds after which this process ends if it can't even use a sound model."""

OUTPUT = 1 << 20
"""Bytes of a program's output that are kept."""

PROGRAMS = (
    ("receipts", "check"),
    ("ktc", "verify"),
    ("conformance.attacks.use", "describe"),
    ("conformance.attacks.use", "ask"),
)
"""Run on a small model to begin with: what they load stays loaded."""

TIMED_OUT = -int(signal.SIGALRM)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that is loaded may write between the answers
    warm_up()
    for line in sys.stdin:
        print(json.dumps(execute(json.loads(line))), file=answers, flush=True)


def warm_up() -> None:
    """Load what the programs load, by running some of them; a place without the engine does with less."""
    from conformance.attacks.tiny_model import tiny_model

    before = signal.getsignal(signal.SIGTERM)
    silence = contextlib.redirect_stderr(io.StringIO())
    signal.alarm(WARM_UP)
    with tempfile.TemporaryDirectory() as folder, silence, contextlib.suppress(ImportError):
        model = Path(folder) / "m.gguf"
        model.write_bytes(tiny_model({"tokenizer.chat_template": "{{ messages[0].content }}"}))
        for program in PROGRAMS:
            _run([*program, str(model)])
        _run(["kinetic", "--help"])
    signal.alarm(0)
    signal.signal(signal.SIGTERM, before)
    gc.collect()
    gc.freeze()  # so that no fork copies pages only to look for garbage


def execute(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run one program to its end."""
    started = time.monotonic()
    reading, writing = os.pipe()  # no file: a program may have been told that it can't write to any
    child = os.fork()
    if not child:
        _become(request, writing)
    os.close(writing)
    output = _read_all(reading)
    _, status, usage = os.wait4(child, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "output": output.decode("utf-8", errors="backslashreplace"),
        "seconds": time.monotonic() - started,
        "memory": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def _read_all(handle: int) -> bytes:
    """What a program says until it ends, the first megabyte of it."""
    said = bytearray()
    with os.fdopen(handle, "rb", buffering=0) as stream:
        while piece := stream.read(1 << 16):
            said += piece[: OUTPUT - len(said)]
    return bytes(said)


def _become(request: Mapping[str, Any], output: int) -> NoReturn:
    """In the new process: be the program, and end with its exit code."""
    code = 1
    try:
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _limit(request["seconds"], request["memory"])
        sys.addaudithook(_forbid)
        code = _run(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _run(arguments: list[str]) -> int:
    """As ``python -m`` would. Returns the exit code."""
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _limit(seconds: float, memory: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere it does not count what is mapped
        most = _data_bytes() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    """Private memory that this process has: what RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))


def _forbid(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS:
        os.write(2, f"\nforbidden: {event}\n".encode())
        os._exit(FORBIDDEN)


if __name__ == "__main__":
    main()
