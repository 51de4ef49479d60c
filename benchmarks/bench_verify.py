"""Speed of checking bundles, against one pass of BLAKE3 and of SHA-256 over the same file.

    python -m benchmarks.bench_verify [--mib 2048] [--rounds 7] [MODEL.gguf]

In one process and in turn, so that all see the same machine; the start of the
process is not counted. Of each the median time is shown, and of the ratios the
median round by round. `taskset -c 0` shows what one core does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from ktc.inputs import ModelFile
from ktc.passes import Hasher
from ktc.verify import verify
from ktc.writer import write_bundle

PIECE = 1 << 20


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        model = options.model or _made_up(folder / "model.gguf", options.mib)
        for leaves in (False, True):
            with ModelFile(model) as source:
                write_bundle(folder / f"{leaves}.ktc", source, name="bench", file="model.gguf", leaves=leaves)
        measures: dict[str, Callable[[], object]] = {
            "blake3, one thread": lambda: _one_pass(folder / "False.ktc", blake3()),
            "verify without leaves": lambda: verify(folder / "False.ktc"),
            "verify with leaves": lambda: verify(folder / "True.ktc"),
            "sha256": lambda: _one_pass(folder / "False.ktc", hashlib.sha256()),
        }
        size = (folder / "False.ktc").stat().st_size
        _show(size, {name: _round(call) for name, call in measures.items()}, measures, options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a model file; one is made up if none is given")
    parser.add_argument("--mib", type=int, default=2048, help="size of the made-up model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where files are written; they should fit into memory")
    return parser.parse_args()


def _made_up(path: Path, mib: int) -> Path:
    key = b"general.architecture"
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1))
        file.write(struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, 5) + b"llama")
        for _ in range(mib):
            file.write(os.urandom(PIECE))
    return path


def _one_pass(path: Path, hasher: Hasher) -> str:
    """What a plain program does: read a piece, hash it, with one buffer."""
    buffer = memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def _round(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _show(size: int, warm: dict[str, float], measures: dict[str, Callable[[], object]], rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in warm}
    for _ in range(rounds):
        for name, call in measures.items():
            times[name].append(_round(call))
    base, standard = times["blake3, one thread"], times["sha256"]
    print(f"{size:,} bytes, {rounds} rounds, cores: {len(os.sched_getaffinity(0))}")
    for name, found in times.items():
        speed = size / statistics.median(found) / 1e9
        share = statistics.median(b / a for a, b in zip(found, base, strict=True))
        against = statistics.median(b / a for a, b in zip(found, standard, strict=True))
        print(f"{name:24s} {speed:5.2f} GB/s  {share:4.0%} of blake3  {against:4.1f} times sha256")


if __name__ == "__main__":
    main()
