"""All attacks against this installation: ``run_suite()`` tells which are not refused as they must be.

Nothing is fetched, nothing is kept, and the user's own models and settings are not seen. Test vectors, which
are files as well, are judged many to a process; a program of its own is run for each of the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from conformance import bundle_vectors
from conformance.attacks import attacks
from conformance.attacks.attack import Attack, Outcome, changed_files, contents, fault, root
from conformance.attacks.worker import TIMED_OUT
from conformance.vector_files import GROUPS, Vector, read_vectors

Progress = Callable[[int, int], None]

BATCH = 40
"""Vectors judged in one process."""
MOST_ENDS = 3
"""A worker that ended so often is not started again."""
ENDED = {"exit_code": 1, "output": "what runs the programs has ended", "seconds": 0.0, "memory": 0}
WORKER = (sys.executable, "-m", "conformance.attacks.worker")


class Result(NamedTuple):
    """What came of one attack. ``problem`` is "" where it was refused as it must be."""

    name: str
    numbers: Sequence[int]
    what: str
    problem: str = ""
    skipped: str = ""
    """Why it could not be made here; it has neither passed nor failed then."""
    seconds: float = 0.0


class Report(NamedTuple):
    results: list[Result]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.problem]

    @property
    def skipped(self) -> list[Result]:
        return [result for result in self.results if result.skipped]

    @property
    def passed(self) -> int:
        return len(self.results) - len(self.failed) - len(self.skipped)

    @property
    def numbers(self) -> set[int]:
        """Of the list of attacks: those that were made."""
        return {number for result in self.results if not result.skipped for number in result.numbers}

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "attacks": len(self.results),
            "passed": self.passed,
            "failed": [result._asdict() for result in self.failed],
            "skipped": [result._asdict() for result in self.skipped],
        }


def run_suite(
    progress: Progress | None = None,
    chosen: Iterable[Attack] | None = None,
    *,
    vectors: bool = True,
    workers: int = 0,
    command: Sequence[str] = WORKER,
) -> Report:
    """Make every attack, or the chosen ones. ``workers`` 0 is one for each core; ``command`` starts one.

    ``progress`` is told (attacks made, attacks in all).
    """
    jobs: list[Job] = [Single(attack) for attack in (list(attacks(vectors=False)) if chosen is None else chosen)]
    jobs += list(_batches()) if vectors else []
    total, results = sum(job.count for job in jobs), []
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder), workers or _cores(), command) as pool:
        for found in pool.results(jobs):
            results += found
            if progress:
                progress(len(results), total)
    return Report(sorted(results, key=lambda result: result.name))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- what is to be done ---


class Single:
    """One attack."""

    count = 1

    def __init__(self, attack: Attack) -> None:
        self._attack = attack

    def run(self, worker: Worker, folder: Path) -> list[Result]:
        attack = self._attack
        about = Result(attack.name, attack.numbers, attack.what)
        if attack.needs_user and os.geteuid() == 0:
            return [about._replace(skipped="the superuser may read and write everything")]
        try:
            attack.write(folder)
        except OSError as error:
            return [about._replace(skipped=f"its files can't be written here: {error.strerror or error}")]
        before = contents(folder)
        answer = worker.ask(attack.arguments, folder, attack.seconds, attack.memory)
        written = changed_files(attack, before, contents(folder))
        problem = fault(attack, Outcome(answer["exit_code"], answer["output"], written))
        if answer["exit_code"] == TIMED_OUT != attack.exit_code:
            problem = f"it still ran after {attack.seconds:g} seconds"
        return [about._replace(problem=problem, seconds=answer["seconds"])]


class Batch:
    """Vectors of one group, in one process."""

    def __init__(self, group: str, vectors: Sequence[Vector]) -> None:
        self._group, self._vectors = group, vectors
        self.count = len(vectors)

    def run(self, worker: Worker, folder: Path) -> list[Result]:
        names = [vector["id"] for vector in self._vectors]
        arguments = ("conformance.attacks.judge", self._group, *names)
        answer = worker.ask(arguments, folder, seconds=60, memory=1 << 30)
        said = dict(line.split(" ", 1) for line in answer["output"].splitlines() if line.count(" ") == 2)
        return [self._result(vector, said.get(vector["id"], ""), answer) for vector in self._vectors]

    def _result(self, vector: Vector, said: str, answer: dict[str, Any]) -> Result:
        expect = vector["expect"]
        due = f"{expect['exit_code']} {expect['name']}"
        problem = "" if said == due else f"{said or 'no verdict'} instead of {due}"
        if problem and not said:
            last = answer["output"].strip().splitlines()[-1:] or ["nothing was said"]
            problem += f" (exit code {answer['exit_code']}: {last[0][:200]})"
        return Result(f"{self._group}/{vector['id']}", vector["attack"], vector["what"], problem)


Job = Single | Batch


def _batches() -> Iterator[Batch]:
    for group in (*GROUPS, bundle_vectors.GROUP):
        vectors = [vector for vector in read_vectors(group) if isinstance(vector, dict)]
        for start in range(0, len(vectors), BATCH):
            yield Batch(group, vectors[start : start + BATCH])


# --- who does it ---


class Worker:
    """A process that runs programs (conformance.attacks.worker); started anew if it ends."""

    def __init__(self, home: Path, command: Sequence[str]) -> None:
        self._home, self._command = home, command
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = 0

    def ask(self, arguments: Sequence[str], folder: Path, seconds: float, memory: int) -> dict[str, Any]:
        """What became of a program: exit_code, output, seconds, memory."""
        request = {"arguments": list(arguments), "folder": str(folder), "seconds": seconds, "memory": memory}
        if self._ends == MOST_ENDS:
            return dict(ENDED)
        process = self._process = self._process or self._start()
        assert process.stdin and process.stdout
        line = b""
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self.close()
            self._ends += 1
            return dict(ENDED)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for us, and whatever it started can be ended together.
        return subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, env=environment(self._home), start_new_session=True
        )

    def close(self) -> None:
        if self._process:
            assert self._process.stdin and self._process.stdout
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            try:
                self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:  # after Ctrl-C, say, in the middle of a program
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None


def environment(home: Path) -> dict[str, str]:
    """Of a worker: no folder of the user's is seen, and no network asked. OLLAMA_MODELS is an attack's own."""
    path = os.pathsep.join(filter(None, [str(root()), os.environ.get("PYTHONPATH", "")]))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
    return ours | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "KINETIC_HOME": str(home / "kinetic"),
        "HF_HOME": str(home / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_INDEX": "1",
        "OLLAMA_MODELS": "ollama",
    }


class Pool:
    """Several workers, each with one job at a time."""

    def __init__(self, folder: Path, workers: int, command: Sequence[str]) -> None:
        self._folder = folder
        self._all = [Worker(folder, command) for _ in range(workers)]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._free.put(worker)

    def results(self, jobs: Sequence[Job]) -> Iterator[list[Result]]:
        """Of each job as it ends."""
        with ThreadPoolExecutor(len(self._all)) as threads:
            try:
                for done in as_completed([threads.submit(self._run, job) for job in jobs]):
                    yield done.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job) -> list[Result]:
        worker = self._free.get()
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                return job.run(worker, Path(folder))
        finally:
            self._free.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._all:
            worker.close()
