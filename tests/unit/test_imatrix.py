"""Importance matrices: the sums of a tiny model's inputs, and both file formats."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kinetic.api import imatrix
from kinetic.api.imatrix_file import Entry, Matrix, combined, read, to_dat, to_gguf
from kinetic.api.imatrix_statistics import compare, layer_of, layers, lines
from kinetic.api.perplexity import Settings, measure
from kinetic.api.scorer import Scorer
from kinetic.engine import Engine
from kinetic.errors import FileProblem, KineticError, Malformed, NonFinite
from kinetic.loader import open_model_file
from tests.support.blocks import normals
from tests.support.tiny_models import TEXT, write_tiny_llama

CONTEXT = 140
"""More rows than a pass with taps computes at once."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama.gguf", tied=True)


@pytest.fixture(scope="module")
def tokens(path):
    with Scorer(path, threads=1, pack_cache=False) as scorer:
        return scorer.encode(" ".join([TEXT] * 5))[: 2 * CONTEXT + 9]


def collected(path, tokens, rows=512, threads=1, process_output=True, with_perplexity=True):
    watched = imatrix.inputs(process_output)
    collector = imatrix.Collector(watched)
    with Scorer(path, threads=threads, pack_cache=False, watch=watched) as scorer:
        found = imatrix.collect(
            *(scorer, tokens, Settings(CONTEXT, rows=rows), collector),
            process_output=process_output,
            with_perplexity=with_perplexity,
        )
    return collector.into(Matrix(CONTEXT)), found


@pytest.fixture(scope="module")
def whole(path, tokens):
    return collected(path, tokens)


def test_sums_are_those_of_the_reference(path, tokens, whole):
    """Row by row, in the order of the text: the very bits."""
    watched = imatrix.inputs(True)
    with open_model_file(path) as file:
        engine = Engine(file.gguf, file.weights, backend="reference", watch=watched)
        list(engine.passes(tokens[:12], 0))
        taps = {name: engine.taps()[tap] for name, tap in watched.tap_of.items()}
        engine.close()
    expected = {}
    for name, rows in taps.items():
        assert rows.shape[0] == 12
        sums = [0.0] * rows.shape[1]
        for row in rows.astype(np.float64):
            sums = [total + x * x for total, x in zip(sums, row.tolist(), strict=True)]
        expected[name] = sums
    small, _ = collected_of(path, tokens[:12])
    assert {name: entry.squares.tolist() for name, entry in small.entries.items()} == expected
    assert len(expected) == 2 * 7 + 1 and "token_embd.weight" in expected
    assert whole[0].entries.keys() == expected.keys()


def collected_of(path, tokens):
    """One chunk of just these tokens."""
    watched = imatrix.inputs(True)
    collector = imatrix.Collector(watched)
    with Scorer(path, threads=2, pack_cache=False, watch=watched) as scorer:
        imatrix.collect(scorer, [*tokens, *tokens], Settings(len(tokens), chunks=1), collector, process_output=True)
    return collector.into(Matrix(len(tokens))), None


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bytes_for_every_batch_size_and_number_of_threads(path, tokens, whole, threads):
    for rows in (1, 7, 32, 512):
        matrix, found = collected(path, tokens, rows, threads)
        assert to_gguf(matrix) == to_gguf(whole[0])
        for name, entry in whole[0].entries.items():  # and before they become float32
            assert matrix.entries[name].squares.tobytes() == entry.squares.tobytes()
        assert found.losses == whole[1].losses


def test_what_is_left_out(path, tokens, whole):
    matrix, found = collected(path, tokens, process_output=False, with_perplexity=False)
    assert found.losses == []
    assert whole[0].entries.keys() - matrix.entries.keys() == {"token_embd.weight"}
    for name, entry in matrix.entries.items():
        assert entry.squares.tobytes() == whole[0].entries[name].squares.tobytes()
        assert entry.rows == 2 * CONTEXT


def test_perplexity_on_the_way_is_perplexity(path, tokens, whole):
    with Scorer(path, threads=1, pack_cache=False) as scorer:
        assert whole[1].losses == measure(scorer, tokens, Settings(CONTEXT)).losses
    _, found = collected(path, tokens, rows=33, process_output=False)
    assert found.losses == whole[1].losses


def test_numbers_that_are_not_finite():
    watched = imatrix.inputs(False)
    with pytest.raises(NonFinite):
        imatrix.Collector(watched).add({"blk.0.x": np.array([[1.0, np.inf]], np.float32)})


# --- files ---


def small(count=20, names=("blk.1.b", "blk.0.a"), scale=1.0):
    values = {name: scale * np.arange(1.0, 4.0 + i) for i, name in enumerate(names)}
    return Matrix(8, ["text"], {name: Entry(x, -x, np.array([count])) for name, x in values.items()})


def same(a, b, sums=True):
    assert a.entries.keys() == b.entries.keys()
    for name, entry in a.entries.items():
        other = b.entries[name]
        assert entry.counts.tolist() == other.counts.tolist()
        assert entry.squares.tolist() == pytest.approx(other.squares.tolist())
        assert (entry.sums is None) == (other.sums is None) == (not sums)
        if sums:
            assert entry.sums.tolist() == other.sums.tolist()


def test_gguf_there_and_back(tmp_path):
    (tmp_path / "m").write_bytes(to_gguf(small()))
    found = read(str(tmp_path / "m"), 99)
    same(found, small())
    assert (found.chunk_size, found.datasets, found.chunks) == (8, ["text"], 3)


def test_the_layout_of_the_older_format(tmp_path):
    data = to_dat(small(count=20))
    assert data[:4] == struct.pack("<i", 2)
    assert data[4:15] == struct.pack("<i", 7) + b"blk.0.a"
    assert struct.unpack_from("<ii4f", data, 15) == (3, 4, *(np.float32(x / 20 * 3) for x in (1, 2, 3, 4)))
    assert data.endswith(struct.pack("<ii", 3, 4) + b"text")
    (tmp_path / "m").write_bytes(data)
    found = read(str(tmp_path / "m"), 8)
    expected = {name: Entry(e.squares * 24 / 20, None, np.array([24])) for name, e in small().entries.items()}
    same(found, Matrix(8, [], expected), False)
    assert found.datasets == ["text"]
    (tmp_path / "m").write_bytes(data[:-12])
    assert read(str(tmp_path / "m"), 8).datasets == []


def test_combined(tmp_path):
    (tmp_path / "a").write_bytes(to_gguf(small()))
    (tmp_path / "b").write_bytes(to_gguf(small(8, ("blk.1.b", "blk.2.c"), 3.0)))
    found = combined([str(tmp_path / "a"), str(tmp_path / "b")], 8)
    assert sorted(found.entries) == ["blk.0.a", "blk.1.b", "blk.2.c"]
    assert found.entries["blk.1.b"].squares.tolist() == [4.0, 8.0, 12.0] and found.entries["blk.1.b"].rows == 28
    assert found.datasets == ["text", "text"] and found.chunks == 4
    (tmp_path / "c").write_bytes(to_dat(small()))
    assert combined([str(tmp_path / "a"), str(tmp_path / "c")], 8).entries["blk.1.b"].sums is None
    (tmp_path / "d").write_bytes(to_gguf(small(8, ("blk.0.a",))))
    with pytest.raises(Malformed):
        combined([str(tmp_path / "a"), str(tmp_path / "d")], 8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"not a matrix at all",
        to_dat(small())[:40],
        struct.pack("<i", -1),
        struct.pack("<ii", 1, 1 << 30),
        to_gguf(small()).replace(b"imatrix.chunk_size", b"imatrix.chunk_sizX").replace(b"imatrix", b"imatriX", 1),
        to_gguf(small()).replace(b"blk.0.a.counts", b"blk.0.a.countX"),
    ],
)
def test_files_that_are_no_matrix(tmp_path, data):
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(KineticError) as caught:
        read(str(tmp_path / "m"), 8)
    assert caught.value.exit_code == 11


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileProblem):
        read(str(tmp_path / "m"), 8)


# --- statistics ---


def uneven(seed, count, with_sums=True):
    sums = count * normals(seed, 50).astype(np.float64)
    return Entry(sums * sums / count + count, sums if with_sums else None, np.array([count]))


@pytest.mark.parametrize("with_sums", [True, False])
def test_statistics_are_those_of_their_definitions(with_sums):
    entries = {f"blk.{layer}.w.weight": uneven(layer + 1, 8, with_sums) for layer in (0, 2)}
    entries |= {"blk.2.v.weight": uneven(9, 8, with_sums), "output.weight": uneven(8, 8, with_sums)}
    found = {line.name: line for line in lines(Matrix(8, [], entries))}
    assert list(found) == ["blk.0.w.weight", "blk.2.v.weight", "blk.2.w.weight", "output.weight"]

    def inputs(name):
        entry = entries[name]
        return (entry.sums if with_sums else entry.squares) / entry.rows, entry.squares / entry.rows

    (y, ey), (x, ex) = inputs("blk.0.w.weight"), inputs("blk.2.w.weight")
    line, z = found["blk.2.w.weight"], (x - x.mean()) / x.std()
    assert (line.mean, line.deviation) == (pytest.approx(x.mean()), pytest.approx(x.std()))
    assert (line.skewness, line.kurtosis) == (pytest.approx((z**3).mean()), pytest.approx((z**4).mean() - 3))
    shares = ex / ex.sum()
    assert line.evenness == pytest.approx(-100 * (shares * np.log(shares)).sum() / np.log(50))
    assert line.energy == pytest.approx(ex.sum())
    compared = compare([line.pair])
    assert compared.gain == pytest.approx(np.sqrt(ex.sum() / ey.sum()))
    assert compared.distance == pytest.approx(np.linalg.norm(x - y))
    assert compared.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert compared.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert compared.covariance == pytest.approx(((x - x.mean()) * (y - y.mean())).mean())
    for name in ("blk.0.w.weight", "blk.2.v.weight", "output.weight"):
        assert found[name].pair is None and np.isnan(compare([None]).gain)
    assert [(number, energy) for number, energy, _ in layers(list(found.values()))] == [
        (0, pytest.approx(ey.sum())), (2, pytest.approx(ex.sum() + inputs("blk.2.v.weight")[1].sum()))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layer"), [("blk.12.attn_q.weight", 12), ("output.weight", -1), ("blk", -1), ("blk.x", -1)]
)
def test_layers_by_name(name, layer):
    assert layer_of(name) == layer
