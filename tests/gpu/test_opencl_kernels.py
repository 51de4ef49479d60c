"""The kernels against the reference at zero tolerance, through OpenCL: PoCL runs them where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import BLOCK, CHUNK, Attention
from kinetic.backends.gpu.attention import LANES as ATTENTION_LANES
from kinetic.backends.gpu.attention import Kind, attention_source
from kinetic.backends.gpu.pages import LayerPages
from kinetic.backends.gpu.products import ROWS_OF_A_GROUP
from kinetic.backends.gpu.self_test import same_bits
from kinetic.backends.gpu.source import kernel_source, matmul_source
from kinetic.backends.reference import linear
from kinetic.backends.reference.attention import attend_row
from kinetic.backends.reference.quantise import Activations, quantise
from kinetic.formats import q4_1

ROWS = (1, 2, 7, 8, 9, 31, 32, 33)
LANES = 32


@pytest.fixture(scope="session")
def matmul(device):
    def run(activations: Activations, raw: np.ndarray, lanes: int = LANES, fmt=q4_1) -> np.ndarray:
        program = device.kernel(matmul_source(fmt), "matmul")
        q, d = activations.q.astype(np.int8), beside(activations)
        out = np.full((len(d), len(raw)), np.nan, np.float32)
        sizes = map(np.int32, (len(d), len(raw), d.shape[1]))
        memory = [device.upload(values) for values in (out, q, d, raw)]
        device.launch(program, len(raw) * -(-len(d) // ROWS_OF_A_GROUP), lanes, *memory, *sizes)
        device.read(memory[0], out)
        return out

    return run


@pytest.fixture(scope="session")
def attention(device):
    programs = {queries: device.build(attention_source(queries)) for queries in ATTENTION_LANES}
    merge = device.build(kernel_source("attention_merge"))

    def run_one(q, keys, values, positions, spec: Attention, queries, most, lanes, sinks, first) -> np.ndarray:
        """Pages lie in reverse order, behind one of another sequence. Scratch starts as NaN, so that a chunk merged
        without having been computed shows."""
        chunks, shared = max(positions) // CHUNK + 1, spec.heads // spec.kv_heads
        rows = np.array([(position, 1, max(positions) + 1) for position in positions], np.int32)
        tables = np.array([[0] * chunks, range(chunks, 0, -1)], np.int32)
        tiles = np.array([(row, min(most, len(q) - row)) for row in range(0, len(q), most)], np.int32)
        skipped = first // most
        begin = Kind(shared, spec.window, spec.causal).first_chunk(min(positions))
        shape = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
        partials = np.full((len(q), spec.heads, chunks - begin, spec.value_width + 2), np.nan, np.float32)
        seen = begin, chunks - begin, spec.window, spec.causal
        numbers = *map(np.int32, (skipped, *shape, chunks, *seen)), np.float32(spec.scale), np.float32(spec.softcap)
        count = len(tiles) - skipped
        groups = count * spec.kv_heads * -(-shared // queries) * (chunks - begin)
        pages = _in_pages(keys, values, chunks, spec)
        device.run(
            programs[queries], "attention_chunks", groups, lanes, partials, q, pages, rows, tables, tiles, *numbers
        )
        out = np.full((len(q), spec.heads, spec.value_width), np.nan, np.float32)
        drains = np.zeros(1, np.float32) if sinks is None else sinks
        merged = map(np.int32, (sinks is not None, skipped, most, spec.heads, spec.value_width, *seen))
        groups, lanes = count * most * spec.heads, 7 if lanes == 7 else 64
        device.run(merge, "attention_merge", groups, lanes, out, partials, rows, tiles, drains, *merged)
        return out

    def run(q, keys, values, positions, spec: Attention, sinks=None, first: int = 0, lanes: int = 0, queries: int = 0):
        """However rows share a pass over keys, they have the same bits. By default lanes are as many as are used."""
        shared, wanted = spec.heads // spec.kv_heads, [queries] if queries else programs
        ways = {(queries, max(1, queries // shared)) for queries in wanted} | {(max(wanted), 1)}
        made = [
            run_one(q, keys, values, positions, spec, queries, most, lanes or ATTENTION_LANES[queries], sinks, first)
            for queries, most in sorted(ways)
        ]
        for out in made[1:]:
            assert same_bits(out[first:], made[0][first:])
        return made[0]

    return run


def _in_pages(keys: np.ndarray, values: np.ndarray, chunks: int, spec: Attention) -> np.ndarray:
    """float16 [n, G, D] as ``chunks`` + 1 pages: what ``tables`` says, NaN where there is nothing."""
    sides = []
    for side in (keys, values):
        whole = np.full(((chunks + 1) * CHUNK, *side.shape[1:]), np.nan, np.float16)
        whole[: len(side)] = side[: len(whole)]
        sides.append(whole.reshape(chunks + 1, CHUNK, *side.shape[1:]))
    layer = LayerPages(spec)
    return np.concatenate([layer.page(*page) for page in reversed([*zip(*sides, strict=True)])])


# --- matmul ---


def beside(activations: Activations) -> np.ndarray:
    """float32 [rows, blocks, 2]: scales, then the sums of two halves in 16 bits each."""
    halves = activations.q.reshape(*activations.d.shape, 2, BLOCK // 2).sum(axis=-1).astype(np.int16)
    return np.stack([activations.d, np.ascontiguousarray(halves).view(np.float32)[..., 0]], axis=-1)


def activations(rows: int, k: int) -> np.ndarray:
    """Rows with one block each of NaN, inf, -inf, zeros, nearly zero, just usable, huge and ties, as far as they go."""
    x = np.random.default_rng(rows * 1000 + k).standard_normal((rows, k)).astype(np.float32)
    blocks = x.reshape(-1, BLOCK)
    least = np.float32(2.0**-90)
    specials = np.array(
        [np.nan, np.inf, -np.inf, 0, np.nextafter(least, np.float32(0)), least, 3.4e38, 127], np.float32
    )
    for index, value in zip(range(1, len(blocks), 5), specials, strict=False):
        if value == 127:
            blocks[index] = np.arange(BLOCK) - np.float32(15.5)
        elif not np.isfinite(value):
            blocks[index, index % BLOCK] = value
        else:
            blocks[index] *= value / np.abs(blocks[index]).max()
    return x


def weights(n: int, k: int) -> np.ndarray:
    """Random Q4_1 blocks uint8 [n, bytes]: every nibble, and scales of all exponents, subnormals too."""
    generator = np.random.default_rng(n * 1000 + k)
    blocks = generator.integers(0, 256, (n, k // BLOCK, q4_1.BYTES), np.uint8)
    finite = generator.integers(0, 0x7C00, (n, k // BLOCK, 2), np.uint16)
    signs = generator.integers(0, 2, finite.shape, np.uint16) << 15
    blocks[..., :4] = (finite | signs).view(np.uint8)
    return blocks.reshape(n, -1)


@pytest.mark.parametrize("k", [32, 256, 288, 576])
@pytest.mark.parametrize("rows", ROWS)
def test_matmul_equals_the_reference(matmul, rows, k):
    x = activations(rows, k)
    for n in (1, 5, 33):
        raw = weights(n, k)
        with np.errstate(all="ignore"):
            expected = linear.quantised_product(x, q4_1.integers(raw))
        assert same_bits(matmul(quantise(x), raw), expected)


@pytest.mark.parametrize("lanes", [8, 24, 64])
def test_lanes_change_no_bit_of_a_matmul(matmul, lanes):
    """Five chunks and a half: more than a round of few lanes, fewer than many."""
    k = 5 * CHUNK + 4 * BLOCK
    x, raw = activations(3, k), weights(4, k)
    with np.errstate(all="ignore"):
        expected = linear.quantised_product(x, q4_1.integers(raw))
    assert same_bits(matmul(quantise(x), raw, lanes), expected)


def test_matmul_keeps_subnormals(matmul, monkeypatch):
    """Scales that quantising never makes, but that show a device which flushes."""
    generator = np.random.default_rng(1)
    q = generator.integers(-127, 128, (9, 18, BLOCK)).astype(np.int32)
    d = generator.integers(0, 0x00900000, (9, 18), np.uint32).view(np.float32)
    raw = weights(7, 576)
    raw.reshape(7, 18, q4_1.BYTES)[..., [1, 3]] &= 0x83  # d and m of at most 2^-14
    monkeypatch.setattr(linear, "quantise", lambda x: Activations(q, d))
    expected = linear.quantised_product(np.empty((9, 576), np.float32), q4_1.integers(raw))
    assert (np.abs(expected) < np.finfo(np.float32).tiny).all()
    assert np.count_nonzero(expected) > 40
    assert same_bits(matmul(Activations(q, d), raw), expected)


# --- attention ---


def case(rows: int, positions: int, spec: Attention) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries float32 [rows, H, D]; keys and values float16 [positions + 9, G, D], the last 9 unused: NaN."""
    generator = np.random.default_rng(rows * 1000 + positions)
    q = generator.standard_normal((rows, spec.heads, spec.head_dim)).astype(np.float32)
    keys, values = generator.standard_normal((2, positions + 9, spec.kv_heads, spec.head_dim)).astype(np.float16)
    keys[positions:] = values[positions:] = np.nan
    return q, keys, values


def reference(q, keys, values, positions, spec: Attention, sinks=None) -> np.ndarray:
    rows = zip(q, positions, strict=True)
    return np.stack([attend_row(row, keys[: at + 1], values[: at + 1], at, spec, sinks) for row, at in rows])


def heads(width: int = 16, *, window: int = 0, scale: float = 0.31) -> Attention:
    return Attention(layer=0, heads=4, kv_heads=2, head_dim=width, scale=scale, window=window)


@pytest.mark.parametrize("rows", ROWS)
def test_attention_equals_the_reference(attention, rows):
    """Rows on both sides of the first chunk's end, each blind to the keys after it."""
    spec = heads()
    positions = list(range(CHUNK - rows // 2 - 1, CHUNK - rows // 2 - 1 + rows))
    q, keys, values = case(rows, positions[-1] + 1, spec)
    out = attention(q, keys, values, positions, spec)
    assert np.isfinite(out).all()
    assert same_bits(out, reference(q, keys, values, positions, spec))


@pytest.mark.parametrize("window", [0, 1, 15, 100, CHUNK, CHUNK + 1, 300])
def test_windows_and_positions(attention, window):
    """Windows that start in, at and before the ends of chunks; weights too small to count, by a large scale."""
    spec = heads(80, window=window, scale=1.7)
    positions = [0, 1, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 700]
    q, keys, values = case(len(positions), 701, spec)
    out = attention(q, keys, values, positions, spec)
    assert np.isfinite(out).all()
    assert same_bits(out, reference(q, keys, values, positions, spec))


def test_weights_below_the_cut_are_zero(attention):
    """Scores 95 below the largest weigh nothing, in a chunk and between chunks; 87 below is the last that counts."""
    spec = heads(scale=1.0, window=CHUNK - 6)
    positions = [20, CHUNK + 20]
    q, keys, values = case(2, CHUNK + 21, spec)
    q[:], keys[: CHUNK + 21] = 0.0, 0.0
    q[..., 0] = 1.0
    keys[positions, :, 0], keys[[7, CHUNK + 7], 0, 0] = 95.0, 8.0
    values[positions] = 0.0  # so that the small weights show
    out = attention(q, keys, values, positions, spec)
    assert [np.count_nonzero(head) for head in out[0]] == [spec.head_dim, spec.head_dim, 0, 0]
    assert same_bits(out, reference(q, keys, values, positions, spec))


@pytest.mark.parametrize(("lanes", "queries"), [(1, 4), (7, 16), (256, 8)])
def test_lanes_change_no_bit_of_attention(attention, lanes, queries):
    spec = heads(window=300)
    positions = [299, 570]
    q, keys, values = case(2, 571, spec)
    expected = reference(q, keys, values, positions, spec)
    assert same_bits(attention(q, keys, values, positions, spec, lanes=lanes, queries=queries), expected)


def test_attention_of_extreme_numbers(attention):
    """One row each: NaN, inf, scores that overflow, zeros of both signs, subnormals; keys with NaN, inf, subnormals."""
    spec = heads(window=64)
    positions = list(range(200, 600, 50))
    q, keys, values = case(len(positions), 600, spec)
    q[0, 0, 3], q[1, 1, 0], q[1, 2, 0] = np.nan, np.inf, -np.inf
    q[2] *= np.float32(1e38)
    q[3], q[4] = 0.0, -0.0
    q[5] *= np.float32(1e-39)
    keys[340:345, 0] = [[np.nan], [np.inf], [-np.inf], [65504.0], [-0.0]]
    values[390:394, 1] = [[np.nan], [np.inf], [6e-8], [-0.0]]
    values[440:] *= np.float16(1e-6)
    out = attention(q, keys, values, positions, spec)
    assert np.isnan(out).any() and np.isfinite(out).any()
    assert same_bits(out, reference(q, keys, values, positions, spec))


def test_sinks_caps_and_values_of_another_width(attention):
    """And rows from the second on, as long contexts are cut."""
    spec = Attention(0, 4, 2, 24, 1.7, window=300, value_dim=40, softcap=2.5)
    positions = [3, 299, 300, 540]
    q, keys, _ = case(4, 541, spec)
    values = np.random.default_rng(3).standard_normal((550, 2, 40)).astype(np.float16)
    for sinks in (None, np.array([-200.0, 0.5, 90.0, np.nan], np.float32)):
        expected = reference(q, keys, values, positions, spec, sinks)
        assert same_bits(attention(q, keys, values, positions, spec, sinks=sinks), expected)
        assert same_bits(attention(q, keys, values, positions, spec, sinks=sinks, first=1)[1:], expected[1:])


@pytest.mark.parametrize("window", [0, 9, 300])
def test_attention_both_ways(attention, window):
    """Every row sees as far as the text goes, or half a window to either side."""
    spec = Attention(0, 4, 2, 16, 0.4, window=window, causal=False)
    positions = [*range(0, 520, 40), 519]
    q, keys, values = case(len(positions), 520, spec)
    expected = np.stack(
        [attend_row(row, keys[:520], values[:520], at, spec) for row, at in zip(q, positions, strict=True)]
    )
    assert same_bits(attention(q, keys, values, positions, spec), expected)
