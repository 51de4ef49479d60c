"""Long runs: ``python -m tests.fuzz.fuzz_readers --seconds 3600 [--target NAME]``.

With atheris installed, libFuzzer guides the mutations by what they reach in ``ktc`` and
``receipts``; without, a loop of our own keeps inputs that are refused in a new way. Bytes that
give a finding are written to the folder of ``--out``, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from tests.fuzz import structure
from tests.fuzz.corpus import WORDS, corpus
from tests.fuzz.targets import TARGETS, run

SLOW = 2.0
"""Seconds of processor time that no input of this size may take."""

MOST_KEPT, MOST_BYTES = 3_000, 60_000
GARBAGE = ("BAD_JSON", "NOT_UTF8", "BAD_TOML", "BAD_CBOR")
"""Refusals so early that nothing is learned from mutating on."""


class Findings:
    """What was found, written down as it comes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def add(self, name: str, data: bytes, why: str) -> None:
        self.count += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}-{self.count}"
        path.write_bytes(data)
        print(f"FINDING {name}: {path}\n{why}", flush=True)

    def attempt(self, name: str, data: bytes) -> str:
        """Run a target once; what it does wrong is noted."""
        begun = time.process_time()
        try:
            word = run(name, data)
        except Exception:
            self.add(name, data, traceback.format_exc())
            return "finding"
        if time.process_time() - begun > SLOW:
            self.add(name, data, f"took {time.process_time() - begun:.1f} s")
        return word


def mutated(chance: random.Random, kept: list[bytes]) -> bytes:
    """One of the inputs with a value changed, where it has values, or with one to four changes of its bytes."""
    data = bytearray(chance.choice(kept))
    if chance.random() < 0.6 and (restructured := structure.mutated(chance, bytes(data))) is not None:
        return restructured[:MOST_BYTES]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 1, 1, 2, 4, 8, 33, 200))
        kind = chance.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * chance.choice((1, 1, 2, 50))
        elif kind == 4:
            data[at:at] = chance.choice(WORDS)
        elif kind == 5:
            data[at : at + length] = chance.choice(WORDS)
        else:
            other = chance.choice(kept)
            start = chance.randrange(len(other) + 1)
            data[at : at + length] = other[start : start + length]
    return bytes(data[:MOST_BYTES])


def shape(word: str, data: bytes) -> str:
    """What makes an input worth keeping: how it was refused, and how long it is, roughly."""
    return f"{word} {data[:1].hex()} {len(data).bit_length()}"


def own_loop(names: list[str], seconds: float, seed: int, findings: Findings) -> Counter[str]:
    chance, counts = random.Random(seed), Counter[str]()
    kept = {name: corpus(name) for name in names}
    shapes = {name: {shape(findings.attempt(name, data), data) for data in kept[name]} for name in names}
    end, told = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end:
        for name in names:
            data = mutated(chance, kept[name])
            word = findings.attempt(name, data)
            counts[f"{name} {re.sub('[0-9]+', '', word)}"] += 1
            is_new = shape(word, data) not in shapes[name] and len(kept[name]) < MOST_KEPT
            if is_new and word not in GARBAGE:
                shapes[name].add(shape(word, data))
                kept[name].append(data)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{sum(counts.values()):,} runs, {findings.count} findings", flush=True)
    return counts


def with_atheris(name: str, seconds: float, findings: Findings) -> None:
    """libFuzzer ends the process itself, so this does not return."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    folder = findings.folder / f"corpus-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus(name)):
        (folder / f"start-{number}").write_bytes(data)
    for function in own_functions():
        atheris.instrument_func(function)
    flags = [f"-max_total_time={int(seconds)}", f"-max_len={MOST_BYTES}", "-print_final_stats=1", "-timeout=30"]
    atheris.Setup([sys.argv[0], *flags, str(folder)], lambda data: findings.attempt(name, data))
    atheris.Fuzz()


def own_functions() -> Iterator[FunctionType]:
    """Functions and methods of ``ktc`` and ``receipts`` that are loaded."""
    for key, module in list(sys.modules.items()):
        if key.startswith(("ktc.", "receipts.")):
            for thing in vars(module).values():
                if getattr(thing, "__module__", "") == key:
                    members = vars(thing).values() if isinstance(thing, type) else [thing]
                    yield from (member for member in members if isinstance(member, FunctionType))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzz_readers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", choices=TARGETS, help="one alone; with atheris it must be named")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder for what is found")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations of our own loop")
    parser.add_argument("--atheris", action="store_true", help="let libFuzzer guide it")
    options = parser.parse_args()
    findings = Findings(options.out)
    if options.atheris:
        if options.target is None:
            parser.error("--atheris needs --target")
        with_atheris(options.target, options.seconds, findings)
    names = [options.target] if options.target else list(TARGETS)
    counts = own_loop(names, options.seconds, options.seed, findings)
    for word, count in sorted(counts.items()):
        print(f"{count:>10,} {word}")
    print(f"{sum(counts.values()):,} runs in {options.seconds:.0f} s, {findings.count} findings")
    return 1 if findings.count else 0


if __name__ == "__main__":
    sys.exit(main())
