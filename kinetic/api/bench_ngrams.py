"""llama.cpp's own speculation from n-grams, by the programs that lie beside its ``llama-bench``.

Its verified rows have other bits than its plain decoding, so its answer may change; ``Speculation.answer`` says
whether it did.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kinetic.api import bench_llama
from kinetic.errors import FileProblem

KINDS: Mapping[str, tuple[str, ...]] = {
    "lookup": ("llama-lookup", "--spec-draft-n-max", "16"),
    "ngram-simple": ("llama-speculative-simple", "--spec-type", "ngram-simple"),
    "ngram-simple 4": (
        "llama-speculative-simple", "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4",
        "--spec-ngram-simple-size-m", "24",
    ),
    "ngram-mod": ("llama-speculative-simple", "--spec-type", "ngram-mod"),
}  # fmt: skip
"""Kinds and settings that are tried."""

PLAIN = ("llama-completion", "-no-cnv")

END = "[end of text]"
"""What llama-completion writes behind an answer that ended."""

ROOM = 256
"""Positions beyond the prompt and the answer, for guesses."""

_DECODED = re.compile(rb"decoded\s+(\d+) tokens in\s+([0-9.]+) seconds")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Speculation:
    """Programs in ``folder``, all of the kinds that are there; the one that is fastest at first is kept."""

    def __init__(self, folder: Path, kinds: Mapping[str, Sequence[str]], *, has_plain: bool) -> None:
        self._folder, self._kinds, self._has_plain = folder, dict(kinds), has_plain
        self.kind = ""
        """The one that was kept."""
        self.answer = ""
        """"same" or "differs" where its text could be compared with that of llama.cpp's plain decoding, else ""."""

    def choose(
        self, model: Path, prompt: str, context: int, tokens: int, threads: int, news: Callable[[str], None] | None
    ) -> bool:
        """Tries each kind once. False if none works; ``news`` is told of those that don't."""
        found: dict[str, tuple[float, str]] = {}
        for kind, words in self._kinds.items():
            try:
                found[kind] = self._run(words, model, prompt, context, tokens, threads)
            except FileProblem as problem:
                if news:
                    news(f"{problem}; {kind} is left out")
        if not found:
            return False
        self.kind = max(found, key=lambda kind: found[kind][0])
        if self._has_plain:
            try:
                _, plain = self._run(PLAIN, model, prompt, context, tokens, threads)
            except FileProblem:
                plain = ""
            self.answer = compared(plain, found[self.kind][1])
        return True

    def speed(self, model: Path, prompt: str, context: int, tokens: int, threads: int) -> float:
        """Tokens a second after the prompt. Raises FileProblem (LLAMA_CPP_FAILED)."""
        return self._run(self._kinds[self.kind], model, prompt, context, tokens, threads)[0]

    def _run(
        self, words: Sequence[str], model: Path, prompt: str, context: int, tokens: int, threads: int
    ) -> tuple[float, str]:
        """Tokens a second, which only speculation prints, and what was written behind the prompt."""
        program = str(self._folder / words[0])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "prompt.txt"
            file.write_text(prompt + "\n", encoding="utf-8")  # one newline is taken off
            command = [program, *words[1:], "-m", str(model), "-f", str(file), "-n", str(tokens), "--temp", "0"]
            command += ["-t", str(threads), "-c", str(context + tokens + ROOM), "-ngl", "0"]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    env=bench_llama.environment(program),
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            except OSError as error:
                raise bench_llama.failed(f"{program} can't be run: {error.strerror}") from error
        if done.returncode:
            said = bench_llama.last_line(done.stderr)
            raise bench_llama.failed(f"{words[0]} failed (exit {done.returncode}): {said}")
        text = _COLOUR.sub("", done.stdout.decode("utf-8", "replace"))
        written = text.partition(prompt)[2]
        if words is PLAIN:
            return 0.0, written
        measured = _DECODED.search(done.stdout + done.stderr)
        if measured is None or int(measured[1]) < 1 or float(measured[2]) <= 0:
            raise bench_llama.failed(f"{words[0]} printed something else than its measurements")
        return int(measured[1]) / float(measured[2]), written


def compared(plain: str, speculated: str) -> str:
    """Of two texts one may be longer, since guesses go beyond the last token wanted."""
    one, other = plain.replace(END, "").strip(), speculated.strip()
    count = min(len(one), len(other))
    if not count:
        return ""
    return "same" if one[:count] == other[:count] else "differs"


def beside(peer: object) -> Speculation | None:
    """The programs beside a ``bench_llama.LlamaCpp``; None if there are none."""
    program = peer.program if isinstance(peer, bench_llama.LlamaCpp) else ""
    if not program:
        return None
    for folder in (Path(program).parent, Path(program).resolve().parent):
        if kinds := {kind: words for kind, words in KINDS.items() if _is_there(folder / words[0])}:
            return Speculation(folder, kinds, has_plain=_is_there(folder / PLAIN[0]))
    return None


def _is_there(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)
