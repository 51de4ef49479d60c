"""``kinetic pack --derived-from`` and ``kinetic verify --derive``: weights made again, and every byte compared."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from kinetic.api import bundle, derivation
from kinetic.cli import main
from kinetic.gguf import Gguf
from kinetic.quantize import convert
from ktc.inputs import ModelFile
from ktc.reader import open_bundle
from ktc.writer import write_bundle
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.tiny_models import write_tiny_llama

VALUES, NAME = "--tensor-type attn_v=Q4_0", "--override-kv 'general.name=str:a b'"
LAST = "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Files that no test writes to: the source, and what was made from it."""
    folder = tmp_path_factory.mktemp("shared")
    write_tiny_llama(folder / "f16.gguf", types={"": "F16"})
    assert main(["quantize", str(folder / "f16.gguf"), str(folder / "q4.gguf"), "Q4_K_M", "-q"]) == 0
    assert main(["pack", "-o", str(folder / "q4.ktc"), *from_source(folder / "f16.gguf", "Q4_K_M")]) == 0
    return folder


@pytest.fixture
def run(capsys):
    """``run(words..., code=0)`` -> (standard output, standard error)."""

    def run(*words, code=0):
        capsys.readouterr()
        assert main([*map(str, words)]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def from_source(source, settings):
    return ["--derived-from", str(source), "--quantize", settings, "-q"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def record_of(path):
    with open_bundle(path) as held:
        return dict(held.manifest["derivation"][0])


def refused(said, name, *texts):
    """One line of one sentence, on standard error."""
    assert said.out == "" and said.err.count("\n") == 1
    for text in (name, *texts):
        assert text in said.err, said.err


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ("q4_k_m", "Q4_K_M"),
        ("Q8_0 --pure --leave-output-tensor", "Q8_0 --pure --leave-output-tensor"),
        ("17 --tensor-type attn_v=q4_0 --output-tensor-type=q8_0", f"Q5_K_M --output-tensor-type Q8_0 {VALUES}"),
        ("Q6_K --prune-layers 0 --override-kv 'general.name=str:a b'", f"Q6_K {NAME} --prune-layers 0"),
        ("COPY", "COPY"),
    ],
)
def test_derived(run, shared, tmp_path, settings, recorded):
    source = shared / "f16.gguf"
    run("pack", "-o", tmp_path / "a.ktc", *from_source(source, settings))
    assert files(tmp_path) == ["a.ktc"]
    run("unpack", tmp_path / "a.ktc", "-o", tmp_path / "a.gguf")
    named, *options = recorded.replace("'", "").split(" --")
    words = [word for option in options for word in ("--" + option).split(" ", 1)]
    run("quantize", *words, source, tmp_path / "made.gguf", named, "-q")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "made.gguf").read_bytes()
    run("pack", tmp_path / "made.gguf", "-o", tmp_path / "b.ktc", "--chunks", *from_source(source, recorded))
    record = record_of(tmp_path / "b.ktc")
    assert record == record_of(tmp_path / "a.ktc")
    assert (record["tool"], record["settings"]) == ("kinetic quantize", recorded)
    assert [(file["name"], file["size"]) for file in record["files"]] == [("f16.gguf", source.stat().st_size)]
    lines = run("verify", tmp_path / "a.ktc", tmp_path / "b.ktc", "--derive", source).out.splitlines()
    assert [line.split(":")[0] for line in lines if "DERIVED" in line] == ["  DERIVED"] * 2
    assert "made by" in run("info", tmp_path / "a.ktc").out


def test_what_is_said_as_json(run, shared):
    whole = json.loads(run("verify", shared / "q4.ktc", "--derive", shared / "f16.gguf", "--json").out)
    assert (whole["verdict"], whole["derivation"]["verdict"]) == ("INTACT", "DERIVED")
    assert whole["derivation"]["settings"] == "Q4_K_M"
    assert "derivation" not in json.loads(run("verify", shared / "q4.ktc", "--json").out)


def test_names_by_default(run, shared, tmp_path):
    run("pack", "-o", tmp_path / "Tiny-Q4.ktc", *from_source(shared / "f16.gguf", "Q4_K_M"))
    run("pack", shared / "q4.gguf", "-o", tmp_path / "b.ktc", *from_source(shared / "f16.gguf", "Q4_K_M"))
    for path, name, file in (("Tiny-Q4.ktc", "tiny-q4", "Tiny-Q4.gguf"), ("b.ktc", "q4", "q4.gguf")):
        with open_bundle(tmp_path / path) as held:
            assert (held.manifest["name"], held.manifest["file"]) == (name, file)


# -- an importance matrix


def write_matrix(path, model, chunks=3):
    """For all matrices of the model, more important from column to column."""
    keys = {"imatrix.datasets": ["a.txt"], "imatrix.chunk_count": chunks, "imatrix.chunk_size": 512}
    writer = GgufWriter().keys({"general.type": "imatrix", **keys})
    with Gguf.open(model) as gguf:
        for name, tensor in gguf.tensors.items():
            if len(tensor.shape) == 2:
                sums = np.arange(1, tensor.shape[1] + 1, dtype=np.float32)[None]
                writer.tensor(f"{name}.in_sum2", sums).tensor(f"{name}.counts", np.float32([[chunks]]))
    writer.write(path)
    return path


def test_with_an_importance_matrix(run, shared, tmp_path, monkeypatch):
    source, matrix = shared / "f16.gguf", write_matrix(tmp_path / "im.gguf", shared / "f16.gguf")
    monkeypatch.chdir(tmp_path)
    run("quantize", "--imatrix", "im.gguf", "--exclude-weights", "attn_k", source, "made.gguf", "Q4_K_S", "-q")
    # The file says im.gguf, wherever the matrix is now.
    wanted = from_source(source, "Q4_K_S --exclude-weights attn_k")
    run("pack", "made.gguf", "-o", "a.ktc", "--imatrix", matrix, *wanted)
    run("pack", "-o", "b.ktc", "--imatrix", "im.gguf", *wanted)
    run("pack", "-o", "c.ktc", *from_source(source, "Q4_K_S --exclude-weights attn_k --imatrix im.gguf"))
    record = record_of(tmp_path / "a.ktc")
    assert record == record_of(tmp_path / "b.ktc") == record_of(tmp_path / "c.ktc")
    assert record["settings"] == "Q4_K_S --imatrix im.gguf --exclude-weights attn_k"
    assert [file["name"] for file in record["files"]] == ["f16.gguf", "im.gguf"]
    moved = matrix.rename(tmp_path / "moved.gguf")
    for order in ((source, moved), (moved, source)):
        assert "  DERIVED: " in run("verify", "a.ktc", "--derive", order[0], "--derive", order[1]).out
    refused(run("verify", "a.ktc", "--derive", source, code=13), "FILE_MISSING", "im.gguf (")
    other = write_matrix(tmp_path / "other.gguf", source, chunks=4)
    said = run("verify", "a.ktc", "--derive", source, "--derive", other, code=13)
    refused(said, "FILE_MISSING", "other.gguf is not one of", "needed: im.gguf (")
    refused(run("pack", "made.gguf", "-o", "d.ktc", *wanted, code=10), "key 'quantize.imatrix.file' is one too many")
    refused(run("pack", "made.gguf", "-o", "d.ktc", "--imatrix", other, *wanted, code=10), "imatrix.chunks_count")
    assert not Path("d.ktc").exists()


def test_a_split_source(run, tmp_path):
    rows = np.random.default_rng(0).normal(0, 1, (2, 4, 256)).astype(np.float16)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    parts = [{"blk.0.attn_q.weight": rows[0]}, {"blk.0.attn_k.weight": rows[1]}]
    first, second = write_split(tmp_path, "m", keys, parts)
    run("pack", "-o", tmp_path / "a.ktc", *from_source(second, "Q8_0"))
    assert [file["name"] for file in record_of(tmp_path / "a.ktc")["files"]] == [first.name, second.name]
    for given in ([first], [second], [second, first]):
        words = [word for path in given for word in ("--derive", path)]
        assert "  DERIVED: " in run("verify", tmp_path / "a.ktc", *words).out
    away = second.rename(tmp_path / "away.gguf")
    refused(run("verify", tmp_path / "a.ktc", "--derive", first, code=13), "FILE_MISSING", f"needed: {second.name} (")
    said = run("verify", tmp_path / "a.ktc", "--derive", first, "--derive", away, code=13)
    refused(said, "CANNOT_REDO", second.name)
    away.rename(second)
    run("unpack", tmp_path / "a.ktc", "-o", tmp_path / "a.gguf")
    swapped = record_of(tmp_path / "a.ktc")
    swapped["files"].reverse()
    bundle.pack(tmp_path / "a.gguf", tmp_path / "b.ktc", derivation=swapped)
    said = run("verify", tmp_path / "b.ktc", "--derive", first, code=13)
    refused(said, "OTHER_FILE", f"names {second.name}, {first.name}, and what would be used is {first.name}")
    run("quantize", first, tmp_path / "o.gguf", "Q8_0", "--keep-split", "-q")
    made = tmp_path / "o-00001-of-00002.gguf"
    refused(run("pack", made, "-o", tmp_path / "c.ktc", *from_source(first, "Q8_0"), code=2), "one part of 2")


def test_a_bundle_as_source(run, shared, tmp_path):
    run("pack", shared / "f16.gguf", "-o", tmp_path / "f16.ktc", "--chunks", "-q")
    run("pack", "-o", tmp_path / "q8.ktc", *from_source(tmp_path / "f16.ktc", "Q8_0"))
    (file,) = record_of(tmp_path / "q8.ktc")["files"]
    assert (file["name"], file["size"]) == ("f16.gguf", (shared / "f16.gguf").stat().st_size)
    for given in (tmp_path / "f16.ktc", shared / "f16.gguf"):
        assert "  DERIVED: " in run("verify", tmp_path / "q8.ktc", "--derive", given).out
    assert "  DERIVED: " in run("verify", shared / "q4.ktc", "--derive", tmp_path / "f16.ktc").out
    refused(run("verify", shared / "q4.ktc", "--derive", shared / "q4.ktc", code=13), "q4.gguf is not one of")


# -- what differs


@pytest.fixture
def changed(run, shared, tmp_path):
    """``changed(data)``: these bytes with the record of the sound bundle. What packing and verifying say of them."""

    def changed(data):
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        packed = run("pack", path, "-o", tmp_path / "n.ktc", *from_source(shared / "f16.gguf", "Q4_K_M"), code=10)
        bundle.pack(path, tmp_path / "m.ktc", derivation=record_of(shared / "q4.ktc"))
        assert run("verify", tmp_path / "m.ktc").out
        verified = run("verify", tmp_path / "m.ktc", "--derive", shared / "f16.gguf", code=10)
        found = json.loads(run("verify", tmp_path / "m.ktc", "--derive", shared / "f16.gguf", "--json", code=10).out)
        assert files(tmp_path) == ["m.gguf", "m.ktc"]
        refused(packed, "is not what `kinetic quantize` makes of ")
        refused(verified, "DIFFERS (DIFFERS): the model in it is not what kinetic quantize makes of")
        (tmp_path / "m.ktc").unlink()
        return packed.err, verified.err, found["difference"]

    return changed


@pytest.mark.parametrize("tensor", ["output.weight", "blk.0.attn_q.weight", LAST])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_byte_is_named(changed, shared, tensor, place):
    data = bytearray((shared / "q4.gguf").read_bytes())
    with Gguf.open(shared / "q4.gguf") as made:
        found = made.tensors[tensor]
    at = 0 if place == "first" else found.nbytes - 1
    data[found.offset + at] ^= 1
    *texts, difference = changed(data)
    for text in texts:
        assert f"byte {at:,} of the {found.nbytes:,} of tensor {tensor!r} is" in text
    assert difference == {"key": None, "tensor": tensor, "at": at}


def test_a_flipped_byte_of_a_later_slice(changed, shared, monkeypatch):
    monkeypatch.setattr(convert, "SLICE", 256)  # A row at a time.
    data = bytearray((shared / "q4.gguf").read_bytes())
    with Gguf.open(shared / "q4.gguf") as made:
        found = made.tensors["blk.0.attn_q.weight"]
    at = found.nbytes // 2 + 1
    data[found.offset + at] ^= 128
    assert changed(data)[2] == {"key": None, "tensor": "blk.0.attn_q.weight", "at": at}


def test_the_last_tensor_is_the_last(shared):
    with Gguf.open(shared / "q4.gguf") as made:
        assert max(made.tensors.values(), key=lambda tensor: tensor.offset).name == LAST


def test_a_changed_key_is_named(changed, shared):
    data = (shared / "q4.gguf").read_bytes()
    *texts, difference = changed(data.replace(b"tiny llama", b"huge llama"))
    assert all("key 'general.name' has another value" in text for text in texts)
    assert difference == {"key": "general.name", "tensor": None, "at": 0}
    *texts, difference = changed(data.replace(b"general.name", b"general.game"))
    assert all("key 'general.name' is missing" in text for text in texts)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["Q4_K_M", "--override-kv", "a.b=int:1"], "key 'a.b' is one too many"),
        (["Q4_K_M", "--output-tensor-type", "q8_0"], "tensor 'output.weight' is Q8_0, not Q6_K"),
        (["Q4_K_S"], "key 'general.file_type' has another value"),
    ],
)
def test_another_recipe(run, changed, shared, tmp_path, words, text):
    run("quantize", *words[1:], shared / "f16.gguf", tmp_path / "m.gguf", words[0], "-q")
    assert all(text in said for said in changed((tmp_path / "m.gguf").read_bytes())[:2])


def entry(name, *sizes):
    """A tensor's entry in a header, up to its type."""
    return name.encode() + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)


def test_another_list_of_tensors(changed, shared):
    data, count = (shared / "q4.gguf").read_bytes(), 309
    other = data.replace(entry("output.weight", 256, count), entry("output.weight", 256 * count, 1))
    assert f"tensor 'output.weight' has the shape (1, {256 * count}), not ({count}, 256)" in changed(other)[0]
    assert "tensor 'blk.0.attn_k.weight' is missing" in changed(data.replace(b"0.attn_k.weight", b"0.attn_j.weight"))[1]
    swapped = data.replace(b"0.attn_k.weight", b"0.attn_?.weight").replace(b"0.attn_q.weight", b"0.attn_k.weight")
    swapped = swapped.replace(b"0.attn_?.weight", b"0.attn_q.weight")
    assert "tensor 'blk.0.attn_k.weight' stands at another place" in changed(swapped)[0]


def test_tensors_that_are_no_sound_gguf(run, shared, tmp_path):
    """A bundle is whole all the same: it looks at keys alone."""
    head = entry("output.weight", 256, 309) + struct.pack("<i", 14)
    data = (shared / "q4.gguf").read_bytes()
    at = data.index(head) + len(head)
    data = data[:at] + struct.pack("<Q", 1 << 40) + data[at + 8 :]
    (tmp_path / "m.gguf").write_bytes(data)
    with ModelFile(tmp_path / "m.gguf") as model:
        write_bundle(tmp_path / "m.ktc", model, name="m", file="m.gguf", derivation=[record_of(shared / "q4.ktc")])
    said = run("verify", tmp_path / "m.ktc", "--derive", shared / "f16.gguf", code=10)
    refused(said, "DIFFERS", "it is no sound GGUF file (m.ktc: ")
    words = from_source(shared / "f16.gguf", "Q4_K_M")
    refused(run("pack", tmp_path / "m.gguf", "-o", tmp_path / "n.ktc", *words, code=11), "m.gguf")


def test_bytes_at_the_end(changed, shared):
    data = (shared / "q4.gguf").read_bytes()
    assert "or its size" in changed(data + bytes(32))[0]


# -- what can't be told


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"tool": "llama-quantize"}, "OTHER_TOOL", "made by llama-quantize"),
        ({"tool": ""}, "OTHER_TOOL", "not named"),
        ({"settings": "Q4_K_M --from-the-future 3"}, "UNKNOWN_SETTINGS", "'--from-the-future' is no setting"),
        ({"settings": "q4_k_m"}, "UNKNOWN_SETTINGS", "'Q4_K_M'"),
        ({"settings": ""}, "UNKNOWN_SETTINGS", "type is missing"),
        ({"files": []}, "UNKNOWN_SETTINGS", "too few files"),
        ({"settings": "Q4_K_M --imatrix im.gguf"}, "UNKNOWN_SETTINGS", "too few files"),
        ({"settings": "IQ1_S"}, "CANNOT_REDO", "importance matrix"),
        ({"settings": "Q4_K_M --tensor-type '[]a]ttn=Q8_0'"}, "UNKNOWN_SETTINGS", "programs differ on what []"),
        ({"settings": "Q4_0", "tool_version": "9.9"}, "OTHER_VERSION", "made by version 9.9"),
    ],
)
def test_unverifiable_records(run, shared, tmp_path, changes, name, text):
    bundle.pack(shared / "q4.gguf", tmp_path / "a.ktc", derivation=record_of(shared / "q4.ktc") | changes)
    said = run("verify", tmp_path / "a.ktc", "--derive", shared / "f16.gguf", code=13)
    refused(said, f"UNVERIFIABLE ({name})", text)


def test_another_version_that_gives_the_same(run, shared, tmp_path):
    record = record_of(shared / "q4.ktc") | {"tool_version": "9.9"}
    bundle.pack(shared / "q4.gguf", tmp_path / "a.ktc", derivation=record)
    assert "  DERIVED: " in run("verify", tmp_path / "a.ktc", "--derive", shared / "f16.gguf").out


def test_no_record_and_wrong_files(run, shared, tmp_path):
    run("pack", shared / "q4.gguf", "-o", tmp_path / "a.ktc", "-q")
    refused(run("verify", tmp_path / "a.ktc", "--derive", shared / "f16.gguf", code=13), "NO_DERIVATION")
    sound = shared / "q4.ktc"
    said = run("verify", sound, "--derive", shared / "q4.gguf", code=13)
    refused(said, "FILE_MISSING", "q4.gguf is not one of", "needed: f16.gguf (")
    said = run("verify", sound, "--derive", shared / "f16.gguf", "--derive", shared / "q4.gguf", code=13)
    refused(said, "OTHER_FILE", "leave it out")
    same_size = bytearray((shared / "f16.gguf").read_bytes())
    same_size[-1] ^= 1
    (tmp_path / "f16.gguf").write_bytes(same_size)
    refused(run("verify", sound, "--derive", tmp_path / "f16.gguf", code=13), "FILE_MISSING")
    refused(run("verify", sound, "--derive", tmp_path / "none.gguf", code=3), "none.gguf")


def test_a_damaged_bundle_is_not_derived(run, shared, tmp_path):
    data = bytearray((shared / "q4.ktc").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.ktc").write_bytes(data)
    refused(run("verify", tmp_path / "a.ktc", "--derive", shared / "f16.gguf", code=11), "SECTION_DIGEST")


def test_a_bundle_that_is_replaced_meanwhile(shared):
    found = derivation.verify(shared / "q4.ktc", [shared / "f16.gguf"], manifest_digest="00" * 32)
    assert (found["exit_code"], found["name"]) == (3, "FILE_CHANGED")


# -- options


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "MODEL is missing"),
        (["--derived-from", "SOURCE"], 2, "give both"),
        (["--quantize", "Q8_0"], 2, "give both"),
        (["MODEL", "--imatrix", "im.gguf"], 2, "--imatrix goes with"),
        (["MODEL", "--derived-from", "SOURCE", "--quantize", "Q8_0", "--derivation", "d.toml"], 2, "one of them"),
        (["--derived-from", "SOURCE", "--quantize", "Q8_0", "--profile", "auto"], 2, "--profile auto"),
        (["--derived-from", "SOURCE", "--quantize", "Q8_0 --imatrix a", "--imatrix", "b"], 2, "given twice"),
        (["--derived-from", "SOURCE", "--quantize", "Q8_0 --keep-split"], 2, "'--keep-split' is no setting"),
        (["--derived-from", "SOURCE", "--quantize", "Q2_K_S"], 2, "importance matrix"),
        (["--derived-from", "SOURCE", "--quantize", "Q8_0 --imatrix none.gguf"], 3, "none.gguf is not there"),
        (
            ["--derived-from", "SOURCE", "--quantize", "Q8_0 --override-kv 'a=str:b\nc'"],
            11,
            "recorded of the settings cannot be",
        ),
        (["--derived-from", "SOURCE", "--quantize", f"Q8_0 --include-weights {'a' * 1002}"], 14, "longer than"),
        (["--derived-from", "nowhere.gguf", "--quantize", "Q8_0"], 3, "nowhere.gguf"),
        (["BUNDLE", "--derived-from", "SOURCE", "--quantize", "Q8_0"], 2, "is a bundle already"),
        (["--derived-from", "BUNDLE", "--quantize", "Q8_0"], 2, "--allow-requantize"),
        (["--derived-from", "SOURCE", "--quantize", "Q8_0", "--name", "A B"], 2, "a bundle's name"),
    ],
)
def test_refusals(run, shared, tmp_path, words, code, text):
    places = {"SOURCE": shared / "f16.gguf", "MODEL": shared / "q4.gguf", "BUNDLE": shared / "q4.ktc"}
    refused(run("pack", "-o", tmp_path / "a.ktc", *[places.get(w, w) for w in words], code=code), text)
    assert files(tmp_path) == []


def test_what_is_there_stays(run, shared, tmp_path):
    (tmp_path / "a.ktc").write_bytes(b"mine")
    refused(run("pack", "-o", tmp_path / "a.ktc", *from_source(shared / "f16.gguf", "Q8_0"), code=3), "already there")
    assert (tmp_path / "a.ktc").read_bytes() == b"mine" and files(tmp_path) == ["a.ktc"]
