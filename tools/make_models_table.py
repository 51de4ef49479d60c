"""The table of docs/MODELS.md: ``python -m tools.make_models_table GOLDEN``, GOLDEN a folder of llama.cpp's figures.

For each small random model there that this build runs: the largest difference of a logit from llama.cpp's, whether
chunks, threads and the reference change a bit, and tokens a second of decoding and of its prompt. For each that makes
vectors: the largest difference of an element of any row, and whether neighbours, threads and the reference change
a bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kinetic.api.embedder import Embedder
from kinetic.api.probe import Probe
from kinetic.bits import F32
from kinetic.errors import KineticError
from kinetic.gguf import Gguf

PAGE = Path(__file__).resolve().parents[1] / "docs" / "MODELS.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
HEAD = (
    "| model | family | from llama.cpp | llama.cpp from itself | invariant | prompt, tokens/s | decoding |\n"
    "| --- | --- | --: | --: | --- | --: | --: |\n"
)
VECTORS_HEAD = (
    "| model | family | rows from llama.cpp | pooling | its vector from llama.cpp | invariant |\n"
    "| --- | --- | --: | --- | --: | --- |\n"
)
WAYS = (("cpu", 2, 1), ("cpu", 1, 7), ("cpu", 2, 33), ("reference", 1, 64))
"""Device, threads, and rows at once that must give the bits of one row after the other on one thread."""


class Measured(NamedTuple):
    name: str
    family: str
    difference: float
    own: float
    invariant: bool
    prompt: float
    decoding: float

    def __str__(self) -> str:
        said = "yes" if self.invariant else "**no**"
        rates = f"{self.prompt:,.0f} | {self.decoding:,.0f}"
        return f"| {self.name} | {self.family} | {self.difference:.4f} | {self.own:.4f} | {said} | {rates} |\n"


class Vectors(NamedTuple):
    name: str
    family: str
    rows: float
    pooling: str
    pooled: float
    invariant: bool

    def __str__(self) -> str:
        said = "yes" if self.invariant else "**no**"
        return f"| {self.name} | {self.family} | {self.rows:.4f} | {self.pooling} | {self.pooled:.4f} | {said} |\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the table anew; 1 if a model is not invariant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    folder = parser.parse_args(arguments).golden / "archs"
    rows: list[Measured] = []
    vectors: list[Vectors] = []
    others: list[str] = []
    for path in sorted(folder.glob("*/model.gguf")):
        try:
            if (path.parent / "emb_model.npy").is_file():
                vectors.append(measure_vectors(path))
            else:
                rows.append(measure(path))
        except (KineticError, FileNotFoundError):
            others.append(f"{path.parent.name} (`{_architecture(path)}`)")
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    missing = f"\nNot models of their own, but drafters or unknown: {', '.join(others)}.\n" if others else ""
    table = HEAD + "".join(map(str, rows)) + "\n" + VECTORS_HEAD + "".join(map(str, vectors))
    PAGE.write_text(before + BEGIN + table + missing + END + after, encoding="utf-8")
    return 0 if all(row.invariant for row in rows) and all(row.invariant for row in vectors) else 1


def _architecture(path: Path) -> str:
    with Gguf.open(path) as gguf:
        return str(gguf.get("general.architecture", "str"))


def measure(path: Path) -> Measured:
    """Of one model. Raises KineticError where this build can't run it, FileNotFoundError where logits are missing."""
    tokens = json.loads((path.parent / "tokens.json").read_text())["tokens"]
    greedy = json.loads((path.parent / "greedy.json").read_text())["llama_cpp_self_diff_max_abs"]
    expected = np.load(path.parent / "logits.npy")
    plain, decoding = logits(path, tokens, "cpu", 1, 1)
    found = [logits(path, tokens, *way)[0] for way in WAYS]
    prompt = logits(path, tokens, "cpu", 1, len(tokens))[1]
    return Measured(
        path.parent.name,
        _architecture(path),
        float(np.abs(plain - expected).max()),
        max(greedy["kv_f16_fa_off"], greedy["kv_f16_fa_on"]),
        all(np.array_equal(plain.view(np.uint32), other.view(np.uint32)) for other in found),
        prompt,
        decoding,
    )


def measure_vectors(path: Path) -> Vectors:
    """Of one model. Raises KineticError where this build can't run it."""
    tokens = json.loads((path.parent / "tokens.json").read_text())["tokens"]
    texts = [tokens, tokens[:1], tokens[7:40]]
    with Embedder(path, pooling="none", threads=1) as embedder:
        (rows,) = embedder.vectors([tokens], -1)
    with Embedder(path, threads=1) as embedder:
        pooling, alone = embedder.pooling, [embedder.vectors([text], -1)[0] for text in texts]
    same = []
    for device, threads in (("cpu", 2), ("reference", 1)):
        with Embedder(path, device=device, threads=threads) as embedder:
            beside = embedder.vectors(texts[::-1], -1)[::-1]
        same += [np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(alone, beside, strict=True)]
    differences = [
        float(np.abs(found - np.load(path.parent / f"emb_{name}.npy")).max())
        for name, found in (("none", rows), ("model", alone[0]))
    ]
    return Vectors(path.parent.name, _architecture(path), differences[0], pooling, differences[1], all(same))


def logits(path: Path, tokens: list[int], device: str, threads: int, rows: int) -> tuple[F32, float]:
    """Logits float32 [T, V] with so many rows at once, and tokens a second of the second time."""
    with Probe(path, device=device, threads=threads) as probe:
        for _ in range(2 if device == "cpu" else 1):
            probe.forget(0)
            begin = time.perf_counter()
            found = np.concatenate(list(probe.feed(tokens, [rows])))
            seconds = time.perf_counter() - begin
        return found, len(tokens) / seconds


if __name__ == "__main__":
    sys.exit(main())
