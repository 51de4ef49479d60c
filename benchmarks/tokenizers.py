"""How soon a tokenizer is ready, and how fast it cuts text: ``python -m benchmarks.tokenizers FILE.gguf TEXT_FILE``.

Seconds of processor time: from opening the file to the tokens of a first short text, without a table of merges, while
one is made, and with it; then megabytes a second of the text and of words made from its pieces, none of them twice.
Each line is a process of its own.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST = "Hello world, this is a first prompt!"
BYTES = 1_000_000


def distinct_words(text: str) -> str:
    """About BYTES of words that were never seen before: the beginning of one and the end of another."""
    rng, words = random.Random(2), re.findall(r"[a-z]{2,12}", text)
    found: dict[str, None] = {}
    size = 0
    while size < BYTES:
        one, other = rng.choice(words), rng.choice(words)
        word = one[: rng.randint(1, len(one))] + other[rng.randint(0, len(other) - 1) :]
        if word not in found:
            found[word] = None
            size += len(word) + 1
    return " ".join(found)


def measure(model: Path, text_file: Path, folder: Path | None) -> str:
    from kinetic.gguf import Gguf
    from kinetic.text import load_tokenizer

    begin = time.process_time()
    with Gguf.open(model) as file:
        tokenizer = load_tokenizer(file.metadata, folder)
        tokenizer.encode(FIRST, add_special=True, parse_special=True)
        ready = time.process_time() - begin
        text = text_file.read_text(encoding="utf-8")
        rates = []
        for given in (text, distinct_words(text)):
            begin = time.process_time()
            tokenizer.encode(given, add_special=False, parse_special=False)
            rates.append(len(given.encode()) / (time.process_time() - begin) / 1e6)
    return f"ready in {ready:.3f} s, text {rates[0]:.2f} MB/s, distinct words {rates[1]:.2f} MB/s"


def main(words: list[str]) -> None:
    if len(words) == 3:
        print(measure(Path(words[0]), Path(words[1]), Path(words[2]) if words[2] else None))
        return
    with tempfile.TemporaryDirectory() as folder:
        for label, place in (("without a table", ""), ("making one", folder), ("with it", folder)):
            command = [sys.executable, "-m", "benchmarks.tokenizers", *words, place]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            print(f"{label:16} {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
