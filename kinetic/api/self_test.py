"""Do the kernels of this machine give the reference's bits? What ``kinetic doctor`` tries out.

For each weight format products of several widths and numbers of rows; then a whole small model
with every operation and all formats, its prompt in one pass and its answer token by token, on
one thread and on several. Weights and inputs come from a hash: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends import open_backend
from kinetic.backends.base import Array, Attention, Forward, Ops, Rope, Weight
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.native import COMMON_UNITS
from kinetic.bits import F32
from kinetic.formats import RUNNABLE, Format, by_type
from kinetic.formats.samples import put_scales
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp
from kinetic.types import Batch

if TYPE_CHECKING:
    from kinetic.backends.base import Program

ROWS = (1, 2, 7, 16, 33)
"""Around tiles."""

WIDTHS = (256, 288, 512)
"""Chunks of 256, and one that isn't whole; of a format those that its blocks divide."""

OUTPUTS = 40
"""Two whole groups of rows and a half."""

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY = 4, 256, 4, 2, 64, 256, 320
"""Of the small model; widths are multiples of every format's block, and it has a matrix for each format."""

PROMPT, ANSWER = 40, 6
"""Tokens."""

EPS = 1e-5

LOOK = 0.2
"""Seconds between two looks at what is compiled."""


class Outcome(NamedTuple):
    """What one part of the test found."""

    name: str
    """A format, or "whole model"."""
    compared: int
    """Values."""
    different: int


def run(
    threads: int, progress: Callable[[int, int], None] | None = None, news: Callable[[str], None] | None = None
) -> Iterator[Outcome]:
    """Each part's outcome. Kernels that aren't there are compiled first, of which ``news`` is told.

    ``progress`` is told (units compiled and parts tried out, in all).
    """
    parts = [by_type(type_id, "") for type_id in sorted(RUNNABLE)]
    total = len(COMMON_UNITS) + len(parts) + len(parts) + 1
    tell = progress or (lambda done, total: None)
    compile_all(news, lambda done: tell(done, total))
    for number, fmt in enumerate(parts):
        tell(total - 1 - len(parts) + number, total)
        yield _products(fmt, threads)
    tell(total - 1, total)
    yield _whole(threads)
    tell(total, total)


def compile_all(news: Callable[[str], None] | None, progress: Callable[[int], None]) -> None:
    """The kernels of every format, two processes beside each other; ``progress`` is told how many units are there."""
    isa = target.choose()
    folder = native.cache_folder(isa)
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(native.Kernels, isa, RUNNABLE, news)
        while not compiling.done():
            wait([compiling], timeout=LOOK)
            progress(len(list(folder.glob("*.o"))))
        compiling.result()


# --- products of one format ---


def _products(fmt: Format, threads: int) -> Outcome:
    compared = different = 0
    for width in WIDTHS:
        if width % fmt.BLOCK:
            continue
        # Rows of very different sizes, so that sums round at every magnitude.
        values = np.ldexp(_floats(f"x{width}", max(ROWS), width), np.arange(max(ROWS))[:, None] % 23 - 11)
        table, weight = _float_weight("inputs", values), _weight("w", fmt, OUTPUTS, width)

        def forward(ops: Ops, table: Weight = table, weight: Weight = weight) -> Array:
            return ops.linear(ops.embed(table), weight)

        (expected,) = _passes(forward, (), [_batch(range(max(ROWS)))], "reference", 1)
        batches = [_batch(range(count)) for count in ROWS]
        for found in _passes(forward, (), batches, "cpu", threads):
            compared += found.size
            different += _different(found, expected[: len(found)])
    return Outcome(fmt.NAME, compared, different)


def _passes(
    forward: Forward,
    layers: Sequence[Attention],
    batches: Sequence[Batch],
    backend: str,
    threads: int,
) -> list[F32]:
    """What each batch gives, every one on an empty cache."""
    program: Program = open_backend(backend, threads=threads).load(forward, layers, None)
    try:
        found = []
        for batch in batches:
            program.truncate(0, 0)
            found.append(program.run(batch))
        return found
    finally:
        program.close()


def _batch(tokens: Sequence[int], start: int = 0, outputs: Sequence[int] | None = None) -> Batch:
    positions = tuple(range(start, start + len(tokens)))
    return Batch(
        tuple(tokens), positions, (0,) * len(tokens), tuple(range(len(tokens)) if outputs is None else outputs)
    )


# --- a whole small model ---


def _whole(threads: int) -> Outcome:
    """Logits of the prompt's last rows and of every token of a greedy answer."""
    forward, layers = _model()
    expected = _answer(open_backend("reference").load(forward, layers, None))
    compared = different = 0
    for count in sorted({1, threads}):
        found = _answer(open_backend("cpu", threads=count).load(forward, layers, None))
        compared += found.size
        different += _different(found, expected)
    return Outcome("whole model", compared, different)


def _answer(program: Program) -> F32:
    """float32 [rows, V]."""
    try:
        prompt = [(7 * i + 3) % VOCABULARY for i in range(PROMPT)]
        rows = [program.run(_batch(prompt, outputs=range(PROMPT - 3, PROMPT)))]
        for position in range(PROMPT, PROMPT + ANSWER):
            rows.append(program.run(_batch([int(rows[-1][-1].argmax())], position)))
        return np.concatenate(rows)
    finally:
        program.close()


def _model() -> tuple[Forward, list[Attention]]:
    """Its matrices take turns with the formats."""
    weights = {"token_embd.weight": _weight("token_embd.weight", by_type(1, ""), VOCABULARY, WIDTH)}
    for name in ("output_norm", *(f"blk.{i}.{part}_norm" for i in range(LAYERS) for part in ("attn", "ffn"))):
        weights[f"{name}.weight"] = _float_weight(name, np.float32(1) + _floats(name, WIDTH) / np.float32(8))
    kinds = [by_type(type_id, "") for type_id in sorted(RUNNABLE)]
    for number, (name, rows, columns) in enumerate(_matrices()):
        weights[name] = _weight(name, kinds[number % len(kinds)], rows, columns)
    rope = Rope(tuple(10000.0 ** (-2 * i / HEAD) for i in range(HEAD // 2)), interleaved=False)
    layers = [Attention(i, HEADS, KV_HEADS, HEAD, HEAD**-0.5, window=16 * i) for i in range(LAYERS)]

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), 8.0)  # so that a token outweighs those before it
        for i, spec in enumerate(layers):
            p = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{p}attn_norm.weight"], EPS)
            x = ops.add(x, grouped_query(ops, weights, p, normed, spec, rope))
            normed = ops.rms_norm(x, weights[f"{p}ffn_norm.weight"], EPS)
            x = ops.add(x, gated_mlp(ops, weights, p, normed, ("silu", "gelu")[i % 2]))
        return logits(ops, weights, x, EPS)

    return forward, layers


def _matrices() -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns."""
    yield "output.weight", VOCABULARY, WIDTH
    kv = KV_HEADS * HEAD
    shapes = {"attn_q": (HEADS * HEAD, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH)}
    shapes |= {"attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH)}
    for i in range(LAYERS):
        for name, shape in (shapes | {"ffn_down": (WIDTH, FFN)}).items():
            yield f"blk.{i}.{name}.weight", *shape


# --- numbers ---


def _random(name: str, count: int) -> NDArray[np.uint8]:
    import blake3

    return np.frombuffer(blake3.blake3(name.encode()).digest(count), np.uint8).copy()


def _floats(name: str, *shape: int) -> F32:
    """float32 between -1 and 1, whole 32768ths."""
    values = _random(name, 2 * int(np.prod(shape))).view("<i2").astype(np.float32)
    return (values * np.float32(2.0**-15)).reshape(shape)


def _float_weight(name: str, values: F32) -> Weight:
    matrix = np.ascontiguousarray(np.atleast_2d(values), np.float32)
    return Weight(name, 0, values.shape, matrix.view(np.uint8))


def _weight(name: str, fmt: Format, rows: int, columns: int) -> Weight:
    """A valid matrix of a format, its values small enough for sums of a few hundred to stay near 1."""
    if not fmt.QUANTISED:
        values = np.ascontiguousarray(_floats(name, rows, columns) / 8, np.float32)
        halves = values.astype("<f2") if fmt.NAME == "F16" else values.view("<u2").reshape(rows, columns, 2)[..., 1]
        stored = np.ascontiguousarray(values if fmt.NAME == "F32" else halves)
        return Weight(name, fmt.TYPE_ID, (rows, columns), stored.view(np.uint8).reshape(rows, -1))
    count = rows * columns // fmt.BLOCK
    blocks = _random(name, count * fmt.BYTES).reshape(count, fmt.BYTES)
    span = 1 << fmt.BITS if fmt.TABLE is None else max(fmt.TABLE) - min(fmt.TABLE)
    factor = 32 if fmt.SCALES in ("superblock", "halves") else 1
    scales = (1 + _floats(f"{name} scales", count) / 2) * np.float32(0.1 / span / fmt.UNIT / factor)
    middle = np.float32(((1 << fmt.BITS) - 1) / 2)  # so that values with minimums are centred at 0
    put_scales(fmt, blocks, scales, scales * (-middle if fmt.SCALES == "block" else middle))
    return Weight(name, fmt.TYPE_ID, (rows, columns), blocks.reshape(rows, -1))


def _different(found: F32, expected: F32) -> int:
    """Values with a bit that is not the reference's."""
    same = found.view(np.uint32) == expected.view(np.uint32)
    return int(np.count_nonzero(~same))
