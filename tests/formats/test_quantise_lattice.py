"""Quantisers of the lattice formats: their neighbours, and what no random row shows. The rest is in test_quantise."""

from __future__ import annotations

import json
from pathlib import Path

import blake3
import numpy as np
import pytest

from kinetic.backends.cpu.quantise import NEEDS_IMATRIX, Quantisers
from kinetic.backends.cpu.quantise.lattice_tables import DISTANCES, LANES, LATTICES, neighbours
from kinetic.errors import NonFinite
from kinetic.formats import by_type, grids
from kinetic.gguf_types import TYPES, type_name
from tests.support.backends import quantisers_of_all
from tests.support.blocks import integers, normals, uniforms

IQ2_XXS, IQ2_XS, IQ3_XXS, IQ3_S, IQ2_S = 16, 17, 18, 21, 22
WITH_BITS = [IQ2_XXS, IQ2_XS, IQ3_XXS, IQ3_S, IQ2_S]

TABLES = {
    "iq1_s": "d2f9d460d7dc18709deeb21e5b8d021b",
    "iq2_s": "6f54d7723232882d00ae09bee3cec97f",
    "iq2_xs": "ece99ed2b39ae32fabd27a99bb16d7c5",
    "iq2_xxs": "ffb7c1bf2de7bd6946b31173dae67b19",
    "iq3_s": "bdf76b3a78e1de19da8916c962cd5fd0",
    "iq3_xxs": "bcb19e436ec1ea1eb49c29f35ccfbb46",
}
"""Digests of the tables, which were compared with ggml's own, key by key, when they were made."""

CORNERS = Path(__file__).with_name("quantised_corners.json")
"""Digests of the rows below, by case and format; llama.cpp's bytes had the same when they were made."""


@pytest.fixture(scope="module")
def quantisers() -> Quantisers:
    return quantisers_of_all()


# --- neighbours ---


def digest(*arrays: np.ndarray) -> str:
    return blake3.blake3(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:32]


@pytest.mark.parametrize("lattice", sorted(DISTANCES))
def test_tables_are_ggmls(lattice):
    assert digest(*neighbours(lattice)) == TABLES[lattice]


@pytest.mark.parametrize("lattice", sorted(DISTANCES))
def test_neighbours_are_the_points_at_the_least_distances(lattice):
    """The definition, for some keys: sort all points by distance and index, take those at the first few distances."""
    tables = neighbours(lattice)
    width, levels = grids.FORMS[lattice]
    codes = np.searchsorted(levels, grids.points(lattice)).astype(int)
    for key in integers(160, 0, len(tables.point), 60):
        point = np.array([key // len(levels) ** i % len(levels) for i in range(width)])
        distances = ((codes - point) ** 2).sum(axis=1)
        names = tables.names[tables.first[key] : tables.first[key + 1]].reshape(-1)
        if distances.min() == 0:
            assert tables.point[key] == distances.argmin()
            assert len(names) == 0
            continue
        near = sorted(set(distances))[: DISTANCES[lattice]]
        expected = [i for d, i in sorted(zip(distances, range(len(codes)), strict=True)) if d in near]
        filled = expected + [expected[0]] * (-len(expected) % LANES)
        assert tables.point[key] == -1
        assert list(names) == filled


def test_tables_say_what_their_points_are():
    for lattice in DISTANCES:
        tables = neighbours(lattice)
        width, levels = grids.FORMS[lattice]
        values = np.searchsorted(levels, grids.points(lattice))
        values = values if lattice == "iq1_s" else 2 * values + 1
        assert (tables.values == values[tables.names].swapaxes(1, 2)).all()
        assert ((tables.packed[:, None] >> 4 * np.arange(width)) & 15 == values).all()


# --- corners of the searches ---


@pytest.mark.parametrize("ggml_type", sorted(LATTICES), ids=type_name)
def test_an_importance_of_zero_makes_no_nan(quantisers, ggml_type):
    source = normals(161, 3, 512)
    source[1, :300] = 0
    importance = np.where(np.arange(512) < 384, uniforms(162, 512), np.float32(0))
    for weights in (np.zeros(512, np.float32), importance):
        found = quantisers.rows(ggml_type, source, weights)
        assert np.isfinite(by_type(ggml_type, "?").decode(found)).all()


def leaning() -> tuple[np.ndarray, np.ndarray]:
    """Rows with negative scales. Of eight values the first is small, negative and important.

    The number of signs is made even there, so its x becomes negative; it outweighs the others although its weighted
    square is the least.
    """
    source = np.abs(normals(163, 5, 512)) * np.float32(0.05) + np.float32(1)
    source[:, ::8] *= np.float32(-0.002)
    importance = uniforms(164, 512) * np.float32(1e-6) + np.float32(8e-6)
    importance[::8] = 1
    return source, importance


def tiny() -> tuple[np.ndarray, np.ndarray]:
    """Some sub-blocks count as zero; the errors of some scales fall below float32, those of others don't."""
    return normals(169, 9, 512) * np.float32(1e-15), uniforms(170, 512)


def unimportant() -> tuple[np.ndarray, np.ndarray]:
    """No value is important, so that no scale is better than another."""
    return normals(171, 3, 512), np.zeros(512, np.float32)


CASES = {"leaning": leaning, "tiny": tiny, "unimportant": unimportant}


@pytest.mark.parametrize("ggml_type", sorted(LATTICES), ids=type_name)
@pytest.mark.parametrize("case", CASES)
def test_corners_are_llama_cpps(quantisers, case, ggml_type):
    expected = json.loads(CORNERS.read_text(encoding="utf-8"))[case][type_name(ggml_type)]
    assert digest(quantisers.rows(ggml_type, *CASES[case]())) == expected


def test_points_of_iq3_s_close_up_behind_a_sub_block_of_zeros(quantisers):
    """Low bits and signs of the next sub-block take its place, ninth bits and the scale don't: ggml's bytes."""
    source = np.zeros((2, 256), np.float32)
    source[0, 32:64] = source[1, :32] = normals(165, 32)
    later, first = quantisers.rows(IQ3_S, source, None)
    assert (later[2:66] == first[2:66]).all() and (later[74:106] == first[74:106]).all()
    assert later[66:68].tolist() == [0, first[66]]
    assert later[106] == first[106] << 4 & 0xF0


@pytest.mark.parametrize("ggml_type", WITH_BITS, ids=type_name)
def test_values_whose_squares_leave_float32_are_refused(quantisers, ggml_type):
    source = normals(166, 2, 256) * np.float32(1e30)
    source[1] = 1e30
    with pytest.raises(NonFinite, match=f"too large for {type_name(ggml_type)}") as caught:
        quantisers.rows(ggml_type, source, np.ones(256, np.float32))
    assert caught.value.name == "VALUES_TOO_LARGE"
    ordinary = normals(167, 1, 256)  # a refusal is not remembered
    assert quantisers.rows(ggml_type, ordinary, np.ones(256, np.float32)).shape == (1, TYPES[ggml_type][2])


@pytest.mark.parametrize("ggml_type", sorted(LATTICES), ids=type_name)
def test_what_llama_cpp_aborts_on_is_refused(golden, quantisers, ggml_type):
    entries = json.loads((golden / "formats" / "overflow" / "index.json").read_text())["types"]
    source = np.load(golden / "formats" / "input_overflow.npy")
    for suffix, importance in (("", None), (".imatrix", np.load(golden / "formats" / "imatrix.npy"))):
        if importance is None and ggml_type in NEEDS_IMATRIX:
            continue
        if entries[type_name(ggml_type).lower() + suffix]["ok"]:
            quantisers.rows(ggml_type, source, importance)
        else:
            with pytest.raises(NonFinite):
                quantisers.rows(ggml_type, source, importance)


@pytest.mark.parametrize("ggml_type", sorted(NEEDS_IMATRIX), ids=type_name)
def test_an_importance_is_asked_for(quantisers, ggml_type):
    with pytest.raises(ValueError, match="needs an importance"):
        quantisers.rows(ggml_type, normals(168, 1, 256), None)
