"""llama.cpp as the program to compare with: its ``llama-bench``, or the Python package ``llama_cpp``.

Both run outside this process and on the processor alone, with the settings of ``kinetic bench``.
The package is driven by this module itself, which prints what llama-bench would:

    python -m kinetic.api.bench_llama MODEL THREADS PROMPTS DECODES DEPTHS
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from kinetic.api.bench import Trial

BATCH, MICRO_BATCH = 2048, 512
"""llama-bench's own."""

NAME = "llama.cpp"
"""Its version is added once it says which; a build from an archive doesn't know."""

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}
"""Of two programs one with a graphics processor says nothing about the other; no flag is known to all versions."""


class LlamaCpp:
    """A ``Peer``: one process a round, which warms up by itself and runs each test once."""

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._command = command
        self.name = name

    @property
    def program(self) -> str:
        """Path of its llama-bench; "" for the package."""
        return self._command[0]

    def run(self, model: Path, tests: Sequence[Trial], threads: int) -> dict[Trial, float]:
        """Tokens a second of each test. Raises FileProblem (LLAMA_CPP_FAILED) if it fails or says something else."""
        try:
            done = subprocess.run(
                [*self._command, *self._arguments(model, tests, threads)],
                capture_output=True,
                env=environment(self._command[0]),
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            raise failed(f"{self._command[0]} can't be run: {error.strerror}") from error
        if done.returncode:
            raise failed(f"{self.name} failed (exit {done.returncode}): {last_line(done.stderr)}")
        return self._speeds(done.stdout, tests, threads)

    def _arguments(self, model: Path, tests: Sequence[Trial], threads: int) -> list[str]:
        lengths = {kind: _joined(t.tokens for t in tests if t.kind == kind) for kind in ("pp", "tg")}
        words = ["-m", str(model), "-p", lengths["pp"], "-n", lengths["tg"], "-d", _joined(t.depth for t in tests)]
        return [*words, "-t", str(threads), "-ngl", "0", "-r", "1", "-o", "json"]

    def _speeds(self, output: bytes, tests: Sequence[Trial], threads: int) -> dict[Trial, float]:
        try:
            rows = json.loads(output)
            found = {(row["n_prompt"], row["n_gen"], row.get("n_depth", 0)): float(row["avg_ts"]) for row in rows}
            speeds = {test: found[_key(test)] for test in tests}
            build = rows[0].get("build_number"), rows[0].get("build_commit")
            used = {row["n_threads"] for row in rows}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise failed(f"{self.name} printed something else than its measurements") from error
        if used != {threads} or min(speeds.values()) <= 0:
            raise failed(f"{self.name} did not measure what it was asked for")
        if all(build):
            self.name = f"llama.cpp b{build[0]} ({build[1]})"
        return speeds


class LlamaPackage(LlamaCpp):
    """The same through the Python package."""

    def __init__(self, version: str) -> None:
        super().__init__([sys.executable, "-m", "kinetic.api.bench_llama"], f"llama_cpp {version}")

    @property
    def program(self) -> str:
        return ""

    def _arguments(self, model: Path, tests: Sequence[Trial], threads: int) -> list[str]:
        lengths = [_joined(t.tokens for t in tests if t.kind == kind) for kind in ("pp", "tg")]
        return [str(model), str(threads), *lengths, _joined(t.depth for t in tests)]


def find(llama_bench: str = "") -> LlamaCpp:
    """llama-bench by its path, or that on PATH, or the Python package. UsageError (NO_LLAMA_CPP) if there is none."""
    path = shutil.which(llama_bench or "llama-bench")
    if path:
        return LlamaCpp([os.path.abspath(path)], NAME)
    if llama_bench:
        raise UsageError(f"{llama_bench} is no program that can be run", name="NO_LLAMA_CPP")
    version = _package_version()
    if version:
        return LlamaPackage(version)
    raise UsageError(
        "--compare needs llama.cpp: put its llama-bench on PATH, name it with --llama-bench PATH,"
        " or `pip install llama-cpp-python`",
        name="NO_LLAMA_CPP",
    )


def _package_version() -> str:
    """Of the Python package, without loading it; "" where it isn't installed."""
    from importlib import metadata

    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def _key(test: Trial) -> tuple[int, int, int]:
    """How llama-bench names a test: tokens of the prompt, tokens to generate, depth."""
    return (test.tokens, 0, test.depth) if test.kind == "pp" else (0, test.tokens, test.depth)


def _joined(numbers: Iterator[int]) -> str:
    """llama-bench's lists; 0 asks for no test."""
    return ",".join(map(str, dict.fromkeys(numbers))) or "0"


def environment(program: str) -> dict[str, str]:
    """Ours, with the shared libraries that lie beside the program, and no graphics processor."""
    here = os.path.dirname(os.path.realpath(program))
    places = [here, os.path.join(os.path.dirname(here), "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, **NO_GPU, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, places))}


def failed(why: str) -> FileProblem:
    return FileProblem(why, name="LLAMA_CPP_FAILED")


def last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else "no message"


# --- the Python package, in a process of its own ---


def measure_package(
    model: str, threads: int, prompts: Sequence[int], decodes: Sequence[int], depths: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows as llama-bench prints them, of those that ``LlamaCpp`` reads."""
    import llama_cpp  # type: ignore[import-not-found, unused-ignore]

    longest = max(depths) + max([*prompts, *decodes])
    llama = llama_cpp.Llama(
        model,
        n_ctx=max(longest, MICRO_BATCH),
        n_batch=BATCH,
        n_ubatch=MICRO_BATCH,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=0,
        verbose=False,
    )
    rows = []
    for depth in depths:
        for n_prompt, n_gen in [(n, 0) for n in prompts if n] + [(0, n) for n in decodes if n]:
            _run(llama, 0, min(n_prompt, 32), min(n_gen, 1))  # as llama-bench warms up, more or less
            seconds = _run(llama, depth, n_prompt, n_gen)
            row = {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth, "n_threads": threads}
            rows.append(row | {"avg_ts": (n_prompt + n_gen) / seconds})
    return rows


def _run(llama: Any, depth: int, n_prompt: int, n_gen: int) -> float:
    """Seconds of a prompt, then of tokens one by one, after ``depth`` tokens."""
    from kinetic.api.bench import STRIDE

    count = depth + n_prompt + n_gen
    tokens = [1 + STRIDE * i % (llama.n_vocab() - 1) for i in range(count)]
    llama.reset()
    if depth:
        llama.eval(tokens[:depth])
    begin = time.perf_counter()
    if n_prompt:
        llama.eval(tokens[depth : depth + n_prompt])
    for token in tokens[depth + n_prompt :]:
        llama.eval([token])
    return time.perf_counter() - begin


def main(words: Sequence[str]) -> int:
    model, threads, *lists = words
    prompts, decodes, depths = ([int(number) for number in text.split(",")] for text in lists)
    print(json.dumps(measure_package(model, int(threads), prompts, decodes, depths)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
