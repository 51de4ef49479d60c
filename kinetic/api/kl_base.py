"""The file of --kl-divergence-base: a model's log-probabilities for a text, byte for byte in llama.cpp's layout.

    0    "_logits_"
    8    int32   tokens in a chunk, n
    12   int32   vocabulary, V
    16   int32   chunks, C
    20   int32   tokens, [C * n]
    ..   C * (n - 1 - n / 2) rows, each of 2 float32 and then V uint16, padded to an even number

All little-endian. The two numbers of a row are a scale and the least log-probability; element q stands for
scale * q + least. What lies more than 16 below the largest logit counts as 16 below.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from kinetic.attest import foreign_errors
from kinetic.bits import F32
from kinetic.errors import Malformed
from kinetic.lanes import F64
from ktc.passes import open_regular

MAGIC = b"_logits_"
HEAD = struct.Struct("<8siii")
DEPTH = np.float32(16)
STEPS = np.float32(65535)
ROUNDING = 0.01
"""How far above 0 float32 may leave the largest log-probability of a row."""


def row_words(vocab_size: int) -> int:
    """uint16 of one row."""
    return 2 * ((vocab_size + 1) // 2) + 4


def header(context: int, vocab_size: int, chunks: Sequence[Sequence[int]]) -> bytes:
    tokens = np.array(chunks, "<i4")
    return HEAD.pack(MAGIC, context, vocab_size, len(chunks)) + tokens.tobytes()


def to_rows(logits: F32, sums: F64) -> bytes:
    """Rows of logits [n, V] as the file has them; ``sums`` are their log sums. Float32 arithmetic, as llama.cpp's."""
    largest = logits.max(axis=1)
    least = np.maximum(logits.min(axis=1), largest - DEPTH)
    scale = (largest - least) / STEPS
    offset = (least.astype(np.float64) - sums).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    steps = np.rint(np.maximum(logits - least[:, None], 0) * inverse[:, None])
    out = np.zeros((len(logits), row_words(logits.shape[1])), "<u2")
    out[:, :4] = np.stack([scale, offset], axis=1).astype("<f4").view("<u2")
    out[:, 4 : 4 + logits.shape[1]] = steps
    return out.tobytes()


class Base:
    """An open base file. ``tokens`` int32 [chunks, context]. Raises FileProblem or Malformed. Close it when done."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with foreign_errors():
            handle, _ = open_regular(self.path)
        self._file: BinaryIO = os.fdopen(handle, "rb")
        try:
            self._read_head()
        except BaseException:
            self._file.close()
            raise

    def _read_head(self) -> None:
        head = self._file.read(HEAD.size)
        if len(head) < HEAD.size or head[:8] != MAGIC:
            raise self._bad("it does not begin as a file of log-probabilities does")
        _, self.context, self.vocab_size, self.chunks = HEAD.unpack(head)
        if self.context < 4 or self.vocab_size < 1 or self.chunks < 1:
            raise self._bad("its header makes no sense")
        self.scored = self.context - 1 - self.context // 2
        count = self.chunks * self.context
        needed = HEAD.size + 4 * count + self.chunks * self.scored * 2 * row_words(self.vocab_size)
        if os.fstat(self._file.fileno()).st_size < needed:
            raise self._bad(f"it is shorter than the {needed} bytes that its header promises")
        self.tokens: NDArray[np.int32] = np.frombuffer(self._file.read(4 * count), "<i4").reshape(self.chunks, -1)

    def _bad(self, problem: str) -> Malformed:
        return Malformed(f"{self.path} is no file of --kl-divergence-base: {problem}", name="BAD_BASE_FILE")

    def rows(self, count: int) -> Steps:
        """The next ``count`` rows. Raises Malformed for numbers that are no log-probabilities."""
        data = np.frombuffer(self._file.read(2 * count * row_words(self.vocab_size)), "<u2").reshape(count, -1)
        scales = data[:, :4].copy().view("<f4").astype(np.float64)
        steps, scale, least = data[:, 4 : 4 + self.vocab_size], scales[:, 0], scales[:, 1]
        with np.errstate(invalid="ignore"):  # What isn't finite is not good.
            largest = scale * steps.max(axis=1) + least
        good = np.isfinite(scales[:, :2]).all(axis=1) & (scale >= 0) & (largest <= ROUNDING)
        if not good.all():
            row = int(np.argmin(good))
            raise self._bad(f"a row has the scale {scale[row]:g} and the offset {least[row]:g}")
        return Steps(steps, scale, least)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Steps:
    """Log-probabilities of rows as a base file has them: ``scale * steps + least``."""

    def __init__(self, steps: NDArray[np.uint16], scale: F64, least: F64) -> None:
        self._steps, self._scale, self._least = steps, scale, least

    def part(self, rows: slice, columns: slice) -> F64:
        """float64 [rows, columns]."""
        logs: F64 = self._steps[rows, columns] * self._scale[rows, None] + self._least[rows, None]
        return logs

    def of(self, tokens: Sequence[int]) -> F64:
        """Of one token in each row: [n]."""
        logs: F64 = self._steps[np.arange(len(tokens)), np.array(tokens)] * self._scale + self._least
        return logs

    def best(self) -> NDArray[np.int64]:
        """The most probable token of each row, the lowest id where there are several."""
        found: NDArray[np.int64] = self._steps.argmax(axis=1)
        return found
