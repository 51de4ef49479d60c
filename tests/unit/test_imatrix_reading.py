"""One reader of importance matrices for both commands: experts, odd values, odd files; what is written of them."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from kinetic.api.imatrix_file import Entry, Matrix, combined, read, to_dat, to_gguf
from kinetic.api.imatrix_statistics import lines
from kinetic.api.quantize import read_importance
from kinetic.errors import KineticError, UsageError
from kinetic.quantize import imatrix, importance
from tests.support.gguf_writer import GgufWriter

NAME = "blk.0.ffn_up_exps.weight"
KNOWN = {"imatrix.datasets": ["a.txt"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 512}


def recorded(path, squares, counts, inputs=None, **keys):
    """One entry, as llama-imatrix writes it."""
    writer = GgufWriter().keys(KNOWN | {key.replace("__", "."): value for key, value in keys.items()})
    writer.tensor(f"{NAME}.in_sum2", np.float32(squares)).tensor(f"{NAME}.counts", np.float32(counts))
    if inputs is not None:
        writer.tensor(f"{NAME}.in_sum", np.float32(inputs))
    return str(writer.write(path))


def old(path, name, calls, values, tail=b""):
    head = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", calls, len(values))
    path.write_bytes(head + np.float32(values).tobytes() + tail)
    return str(path)


def refusals(path):
    """The error's name, which is the same of both commands."""
    names = set()
    for call in (lambda: read(path, 512), lambda: importance.read(path)):
        with pytest.raises(KineticError) as caught:
            call()
        assert caught.value.exit_code in (3, 11)
        names.add(caught.value.name)
    (name,) = names
    return name


# --- experts ---


def test_experts_are_kept_apart(tmp_path):
    path = recorded(tmp_path / "m", [[8, 4], [1, 2], [6, 9]], [[4], [0], [3]], [[-8, 4], [0, 0], [3, -3]])
    entry = read(path, 512).entries[NAME]
    assert entry.counts.tolist() == [4, 0, 3] and entry.rows == 4
    assert entry.squares.tolist() == [8, 4, 1, 2, 6, 9] and entry.sums.tolist() == [-8, 4, 0, 0, 3, -3]
    assert read_importance(path).entries[NAME].tolist() == [2, 1, 1, 1, 2, 3]
    both = combined([path, path], 512)
    assert both.entries[NAME].counts.tolist() == [8, 0, 6] and both.entries[NAME].squares[0] == 16
    (tmp_path / "both").write_bytes(to_gguf(both))
    again = read(str(tmp_path / "both"), 512).entries[NAME]
    assert again.counts.tolist() == [8, 0, 6] and again.sums.tolist() == both.entries[NAME].sums.tolist()
    assert read_importance(tmp_path / "both").entries[NAME].tolist() == [2, 1, 1, 1, 2, 3]


def test_experts_in_the_older_format(tmp_path):
    """An expert without rows is 1, and an entry without any is left out."""
    entries = {NAME: Entry(np.array([8.0, 4, 1, 2]), None, np.array([4, 0]))}
    entries["none"] = Entry(np.ones(2), None, np.array([0]))
    (tmp_path / "m").write_bytes(to_dat(Matrix(4, [], entries)))
    found = imatrix.read(tmp_path / "m").entries
    assert list(found) == [NAME]
    assert found[NAME].squares.tolist() == [2, 1, 1, 1] and found[NAME].counts.tolist() == [1]
    del entries[NAME]
    with pytest.raises(KineticError, match="nothing to write"):
        to_dat(Matrix(4, [], entries))


def test_an_old_file_counts_for_all_experts(tmp_path):
    new = recorded(tmp_path / "new", [[8, 4], [6, 9]], [[4], [3]])
    flat = old(tmp_path / "old", NAME.encode(), 2, [1, 2, 3, 4])
    for order in ([new, flat], [flat, new]):
        entry = combined(order, 10).entries[NAME]
        assert entry.counts.tolist() == [24, 23] and entry.squares.tolist() == [18, 24, 36, 49]
    other = recorded(tmp_path / "other", [[8], [6], [9], [1]], [[4], [3], [2], [1]])
    with pytest.raises(KineticError, match="2 matrices"):
        combined([new, other], 512)


def test_statistics_leave_experts_without_rows_out():
    def entry(values, counts):
        return Entry(np.array(values, np.float64), None, np.array(counts))

    entries = {"blk.0.w": entry([3, 6, 50, 70], [3, 0]), "blk.1.w": entry([4, 8, 9, 1], [4, 1])}
    entries |= {"blk.2.w": entry([7, 7, 2, 4], [0, 2]), "blk.3.w": entry([1, 1], [0])}
    first, second, third = lines(Matrix(4, [], entries))
    assert (first.columns, first.mean, first.energy) == (2, 1.5, 3.0)
    assert (second.columns, second.pair.columns, second.pair.distance) == (4, 2, 0.0)
    assert third.pair.columns == 2 and third.pair.energies == (3.0, 10.0)
    del entries["blk.1.w"]
    assert lines(Matrix(4, [], entries))[1].pair is None


def test_a_layer_number_beyond_all_layers(tmp_path):
    """Walking down from it would take minutes."""
    entries = {f"blk.{layer}.w": Entry(np.ones(2), None, np.array([1])) for layer in ("3", "999999999", "9" * 5000)}
    found = {line.layer: line for line in lines(Matrix(4, [], entries))}
    assert found.keys() == {3, 999999999, -1}
    assert found[999999999].pair is not None and found[3].pair is None


# --- what is refused ---


@pytest.mark.parametrize("count", [np.nan, np.inf, -np.inf, 1e30, -5, -0.4, 2.0**32])
def test_counts_that_are_none(tmp_path, count):
    assert refusals(recorded(tmp_path / "m", [[1, 2]], [[count]])) == "BAD_IMATRIX"


@pytest.mark.parametrize(
    ("squares", "inputs", "name"),
    [
        ([1, np.nan], None, "NON_FINITE_IMATRIX"),
        ([np.inf, 1], None, "NON_FINITE_IMATRIX"),
        ([1, -1], None, "BAD_IMATRIX"),
        ([1, 1], [np.nan, 1], "NON_FINITE_IMATRIX"),
        ([1, 1], [1, 1, 1], "BAD_IMATRIX"),
    ],
)
def test_sums_that_are_none(tmp_path, squares, inputs, name):
    assert refusals(recorded(tmp_path / "m", [squares], [[1]], None if inputs is None else [inputs])) == name
    if inputs is None:
        assert refusals(old(tmp_path / "old", b"a", 1, squares)) == name


def test_calls_that_are_none(tmp_path):
    assert refusals(old(tmp_path / "m", b"a", -1, [1])) == "BAD_IMATRIX"


@pytest.mark.parametrize(
    "keys",
    [
        {"imatrix__datasets": 5},
        {"imatrix__datasets": "a"},
        {"imatrix__datasets": [1, 2]},
        {"imatrix__chunk_count": "x"},
        {"imatrix__chunk_count": -1},
        {"imatrix__chunk_size": 1.0},
    ],
)
def test_keys_that_are_none(tmp_path, keys):
    assert refusals(recorded(tmp_path / "m", [[1, 2]], [[1]], **keys)) == "BAD_IMATRIX"


def test_a_file_without_general_type_is_taken(tmp_path):
    path = recorded(tmp_path / "m", [[1, 2]], [[1]])
    assert read(path, 512).datasets == ["a.txt"] and read_importance(path).dataset == "a.txt"


def test_halves_are_rounded_up(tmp_path):
    """As lround does, and not to even; beyond 2^23 a half more is no float32."""
    for count, whole in ((2.5, 3), (0.5, 1), (0.4, 0), (8388609, 8388609)):
        path = recorded(tmp_path / "m", [[3, 6]], [[count]])
        assert read(path, 512).entries[NAME].counts.tolist() == [whole]
        assert read_importance(path).entries[NAME].tolist() == [np.float32(x) / np.float32(whole or x) for x in (3, 6)]


@pytest.mark.parametrize("place", ["fifo", "/dev/zero", "."])
def test_only_regular_files_are_read(tmp_path, place, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    assert refusals(place) == "NOT_A_FILE"


def test_too_large_for_the_older_format(tmp_path, monkeypatch):
    path = old(tmp_path / "m", b"a", 1, [1, 2, 3])
    monkeypatch.setattr(imatrix, "MOST_BYTES", os.path.getsize(path) - 1)
    with pytest.raises(KineticError, match="too large for the older format"):
        read(path, 512)


# --- what can't be written ---


def test_sums_beyond_float32(tmp_path):
    path = recorded(tmp_path / "m", [[3e38]], [[1]])
    with pytest.raises(KineticError, match="too large"):
        to_gguf(combined([path, path], 512))
    with pytest.raises(KineticError, match="rows"):
        combined([recorded(tmp_path / "m", [[1]], [[2.0**31]])] * 2, 512)


@pytest.mark.parametrize("size", [0, -5, 3, 1 << 31, 99999999999])
def test_chunks_of_no_size(size):
    with pytest.raises(UsageError) as caught:
        combined([], size)
    assert caught.value.name == "CONTEXT"


def test_names_that_are_no_text(tmp_path):
    """They go from one old file into another, as bytes; a GGUF file can't hold them."""
    path = old(tmp_path / "m", b"blk.0.\xff", 1, [1], struct.pack("<ii", 1, 2) + b"\xfft")
    found = combined([path], 8)
    assert to_dat(found) == (tmp_path / "m").read_bytes()
    with pytest.raises(KineticError, match="write it as dat"):
        to_gguf(found)


def test_the_layout_of_the_gguf_file():
    """Sizes of 1 are left out at the end, as ggml does; keys in llama-imatrix's order."""
    expected = GgufWriter().key("general.type", "imatrix").keys(KNOWN)
    for part, values in (("in_sum2", [4.0, 9.0]), ("counts", [512.0]), ("in_sum", [2.0, -3.0])):
        expected.tensor(f"blk.0.w.{part}", np.float32(values))
    entry = Entry(np.array([4.0, 9.0]), np.array([2.0, -3.0]), np.array([512]))
    assert to_gguf(Matrix(512, ["a.txt"], {"blk.0.w": entry})) == expected.to_bytes()
