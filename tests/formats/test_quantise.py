"""Quantisers: llama.cpp's bytes, whatever the rows beside, the threads and the instruction set."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from kinetic.backends.cpu import native, quantise, target
from kinetic.backends.cpu.quantise import NEEDS_IMATRIX, QUANTISABLE, Quantisers
from kinetic.gguf_types import TYPES, type_name
from tests.support.backends import quantisers_of_all
from tests.support.blocks import normals, uniforms
from tools import make_quantised_vectors
from tools.make_quantised_vectors import FILE, digests

ALL = sorted(QUANTISABLE)
PLAIN = [ggml_type for ggml_type in ALL if ggml_type not in NEEDS_IMATRIX]
Q8_0, Q6_K, TQ1_0, TQ2_0, Q2_0 = 8, 14, 34, 35, 42
COUNTS = (1, 2, 7, 8, 9, 31, 32, 33)
SCALES_AT = {
    2: 0,
    3: (0, 2),
    6: 0,
    7: (0, 2),
    8: 0,
    10: (80, 82),
    11: 108,
    12: (0, 2),
    13: (0, 2),
    14: 208,
    20: 0,
    23: 0,
}
"""Where the float16 numbers of a block lie."""

Case = tuple[int, bool]
CASES = [(ggml_type, has) for ggml_type in ALL for has in (False, True) if has or ggml_type not in NEEDS_IMATRIX]


def case_name(case: Case) -> str:
    return type_name(case[0]) + (".imatrix" if case[1] else "")


@pytest.fixture(scope="module")
def quantisers() -> Quantisers:
    return quantisers_of_all()


@pytest.mark.parametrize("folder", ["main", "overflow"])
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_bytes_are_llama_cpps(golden, quantisers, case, folder):
    ggml_type, has_importance = case
    variant = type_name(ggml_type).lower().replace("_k", "_K") + ".imatrix" * has_importance
    at = golden / "formats"
    entry = json.loads((at / folder / "index.json").read_text())["types"][variant]
    if not entry["ok"]:
        pytest.skip("llama.cpp aborts")
    source = np.load(at / ("input.npy" if folder == "main" else "input_overflow.npy"))
    importance = np.load(at / "imatrix.npy") if has_importance else None
    expected = np.fromfile(at / folder / entry["bin"], np.uint8).reshape(len(source), -1)
    found = quantisers.rows(ggml_type, source, importance)
    assert [row for row in range(len(source)) if (found[row] != expected[row]).any()] == []


def test_bytes_without_golden_data(quantisers):
    """The committed digests were compared with llama.cpp's own quantisers when they were made."""
    assert digests(quantisers, ALL) == json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_row_depends_on_no_other_and_on_no_thread(quantisers, case, monkeypatch):
    ggml_type, has_importance = case
    monkeypatch.setattr(quantise, "TASK", 768)
    source = normals(150, max(COUNTS), 768)
    importance = uniforms(151, 768) if has_importance else None
    alone = np.concatenate([quantisers.rows(ggml_type, source[i : i + 1], importance) for i in range(len(source))])
    monkeypatch.setattr(quantise, "TASK", 768 * 5)  # rows of one task share the lanes of a search
    for count in COUNTS:
        for threads in (1, 2):
            found = quantisers.rows(ggml_type, source[:count], importance, threads)
            assert (found == alone[:count]).all(), (count, threads)


@pytest.mark.parametrize("ggml_type", ALL, ids=type_name)
def test_rows_may_be_as_short_as_a_block(quantisers, ggml_type):
    block = TYPES[ggml_type][1]
    source = normals(152, 37, 3 * block)
    if ggml_type in PLAIN:  # without importance no block depends on another
        short = quantisers.rows(ggml_type, source.reshape(-1, block), None)
        assert short.tobytes() == quantisers.rows(ggml_type, source, None).tobytes()
    importance = uniforms(153, block)
    short = quantisers.rows(ggml_type, source.reshape(-1, block), importance)
    alone = [quantisers.rows(ggml_type, row[None], importance) for row in source.reshape(-1, block)]
    assert short.tobytes() == b"".join(row.tobytes() for row in alone)


@pytest.mark.parametrize("ggml_type", sorted(SCALES_AT.keys() & QUANTISABLE), ids=type_name)
def test_an_importance_of_zero_makes_no_nan(quantisers, ggml_type):
    source = normals(154, 3, 512)
    source[1, :300] = 0
    size = TYPES[ggml_type][2]
    blocks = quantisers.rows(ggml_type, source, np.zeros(512, np.float32)).reshape(-1, size)
    for at in np.atleast_1d(SCALES_AT[ggml_type]):
        assert np.isfinite(np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")).all()


def test_right_below_a_half_is_rounded_down(quantisers):
    """CASES D27: ``floor(x + 0.5)`` in float32 would make 1 of 0.49999997, and -1 of its negative."""
    below = np.nextafter(np.float32(0.5), np.float32(0))
    source = np.zeros((1, 256), np.float32)
    source[0, :3] = 1, below, -below
    pairs = quantisers.rows(Q2_0, source, None)[0, 2]
    assert [pairs >> shift & 3 for shift in (0, 2, 4)] == [2, 1, 1]  # codes are one more
    at_half = np.where(np.abs(source) == below, np.copysign(np.float32(0.5), source), source)
    pairs = quantisers.rows(Q2_0, at_half, None)[0, 2]
    assert [pairs >> shift & 3 for shift in (0, 2, 4)] == [2, 2, 0]
    assert list(quantisers.rows(TQ2_0, source, None)[0, :3] & 3) == [2, 1, 1]
    assert list(quantisers.rows(TQ2_0, at_half, None)[0, :3] & 3) == [2, 2, 0]
    five = [quantisers.rows(TQ1_0, row, None)[0, :3].astype(int) * 3 >> 8 for row in (source, at_half)]
    assert [list(trits) for trits in five] == [[2, 1, 1], [2, 2, 0]]


# --- instruction sets and the cache ---

OTHERS = [isa for isa in target.available() if isa != target.choose()]


def instruction_sets():
    """Two types with all others; every type, whose kernels take a minute to compile, with those that differ most."""
    yield from (pytest.param(isa, [Q8_0, Q6_K], id=f"two-{isa}") for isa in OTHERS)
    wide_apart = [isa for isa in OTHERS if isa != "vnni256"]
    yield from (pytest.param(isa, ALL, id=f"all-{isa}", marks=pytest.mark.slow) for isa in wide_apart)


@pytest.mark.parametrize("isa, types", list(instruction_sets()))
def test_every_instruction_set_makes_the_same_bytes(isa, types, monkeypatch):
    monkeypatch.setenv(target.ENVIRONMENT, isa)
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    assert digests(Quantisers(types), types) == {type_name(t): expected[type_name(t)] for t in types}


def test_a_damaged_kernel_is_compiled_anew(monkeypatch, tmp_path):
    monkeypatch.setenv(native.CACHE_ENVIRONMENT, str(tmp_path))
    news: list[str] = []
    Quantisers([Q8_0], news.append)
    unit = native.folder_of(quantise.kernel_digest(target.choose())) / f"{Q8_0}.o"
    whole = unit.read_bytes()
    Quantisers([Q8_0], news.append)
    assert len(news) == 1
    unit.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    Quantisers([Q8_0], news.append)
    assert len(news) == 2
    assert unit.read_bytes() == whole


def test_the_digest_reads_every_module_that_is_compiled_here(monkeypatch):
    read: list[Path] = []
    monkeypatch.setattr(quantise, "digest_of", lambda sources, facts: read.extend(sources) or "")
    quantise.kernel_digest.__wrapped__("avx2")
    folder = Path(quantise.__file__).parent
    named = {name for path in folder.glob("*.py") for name in imports(path)}
    assert {f"{path.stem}" for path in read if path.parent == folder} == {path.stem for path in folder.glob("*.py")}
    assert named - {"native"} <= {path.stem for path in read if path.parent == folder.parent}


def imports(path: Path) -> set[str]:
    """Modules of the folder above that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinetic.backends.cpu"):
            rest = (node.module or "").split(".")[3:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
    return found - {"quantise"}


def test_what_does_not_fit_is_refused(quantisers):
    with pytest.raises(ValueError, match="blocks of 32"):
        quantisers.rows(Q8_0, normals(155, 1, 33), None)
    with pytest.raises(ValueError, match="importance"):
        quantisers.rows(Q8_0, normals(155, 1, 64), np.ones(32, np.float32))


def test_the_rows_of_the_digests_hold_what_they_should():
    source, importance = make_quantised_vectors.rows(), make_quantised_vectors.weights()
    assert source.dtype == importance.dtype == np.float32
    assert np.isfinite(source).all()
    assert (importance == 0).any() and (importance > 0).any()
