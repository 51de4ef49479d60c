"""Speed of a model on this machine, and beside llama.cpp's: what ``kinetic bench`` measures.

Tests are those of llama-bench: ``pp N``, N tokens of a prompt; ``tg N``, N tokens one after the
other, without sampling; both after ``depth`` tokens that are already there. Every test runs once
to warm up, and then all of them take turns, so that a machine that drifts hits all alike; a
program to compare with takes turns with us, round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kinetic import store
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.model import Model
    from kinetic.backends.base import Program
    from kinetic.engine import Engine

FORM = "kinetic bench 1"
"""Names the form of a record."""

PROMPT, DECODE, REPETITIONS = 512, 128, 5
"""llama-bench's own."""

STRIDE = 7919
"""A prime: tokens a test is made of lie this far apart in the vocabulary."""


class Trial(NamedTuple):
    """``kind`` is "pp" or "tg"; ``depth`` tokens are there before it begins."""

    kind: str
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench writes it."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")


class Spread(NamedTuple):
    """Of some numbers: the median, the quartiles around it, the ends."""

    median: float
    q1: float
    q3: float
    least: float
    most: float


class Result(NamedTuple):
    """Speeds of one test in tokens a second, round by round; ``peer`` is another program's in the same rounds."""

    test: Trial
    threads: int
    speeds: list[float]
    peer: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours to the other program's, of each round."""
        return [ours / theirs for ours, theirs in zip(self.speeds, self.peer, strict=True)] if self.peer else []


class Peer(Protocol):
    """Another program that runs the same tests."""

    name: str
    """Program and version; the version is known once it ran."""

    def run(self, model: Path, tests: Sequence[Trial], threads: int) -> dict[Trial, float]:
        """Tokens a second of each test, measured once."""


def tests_of(prompts: Sequence[int], decodes: Sequence[int], depths: Sequence[int]) -> list[Trial]:
    """All of them by depth, so that what is there need only grow; a length of 0 asks for no test."""
    if min([*prompts, *decodes, *depths], default=0) < 0:
        raise UsageError("lengths and depths can't be negative", name="BAD_LENGTH")
    lengths = [("pp", n) for n in dict.fromkeys(prompts)] + [("tg", n) for n in dict.fromkeys(decodes)]
    tests = [Trial(kind, n, depth) for depth in sorted({*depths}) for kind, n in lengths if n]
    if not tests:
        raise UsageError("there is nothing to measure: -p or -n must be more than 0", name="NO_TEST")
    return tests


def spread(values: Sequence[float]) -> Spread:
    """Quartiles lie between neighbours where they must; of one value everything is that value."""
    if len(values) == 1:
        return Spread(*[values[0]] * 5)
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3, min(values), max(values))


# --- measuring ---


class Runner:
    """Times passes of one open model. Position i always holds the same token, so what is there need only grow."""

    def __init__(self, engine: Engine) -> None:
        from kinetic.engine.engine import PROMPT_ROWS

        self._program: Program = engine._program
        self._vocabulary = engine.vocab_size
        self._rows = engine.prompt_rows or PROMPT_ROWS
        self._there = 0
        self._program.truncate(0, 0)

    def seconds(self, test: Trial) -> float:
        """Time of one run of a test; what lies before it is put there first, and not timed."""
        self._go_to(test.depth)
        begin = time.perf_counter()
        if test.kind == "pp":
            self._read(test.depth + test.tokens)
        else:
            for _ in range(test.tokens):
                self._pass(1, (0,))
        return time.perf_counter() - begin

    def speed(self, test: Trial) -> float:
        """Tokens a second."""
        return test.tokens / self.seconds(test)

    def _go_to(self, depth: int) -> None:
        self._there = self._program.truncate(0, min(self._there, depth))
        if self._there < depth:
            self._read(depth)

    def _read(self, end: int) -> None:
        """Tokens up to position ``end``, as a prompt: the logits of the last row only."""
        while self._there < end:
            count = min(self._rows, end - self._there)
            self._pass(count, (count - 1,) if self._there + count == end else ())

    def _pass(self, count: int, outputs: tuple[int, ...]) -> None:
        from kinetic.types import Batch

        positions = tuple(range(self._there, self._there + count))
        tokens = tuple(1 + STRIDE * position % (self._vocabulary - 1) for position in positions)
        self._program.run(Batch(tokens, positions, (0,) * count, outputs))
        self._there += count


def measure(
    model: Model,
    tests: Sequence[Trial],
    repetitions: int = REPETITIONS,
    peer: Peer | None = None,
    progress: Callable[[], None] | None = None,
) -> list[Result]:
    """Results of an open model, a round for each repetition. Who begins a round changes from round to round.

    ``progress`` is told of each round. Raises UsageError where the context is too short for a test.
    """
    for test in tests:
        if test.depth + test.tokens > model.context:
            raise UsageError(
                f"{test.name} needs {test.depth + test.tokens} positions, and the model has {model.context}",
                name="SHORT_CONTEXT",
            )
    with model._held() as engine:
        runner, threads = Runner(engine), engine.identity.threads
        results = [Result(test, threads, [], []) for test in tests]
        for test in tests:
            runner.seconds(test)
        for number in range(repetitions):
            for is_ours in (True, False) if number % 2 == 0 else (False, True):
                if is_ours:
                    _ours(runner, results)
                elif peer:
                    _theirs(peer, model.path, threads, results)
            if progress:
                progress()
    return results


def _ours(runner: Runner, results: Sequence[Result]) -> None:
    for result in results:
        result.speeds.append(runner.speed(result.test))


def _theirs(peer: Peer, path: Path, threads: int, results: Sequence[Result]) -> None:
    found = peer.run(path, [result.test for result in results], threads)
    for result in results:
        result.peer.append(found[result.test])


class Plan(NamedTuple):
    """What one call of ``bench`` measures. ``threads`` are counts, 0 for as many as Kinetic would choose."""

    tests: list[Trial]
    threads: Sequence[int] = (0,)
    repetitions: int = REPETITIONS
    device: str = "cpu"
    pack_cache: bool = True
    gpu_layers: int | str = "auto"


def bench(
    path: Path,
    plan: Plan,
    peer: Peer | None = None,
    news: Callable[[str], None] | None = None,
    progress: store.Progress | None = None,
) -> dict[str, Any]:
    """Measure a model file with each count of threads, and return the record of it: plain values, as in FORM.

    ``progress`` is told (rounds done, in all). Raises whatever opening and running
    the model raises, UsageError, and FileProblem where ``peer`` fails.
    """
    from kinetic.api.model import Model

    _require(path, plan, peer)
    machine = here(plan.device)  # before we are busy ourselves
    step = _counter(progress, len(plan.threads) * plan.repetitions)
    results: list[Result] = []
    for threads in plan.threads:
        options: dict[str, Any] = {"device": plan.device, "gpu_layers": plan.gpu_layers, "threads": threads}
        with Model(path, **options, pack_cache=plan.pack_cache, off=("warm",), progress=news) as model:
            results += measure(model, plan.tests, plan.repetitions, peer, step)
            about = _about(model, path)
    return about | {
        "machine": machine,
        "repetitions": plan.repetitions,
        "peer": peer.name if peer else "",
        "results": [_row(result) for result in results],
    }


def _require(path: Path, plan: Plan, peer: Peer | None) -> None:
    if plan.repetitions < 1:
        raise UsageError("there must be at least one repetition", name="BAD_REPETITIONS")
    if peer and plan.device != "cpu":
        raise UsageError("--compare measures the processor on both sides: leave --device out", name="NO_COMPARISON")
    if peer and store.is_bundle(path):
        raise UsageError(
            f"{path} is a bundle, which llama.cpp can't read: compare with the .gguf file in it (`kinetic unpack`)",
            name="NO_COMPARISON",
        )


def _counter(progress: store.Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    return step


# --- records ---


def here(device: str) -> dict[str, Any]:
    """This machine as a record tells of it: kinetic.api.machine's facts, and the instruction set that is used."""
    from kinetic.api import machine, profiles

    return machine.describe().plain() | {"isa": profiles._machine()[0] if device == "cpu" else ""}


def model_digest(path: Path) -> str:
    """What records know a model by: the BLAKE3 of its first file, hex. Hashes it where that wasn't done before."""
    from kinetic.loader import open_model_file

    with open_model_file(path, check="none") as loaded:
        return loaded.identity().files[0].blake3


def _about(model: Model, path: Path) -> dict[str, Any]:
    """Who was measured: program, arithmetic, model. Hashes the model's files where that wasn't done before."""
    from kinetic._version import __version__
    from kinetic.types import PROFILE

    files = model.identity.files
    return {
        "format": FORM,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "kinetic": __version__,
        "commit": commit(),
        "profile": PROFILE,
        "engine_id": model._engine.identity.engine_id,
        "device": model._engine.identity.device_class,
        "model": {
            "file": path.name,
            "size": sum(file.size for file in files),
            "blake3": files[0].blake3,
            "sha256": files[0].sha256,
            "bundle": model.bundle_digest,
        },
    }


def _row(result: Result) -> dict[str, Any]:
    """One test's part of a record."""
    row: dict[str, Any] = {"test": result.test.name, **result.test._asdict(), "threads": result.threads}
    row |= {"speeds": [round(speed, 3) for speed in result.speeds], **_rounded(result.speeds, 3)}
    if result.peer:
        row["peer"] = {"speeds": [round(speed, 3) for speed in result.peer], **_rounded(result.peer, 3)}
        row["ratio"] = {"ratios": [round(ratio, 4) for ratio in result.ratios], **_rounded(result.ratios, 4)}
    return row


def _rounded(values: Sequence[float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in spread(values)._asdict().items()}


def commit(package: Path | None = None) -> str:
    """The commit that this program runs from, "" where it isn't run from a checkout."""
    git = (package or Path(__file__).parents[1]).parent / ".git"
    head = _line(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    packed = (line.split() for line in _lines(git / "packed-refs"))
    return _line(git / name) or next((words[0] for words in packed if words[1:] == [name]), "")


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return


def _line(path: Path) -> str:
    return next(_lines(path), "").strip()


def folder() -> Path:
    """Where records are kept: beside the models, since nobody can measure yesterday again."""
    return store.folder("models").with_name("bench")
