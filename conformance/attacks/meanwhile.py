"""Runs a program, and does something to one of its files at a moment when it hurts.

    python -m conformance.attacks.meanwhile grow a.ktc ktc verify a.ktc

The file is changed just after a byte of a section was first read from any
file, where a check of the beginning is over. ``room:N`` changes nothing, but no
file may grow beyond N bytes, as on a full disk. ``map`` runs no other program: it opens
a bundle, cuts it short, uses the mapped bytes, and would then write "receipt".
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable

SECTIONS_AT = 4096
"""The first byte that is none of header and manifest, in the bundles here."""


def main() -> None:
    what, path, *command = sys.argv[1:]
    if what == "map":
        use_cut_map(path)
        return
    if what.startswith("room:"):
        leave_room(int(what.removeprefix("room:")))
    else:
        when_read(CHANGES[what], path)
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def grow(path: str) -> None:
    with open(path, "ab") as file:
        file.write(bytes(4096))


def cut(path: str) -> None:
    os.truncate(path, SECTIONS_AT)


def touch(path: str) -> None:
    """Only the time of the change shows it."""
    os.utime(path, ns=(1, 1))


def rewrite(path: str) -> None:
    """The same bytes once more, as a copying program writes them."""
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data)
    os.utime(path, ns=(2, 2))  # a clock that stands still for a moment must not hide it


def spoil(path: str) -> None:
    """Another last byte of the model file, or of the file."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    os.utime(path, ns=(3, 3))


CHANGES = {"grow": grow, "cut": cut, "touch": touch, "rewrite": rewrite, "spoil": spoil}


def when_read(change: Callable[[str], None], path: str) -> None:
    """Make ``change`` after the first read that is no more of a bundle's beginning."""
    read, done = os.preadv, False

    def preadv(handle: int, buffers: list[memoryview], at: int) -> int:
        nonlocal done
        count = read(handle, buffers, at)
        if not done and (at >= SECTIONS_AT or not bytes(buffers[0][:4]).startswith(b"\x89KTC")):
            done = True
            change(path)
        return count

    os.preadv = preadv  # type: ignore[assignment]


def leave_room(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def use_cut_map(path: str) -> None:
    from ktc.reader import open_verified

    with open_verified(path, check="lazy") as bundle:
        assert bundle.leaves is not None
        cut(path)
        bundle.leaves.touch(0, bundle.gguf.length)
        with open("receipt", "wb") as file:
            file.write(bytes(bundle.view(bundle.gguf)))


if __name__ == "__main__":
    main()
