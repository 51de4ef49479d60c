"""Each weight format against llama.cpp's own bytes and values, and against itself: its several readers agree."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type, check_scales
from tests.support.blocks import FORMATS, QUANTISED, put_half, random_rows, words

GOLDEN_NAMES = {"Q4_K": "q4_K", "Q5_K": "q5_K", "Q6_K": "q6_K"}


def golden_name(name):
    return GOLDEN_NAMES.get(name, name.lower())


@pytest.mark.parametrize("name", FORMATS)
def test_decode_has_llama_cpps_bits(golden, name):
    """Blocks of llama.cpp's quantiser, also those made with an importance matrix, and its own values for them."""
    folder = golden / "formats" / "main"
    fmt = FORMATS[name]
    variants = [golden_name(name)] + [f"{golden_name(name)}.imatrix"] * fmt.QUANTISED
    index = json.loads((folder / "index.json").read_text())["types"]
    for variant in variants:
        entry = index[variant]
        assert (entry["ggml_type"], entry["block"], entry["type_size"]) == (fmt.TYPE_ID, fmt.BLOCK, fmt.BYTES)
        raw = np.fromfile(folder / f"{variant}.bin", np.uint8).reshape(16, entry["row_bytes"])
        expected = np.load(folder / f"{variant}.deq.npy")
        assert fmt.decode(raw).tobytes() == expected.tobytes(), variant


@pytest.mark.parametrize("name", FORMATS)
def test_decode_of_values_that_overflow(golden, name):
    """Rows of 1e6 and 1e30: where llama.cpp's quantiser made finite scales we decode them alike."""
    folder = golden / "formats" / "overflow"
    raw = np.fromfile(folder / f"{golden_name(name)}.bin", np.uint8).reshape(2, -1)
    expected = np.load(folder / f"{golden_name(name)}.deq.npy")
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore"):
        found = FORMATS[name].decode(raw)
    assert np.array_equal(found[finite], expected[finite])
    assert not np.isfinite(found[~finite]).any()


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_rows_of_the_golden_model_are_those_sums(golden, name):
    """``integers`` is what products are computed from: scale * sub * q + minimum is near ``decode`` to one rounding."""
    fmt = FORMATS[name]
    raw = np.fromfile(golden / "formats" / "main" / f"{golden_name(name)}.bin", np.uint8).reshape(16, -1)
    assert_near(fmt, raw)


@pytest.mark.parametrize("name", QUANTISED)
def test_integers_and_decode_agree(name):
    fmt = FORMATS[name]
    assert_near(fmt, random_rows(fmt, 7, 3 * 256, seed=130))


def assert_near(fmt, raw):
    parts = fmt.integers(raw)
    values = np.repeat(parts.scale.astype(np.float64), 32, axis=-1) * parts.q
    if parts.sub is not None:
        values *= np.repeat(parts.sub.astype(np.float64), 16, axis=-1)
    size = np.abs(values)
    if parts.minimum is not None:
        minimum = np.repeat(parts.minimum.astype(np.float64), 32, axis=-1)
        values, size = values + minimum, size + np.abs(minimum)
    error = np.abs(fmt.decode(raw).astype(np.float64) - values)
    assert (error <= size * 2.0**-23).all()


@pytest.mark.parametrize("name", QUANTISED)
def test_unsigned_and_factors_are_those_of_integers(name):
    """What the packing kernels read block by block is what ``integers`` reads of whole rows."""
    fmt = FORMATS[name]
    raw = random_rows(fmt, 3, 512, seed=131)
    parts = fmt.integers(raw)
    assert parts.q.shape == (3, 512)
    for row in range(3):
        for number, block in enumerate(raw[row].reshape(-1, fmt.BYTES)):
            start = number * fmt.BLOCK
            block = block.astype(np.int64)
            values = [int(fmt.unsigned(block, i)) - fmt.ZERO for i in range(fmt.BLOCK)]
            assert values == parts.q[row, start : start + fmt.BLOCK].tolist()
            check_scale_numbers(fmt, block, parts, row, start)


def check_scale_numbers(fmt, block, parts, row, start):
    """d times the factor of each part is the scale of ``integers``."""
    d = half(block, fmt.D_AT)
    for b in range(fmt.BLOCK // 32):
        scale, at = parts.scale[row, start // 32 + b], start // 32 + b
        if fmt.SCALES == "block":
            assert scale == d
            assert fmt.M_AT < 0 or parts.minimum[row, at] == half(block, fmt.M_AT)
        elif fmt.SCALES == "superblock":
            assert scale == d * np.float32(fmt.factor(block, b))
            assert parts.minimum[row, at] == -(half(block, fmt.M_AT) * np.float32(fmt.minimum(block, b)))
        else:
            assert scale == d
            for h in (2 * b, 2 * b + 1):
                assert int(parts.sub[row, start // 16 + h]) & 255 == fmt.factor(block, h)


def half(block, at):
    return block[at : at + 2].astype(np.uint8).view("<f2").astype(np.float32)[0]


@pytest.mark.parametrize("name", QUANTISED)
def test_every_byte_of_a_block_matters(name):
    """A changed byte, whichever it is, shows in ``integers``."""
    fmt = FORMATS[name]
    raw = random_rows(fmt, 1, fmt.BLOCK, seed=132)
    before = fmt.integers(raw)
    flips = words(133, fmt.BYTES).astype(np.uint8) | np.uint8(1)
    for at in range(fmt.BYTES):
        changed = raw.copy()
        changed[0, at] ^= flips[at]
        after = fmt.integers(changed)
        pairs = zip(before, after, strict=True)
        assert any(x is not None and x.tobytes() != y.tobytes() for x, y in pairs), f"byte {at}"


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused(name, value):
    fmt = FORMATS[name]
    for at in [fmt.D_AT] + [fmt.M_AT] * (fmt.M_AT >= 0):
        raw = random_rows(fmt, 5, 512, seed=134)
        check_scales(fmt, raw, "blk.1.attn_q.weight")
        put_half(raw.reshape(-1, fmt.BYTES)[-2:-1], at, np.array([value], np.float32))
        with pytest.raises(UnsupportedModel, match=r"blk\.1\.attn_q\.weight") as caught:
            check_scales(fmt, raw, "blk.1.attn_q.weight")
        assert caught.value.name == "NON_FINITE_SCALE"


def test_an_unknown_format_is_refused_with_the_tensors_name():
    with pytest.raises(UnsupportedModel, match=r"blk\.7\.ffn_up\.weight") as caught:
        by_type(16, "blk.7.ffn_up.weight")
    assert caught.value.name == "UNSUPPORTED_WEIGHT_TYPE"
