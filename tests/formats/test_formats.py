"""Each weight format against llama.cpp's own bytes and values, and against itself: its several readers agree."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic.bits import bf16_to_f32, f16_to_f32
from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type, check_scales
from kinetic.formats.samples import put_half
from kinetic.gguf_types import TYPES
from tests.support.blocks import FORMATS, QUANTISED, random_rows

K_NAMES = {f"Q{bits}_K": f"q{bits}_K" for bits in range(2, 7)}


def golden_name(name):
    return K_NAMES.get(name, name.lower())


def golden_variants(folder, name):
    """Files of a format: of the plain quantiser and of the one that knows an importance matrix, those there are."""
    names = golden_name(name), f"{golden_name(name)}.imatrix"
    return [variant for variant in names if (folder / f"{variant}.bin").exists()]


@pytest.mark.parametrize("name", FORMATS)
def test_decode_has_llama_cpps_bits(golden, name):
    """Blocks of llama.cpp's quantiser, also those made with an importance matrix, and its own values for them."""
    folder = golden / "formats" / "main"
    fmt = FORMATS[name]
    index = json.loads((folder / "index.json").read_text())["types"]
    variants = golden_variants(folder, name)
    assert len(variants) == 1 + (fmt.QUANTISED and name not in ONLY_WITH_IMPORTANCE)
    for variant in variants:
        entry = index[variant]
        assert (entry["ggml_type"], entry["block"], entry["type_size"]) == (fmt.TYPE_ID, fmt.BLOCK, fmt.BYTES)
        raw = np.fromfile(folder / f"{variant}.bin", np.uint8).reshape(16, entry["row_bytes"])
        expected = np.load(folder / f"{variant}.deq.npy")
        assert fmt.decode(raw).tobytes() == expected.tobytes(), variant


ONLY_WITH_IMPORTANCE = ("IQ1_S", "IQ2_XXS", "IQ2_XS")
"""llama.cpp's quantiser refuses to make these without an importance matrix."""

NOT_OVERFLOWN = ("IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Its quantiser stops the program at such values."""


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in NOT_OVERFLOWN])
def test_decode_of_values_that_overflow(golden, name):
    """Rows of 1e6 and 1e30: where llama.cpp's quantiser made finite scales we decode them alike."""
    folder = golden / "formats" / "overflow"
    variants = golden_variants(folder, name)
    assert variants
    for variant in variants:
        raw = np.fromfile(folder / f"{variant}.bin", np.uint8).reshape(2, -1)
        expected = np.load(folder / f"{variant}.deq.npy")
        finite = np.isfinite(expected)
        with np.errstate(invalid="ignore"):
            found = FORMATS[name].decode(raw)
        assert np.array_equal(found[finite], expected[finite])
        assert not np.isfinite(found[~finite]).any()


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_rows_of_the_golden_model_are_those_sums(golden, name):
    """``integers`` is what products are computed from: scale * sub * q + minimum is near ``decode`` to one rounding."""
    fmt = FORMATS[name]
    folder = golden / "formats" / "main"
    for variant in golden_variants(folder, name):
        assert_near(fmt, np.fromfile(folder / f"{variant}.bin", np.uint8).reshape(16, -1))


@pytest.mark.parametrize("name", QUANTISED)
def test_integers_and_decode_agree(name):
    fmt = FORMATS[name]
    assert_near(fmt, random_rows(fmt, 7, 3 * 256, seed=130))


def assert_near(fmt, raw):
    parts = fmt.integers(raw)
    values = spread(parts.scale, parts) * parts.q
    if parts.sub is not None:
        values *= spread(parts.sub, parts)
    size = np.abs(values)
    if parts.minimum is not None:
        minimum = spread(parts.minimum, parts)
        if parts.sub_minimum is not None:
            minimum *= spread(parts.sub_minimum, parts)
        values, size = values + minimum, size + np.abs(minimum)
    error = np.abs(fmt.decode(raw).astype(np.float64) - values)
    assert (error <= size * 2.0**-23).all()


def spread(numbers, parts):
    """[N, K/32] or [N, K/16] -> float64 [N, K]."""
    return np.repeat(numbers.astype(np.float64), parts.q.shape[1] // numbers.shape[1], axis=-1)


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
            codes = [int(fmt.unsigned(block, i)) for i in range(fmt.BLOCK)]
            assert 0 <= min(codes) <= max(codes) < 1 << fmt.BITS
            values = [code - fmt.ZERO if fmt.TABLE is None else fmt.TABLE[code] for code in codes]
            assert values == parts.q[row, start : start + fmt.BLOCK].tolist()
            check_scale_numbers(fmt, block, parts, row, start)


def check_scale_numbers(fmt, block, parts, row, start):
    """d times the factor of each part is the scale of ``integers``."""
    if fmt.SCALES == "pairs":
        for i in range(fmt.BLOCK // 16):
            assert parts.scale[row, start // 16 + i] == stored_scale(fmt, block, i)
        return
    d = stored_scale(fmt, block, 0) * np.float32(fmt.UNIT)
    m = half(block, fmt.M_AT) if fmt.M_AT >= 0 else None
    for b in range(fmt.BLOCK // 32):
        at = start // 32 + b
        scale, minimum = parts.scale[row, at], None if parts.minimum is None else parts.minimum[row, at]
        assert (minimum is None) == (m is None)
        if fmt.SCALES == "block":
            assert (scale, minimum) == (d, m)
        elif fmt.SCALES == "superblock":
            assert scale == d * signed(fmt.factor(block, b))
            assert m is None or minimum == -(m * np.float32(fmt.minimum(block, b)))
        else:
            assert scale == d and (m is None or minimum == -m)
            for h in (2 * b, 2 * b + 1):
                assert parts.sub[row, start // 16 + h] == signed(fmt.factor(block, h))
                assert m is None or parts.sub_minimum[row, start // 16 + h] == signed(fmt.minimum(block, h))


def stored_scale(fmt, block, i):
    """What a kernel reads as the i-th scale of a block."""
    if fmt.D_AT >= 0:
        return half(block, fmt.D_AT)
    bits = int(fmt.scale_bits(block, i))
    assert 0 <= bits < 1 << 16
    raw = np.array([bits], "<u2").view(np.uint8)
    return {"f16": f16_to_f32, "bf16": bf16_to_f32}[fmt.SCALE_TYPE](raw)[0]


def signed(factor):
    """float32 of a factor that is the bits of an int8."""
    assert 0 <= factor < 256
    return np.float32(factor - 256 * (factor > 127))


def half(block, at):
    return block[at : at + 2].astype(np.uint8).view("<f2").astype(np.float32)[0]


@pytest.mark.parametrize("name", QUANTISED)
def test_what_a_format_says_of_itself(name):
    """ZERO makes its integers unsigned bytes, UNIT is a power of two, and scales lie inside the block."""
    fmt = FORMATS[name]
    values = fmt.TABLE or range(-fmt.ZERO, (1 << fmt.BITS) - fmt.ZERO)
    assert len(values) <= 1 << fmt.BITS
    assert min(values) + fmt.ZERO >= 0 and max(values) + fmt.ZERO <= 255
    assert fmt.ZERO & (fmt.ZERO - 1) == 0 and np.frexp(fmt.UNIT)[0] == 0.5
    assert max(fmt.D_AT, fmt.M_AT) <= fmt.BYTES - 2
    assert fmt.SCALES in ("block", "pairs") or fmt.BLOCK == 256
    assert TYPES[fmt.TYPE_ID] == (fmt.NAME, fmt.BLOCK, fmt.BYTES)


@pytest.mark.parametrize("name", QUANTISED)
def test_every_bit_of_a_block_matters(name):
    """A changed bit, whichever it is, shows in ``integers``, but for those that mean nothing."""
    fmt = FORMATS[name]
    raw = random_rows(fmt, 1, fmt.BLOCK, seed=132)
    flips = np.zeros((fmt.BYTES, 8, fmt.BYTES), np.uint8)
    for bit in range(8):
        np.fill_diagonal(flips[:, bit], 1 << bit)
    changed = raw ^ flips.reshape(-1, fmt.BYTES)
    seen = np.zeros(len(changed), bool)
    for before, after in zip(fmt.integers(raw), fmt.integers(changed), strict=True):
        if before is not None:
            whole = np.int8 if before.dtype == np.int8 else np.int32
            seen |= (before.view(whole) != after.view(whole)).any(axis=1)
    for (at, bit), shows in zip(np.ndindex(fmt.BYTES, 8), seen, strict=True):
        assert shows != means_nothing(name, at, bit, int(raw[0, at])), (at, bit)


def means_nothing(name, at, bit, byte):
    """Whether integers and scales are the same with that bit of a byte turned over."""
    if name == "NVFP4" and at < 4:  # the sign of an unsigned number
        return bit == 7 and byte & 127 != 127
    if name in ("MXFP4", "NVFP4"):  # -0 is 0
        return at > 0 and bit % 4 == 3 and byte >> (bit - 3) & 7 == 0
    if name == "TQ1_0" and at < 52:  # 256 bytes for 243 numbers of five digits, or 81 of four
        numbers = 81 if at >= 48 else 243
        return byte * numbers >> 8 == (byte ^ 1 << bit) * numbers >> 8
    return False


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused(name, value):
    fmt = FORMATS[name]
    for at in [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]:
        raw = random_rows(fmt, 5, 512, seed=134)
        put_half(raw.reshape(-1, fmt.BYTES)[-2:-1], at, np.array([value], np.float32))
        refuse_scales(fmt, raw)


def test_a_scale_that_is_not_finite_and_not_in_one_place():
    """IQ1_M has its float16 in four nibbles, MXFP4 one exponent that means NaN; every byte of NVFP4 is a number."""
    spots = {"IQ1_M": [(55, 0x7F), (53, 0xC0)], "MXFP4": [(0, 255)]}
    for name, bits in spots.items():
        fmt = FORMATS[name]
        raw = random_rows(fmt, 5, 512, seed=134)
        for at, mask in bits:
            check_scales(fmt, raw, "blk.1.attn_q.weight")
            raw.reshape(-1, fmt.BYTES)[-2, at] |= mask
        refuse_scales(fmt, raw)
    every = random_rows(FORMATS["NVFP4"], 64, 64, seed=134)
    every[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)
    check_scales(FORMATS["NVFP4"], every, "blk.1.attn_q.weight")
    assert np.isfinite(FORMATS["NVFP4"].decode(every)).all()


def refuse_scales(fmt, raw):
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.attn_q\.weight") as caught:
        check_scales(fmt, raw, "blk.1.attn_q.weight")
    assert caught.value.name == "NON_FINITE_SCALE"


def test_scales_of_mxfp4_are_powers_of_two():
    """Down to the subnormals 2^-128 and 2^-127, which are kept; 255 is read as llama.cpp reads it."""
    fmt = FORMATS["MXFP4"]
    raw = np.full((256, fmt.BYTES), 0x11, np.uint8)  # all integers 1
    raw[:, 0] = np.arange(256)
    assert fmt.decode(raw)[:, 0].tolist() == [2.0 ** (e - 128) for e in range(256)]


def test_scales_of_nvfp4_are_halved_e4m3():
    """4 bits of exponent with bias 7, 3 of mantissa, subnormals, no sign; 127 is 0."""
    fmt = FORMATS["NVFP4"]
    raw = np.full((64, fmt.BYTES), 0x11, np.uint8)
    raw[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)
    numbers = [d & 7 if d & 120 == 0 else (8 + (d & 7)) * 2 ** ((d >> 3 & 15) - 1) for d in range(256)]
    numbers[127] = 0
    assert fmt.decode(raw)[:, ::16].reshape(-1).tolist() == [n * 2.0**-10 for n in numbers]


def test_digits_of_tq1_0():
    """A byte of five digits, as llama.cpp writes one: the number of base 3 as a fraction of 256, rounded up."""
    fmt = FORMATS["TQ1_0"]
    raw = np.zeros((243, fmt.BYTES), np.uint8)
    raw[:, 52:54] = np.array([1], "<f2").view(np.uint8)
    raw[:, 31] = [-(-number * 256 // 243) for number in range(243)]
    digits = fmt.decode(raw)[:, 31:160:32] + 1
    assert (digits @ [81, 27, 9, 3, 1]).tolist() == list(range(243))


def test_an_unknown_format_is_refused_with_the_tensors_name():
    with pytest.raises(UnsupportedModel, match=r"blk\.7\.ffn_up\.weight") as caught:
        by_type(4, "blk.7.ffn_up.weight")
    assert caught.value.name == "UNSUPPORTED_WEIGHT_TYPE"
