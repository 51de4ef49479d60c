"""Packing, unpacking and signing: the same bytes out as in, and never half a file under a name."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ktc.errors import FileProblem, KtcError, LimitExceeded, Malformed, SignatureProblem
from ktc.inputs import ModelFile, ModelStream
from ktc.newfile import NewFile
from ktc.reader import open_bundle
from ktc.signature import key_id, key_pair
from ktc.unpack import unpack
from ktc.verify import verify
from ktc.writer import sign_bundle, write_bundle
from tests.support import sample_bundles as samples
from tests.support.sample_bundles import LEAF, OTHER_SEED, SEED, SLOT, forge, gguf, parts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf())
    return path


def pack(model, target, **options):
    with ModelFile(model) as source:
        return write_bundle(target, source, **{"name": "tiny", "file": "tiny.gguf", "release": 3} | options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_writer_agrees_with_the_other_writer(model, tmp_path):
    """Two writers, made apart from FORMAT.md, give the same bytes."""
    pack(model, tmp_path / "a.ktc")
    assert (tmp_path / "a.ktc").read_bytes() == forge()
    pack(model, tmp_path / "b.ktc", sign=[key_pair(SEED), key_pair(OTHER_SEED)], leaves=False)
    assert (tmp_path / "b.ktc").read_bytes() == forge(parts()[:3], seeds=[SEED, OTHER_SEED])


SIZES = [1, LEAF - 500, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF + 7]


@pytest.mark.parametrize("size", SIZES)
def test_there_and_back(tmp_path, size):
    data = gguf(data=os.urandom(size))
    (tmp_path / "a.gguf").write_bytes(data)
    written = pack(tmp_path / "a.gguf", tmp_path / "a.ktc")
    found = verify(tmp_path / "a.ktc", sha256=True)
    assert (found.manifest_digest, found.size) == (written.manifest_digest, written.size)
    assert found.leaf_count == -(-len(data) // LEAF)
    unpack(tmp_path / "a.ktc", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == data


@pytest.mark.parametrize("piece", [1, 1000, LEAF, 10**9])
def test_a_model_in_pieces(model, tmp_path, piece):
    data = model.read_bytes()
    source = ModelStream(len(data), (data[at : at + piece] for at in range(0, len(data), piece)))
    write_bundle(tmp_path / "a.ktc", source, name="tiny", file="tiny.gguf", release=3)
    assert (tmp_path / "a.ktc").read_bytes() == forge()


@pytest.mark.parametrize("wrong", [-1, 1, 500])
def test_pieces_that_are_more_or_fewer_than_was_said(model, tmp_path, wrong):
    data = model.read_bytes()
    with pytest.raises(FileProblem) as refused:
        write_bundle(tmp_path / "a.ktc", ModelStream(len(data) + wrong, [data]), name="tiny", file="tiny.gguf")
    assert refused.value.name == "FILE_CHANGED"
    assert names(tmp_path) == ["tiny.gguf"]


def test_a_long_manifest_moves_the_sections(model, tmp_path):
    """Each number of sources is another length of the manifest, some of them across a boundary."""
    table = {"name": "part.gguf", "size": 2**32, "blake3": "ab" * 32, "sha256": "cd" * 32}
    for count in (20, 30, 31, 32, 33, 200, 1024):
        target = tmp_path / f"{count}.ktc"
        pack(model, target, sources=[table] * count)
        assert verify(target).manifest["sources"] == [table] * count
    with pytest.raises(LimitExceeded):
        pack(model, tmp_path / "more.ktc", sources=[table] * 1025)
    with pytest.raises(Malformed):
        pack(model, tmp_path / "more.ktc", name="No Such Name")
    assert "more.ktc" not in names(tmp_path)


# -- what is not packed, and where nothing is written


def refusal(call, *arguments, **options):
    with pytest.raises(KtcError) as refused:
        call(*arguments, **options)
    assert str(refused.value)
    return refused.value.name


def test_inputs_that_are_no_plain_files(model, tmp_path):
    """72."""
    (tmp_path / "link").symlink_to(model)
    os.mkfifo(tmp_path / "fifo")
    before = names(tmp_path)
    assert refusal(pack, tmp_path / "link", tmp_path / "a.ktc") == "SYMLINK"
    assert refusal(pack, tmp_path / "fifo", tmp_path / "a.ktc") == "NOT_A_FILE"
    assert refusal(pack, "/dev/zero", tmp_path / "a.ktc") == "NOT_A_FILE"
    assert refusal(pack, tmp_path, tmp_path / "a.ktc") == "NOT_A_FILE"
    assert refusal(pack, tmp_path / "none", tmp_path / "a.ktc") == "UNREADABLE"
    assert names(tmp_path) == before
    os.link(model, tmp_path / "twin")
    assert refusal(pack, model, tmp_path / "a.ktc") == "HARD_LINK"


def test_a_model_that_changes_meanwhile(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(data=bytes(9 * LEAF)))
    before = names(tmp_path)

    def touch(done, total):
        os.utime(path, (1, 1))

    def cut(done, total):
        os.truncate(path, 5 * LEAF)

    assert refusal(pack, path, tmp_path / "a.ktc", progress=touch) == "FILE_CHANGED"
    assert refusal(pack, path, tmp_path / "a.ktc", progress=cut) == "FILE_CHANGED"
    assert names(tmp_path) == before


TARGETS = ["file", "dangling", "fifo", "folder"]


@pytest.mark.parametrize("kind", TARGETS)
def test_targets_that_are_there(model, tmp_path, kind):
    """71. Only a plain file is replaced, and only where that is asked for."""
    pack(model, tmp_path / "sound.ktc")
    target = tmp_path / "target"
    if kind == "file":
        target.write_bytes(b"mine")
    elif kind == "dangling":
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.mkdir()
    before = names(tmp_path)
    assert refusal(pack, model, target) == "EXISTS"
    assert refusal(unpack, tmp_path / "sound.ktc", target) == "EXISTS"
    if kind == "file":
        assert target.read_bytes() == b"mine"
        unpack(tmp_path / "sound.ktc", target, overwrite=True)
        assert target.read_bytes() == model.read_bytes()
    else:
        assert refusal(pack, model, target, overwrite=True) == "NOT_A_FILE"
        assert refusal(unpack, tmp_path / "sound.ktc", target, overwrite=True) == "NOT_A_FILE"
    assert names(tmp_path) == before
    assert refusal(pack, model, tmp_path / "no" / "folder.ktc") == "UNWRITABLE"


def test_unpacking_what_is_damaged(tmp_path):
    data = bytearray(forge(parts(gguf(data=bytes(3 * LEAF)))))
    data[4096 + 2 * LEAF + 5] ^= 1
    (tmp_path / "a.ktc").write_bytes(data)
    with pytest.raises(Malformed, match="leaf 2") as refused:
        unpack(tmp_path / "a.ktc", tmp_path / "a.gguf")
    assert refused.value.name == "LEAF_DIGEST"
    (tmp_path / "b.ktc").write_bytes(forge(manifest=lambda table: table["sections"][0].update(sha256=bytes(32))))
    assert refusal(unpack, tmp_path / "b.ktc", tmp_path / "a.gguf") == "SECTION_SHA256"
    assert names(tmp_path) == ["a.ktc", "b.ktc"]


# -- whatever ends it, nothing is left under the name

PACK = """
import sys
from ktc.inputs import ModelFile
from ktc.writer import write_bundle
print("begun", flush=True)
with ModelFile(sys.argv[1]) as model:
    write_bundle(sys.argv[2], model, name="tiny", file="tiny.gguf")
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "a.gguf"
    path.write_bytes(gguf(data=os.urandom(24 * LEAF)))
    return path


def start(large, target, **options):
    command = [sys.executable, "-c", PACK, str(large), str(target)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_killed_writer_leaves_nothing_under_the_name(large, tmp_path):
    """At 25 moments between the beginning and the end, as long as both are on this machine."""
    target = tmp_path / "a.ktc"
    began = time.monotonic()
    with start(large, target) as whole:
        assert whole.stdout.readline() == b"begun\n"
        startup = time.monotonic() - began
    assert whole.returncode == 0
    length, killed = time.monotonic() - began - startup, 0
    sound = target.read_bytes()
    for moment in range(25):
        target.unlink(missing_ok=True)
        with start(large, target) as process:
            process.stdout.readline()
            time.sleep(length * moment / 25)
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
        assert not target.exists() or target.read_bytes() == sound
    assert killed > 5
    for left in names(tmp_path):
        assert left == "a.ktc" or (left.startswith(".a.ktc.") and left.endswith(".tmp"))


@pytest.mark.parametrize("room", [0, 1, 5000, LEAF, 24 * LEAF + 4096, 24 * LEAF + 12000])
def test_a_full_disk_leaves_nothing(large, tmp_path, room):
    """The limit on a file's size stands for the disk's; it is hit in the model, in a section, and in the slot."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    with start(large, tmp_path / "a.ktc", preexec_fn=limit) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert b"FileProblem: cannot write" in errors
    assert names(tmp_path) == []


def test_an_interrupt_leaves_nothing(large, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(large, tmp_path / "a.ktc", progress=stop)
    assert names(tmp_path) == []


# -- signing


def test_signing_changes_the_slot_alone(model, tmp_path):
    path = tmp_path / "a.ktc"
    pack(model, path)
    plain, first, second = path.read_bytes(), key_pair(SEED), key_pair(OTHER_SEED)
    assert sign_bundle(path, first) == [key_id(first.public)]
    assert sign_bundle(path, second) == [key_id(first.public), key_id(second.public)]
    assert path.read_bytes()[:-SLOT] == plain[:-SLOT]
    assert path.read_bytes() == forge(seeds=[SEED, OTHER_SEED])
    before = path.read_bytes()
    assert refusal(sign_bundle, path, second) == "REPEATED_KEY"
    assert path.read_bytes() == before


def test_as_many_signatures_as_there_may_be(model, tmp_path):
    """Past 23 of them the array's head grows by a byte."""
    path = tmp_path / "a.ktc"
    pack(model, path)
    for number in range(64):
        sign_bundle(path, key_pair(bytes([number]) * 32))
    assert len(verify(path).signers) == 64
    assert refusal(sign_bundle, path, key_pair(SEED)) == "TOO_MANY_ENTRIES"
    assert len(verify(path).signers) == 64


def test_signing_beside_a_signature_that_does_not_hold(tmp_path):
    path = tmp_path / "a.ktc"
    stolen = forge(seeds=[SEED], manifest=lambda table: table.update(name="tinx"))
    path.write_bytes(forge()[: -SLOT + 32] + stolen[-SLOT + 32 :])
    before = path.read_bytes()
    assert refusal(sign_bundle, path, key_pair(OTHER_SEED)) == "BAD_SIGNATURE"
    assert path.read_bytes() == before
    assert refusal(sign_bundle, tmp_path / "none", key_pair(SEED)) == "UNWRITABLE"


def test_a_torn_write_is_found_and_mended(tmp_path):
    """The slot is written from its end to its beginning; whatever part of it came through, the old signatures stay."""
    seeds = [bytes([number]) * 32 for number in range(1, 8)]
    old, new = (forge(seeds=some)[-SLOT:] for some in (seeds[:6], seeds))
    sound = forge()[:-SLOT]
    path, added = tmp_path / "a.ktc", key_pair(seeds[6])
    for tear in (512, 513, 700, 900, 980, 1000, SLOT):
        path.write_bytes(sound + old[:512] + new[512:tear] + old[tear:])
        if new[512:tear] != old[512:tear]:
            assert refusal(verify, path) == "SLOT"
        signers = sign_bundle(path, added)
        assert len(signers) == 7
        assert verify(path).signers == signers


def test_mending_with_a_key_that_had_signed(tmp_path):
    path = tmp_path / "a.ktc"
    torn = bytearray(forge(seeds=[SEED]))
    torn[-3] = 7
    path.write_bytes(torn)
    assert len(sign_bundle(path, key_pair(SEED))) == 1
    assert path.read_bytes() == forge(seeds=[SEED])


def test_a_slot_without_anything_to_save(tmp_path):
    path = tmp_path / "a.ktc"
    torn = bytearray(forge(seeds=[SEED]))
    torn[-SLOT + 36] = 0xFF
    path.write_bytes(torn)
    assert refusal(open_bundle, path) == "SLOT"
    assert sign_bundle(path, key_pair(OTHER_SEED)) == [key_id(key_pair(OTHER_SEED).public)]
    verify(path)


def test_a_manifest_that_is_not_the_slots_is_not_signed(tmp_path):
    path = tmp_path / "a.ktc"
    damaged = bytearray(forge())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Malformed) as refused:
        sign_bundle(path, key_pair(SEED))
    assert refused.value.name == "MANIFEST_DIGEST"
    assert path.read_bytes() == damaged


def test_the_same_key_twice_at_once(model, tmp_path):
    with pytest.raises(SignatureProblem) as refused:
        pack(model, tmp_path / "a.ktc", sign=[key_pair(SEED), key_pair(SEED)])
    assert refused.value.name == "REPEATED_KEY"
    assert names(tmp_path) == ["tiny.gguf"]


def test_a_model_without_tokenizer(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf([samples.KEYS[0]]))
    pack(tmp_path / "a.gguf", tmp_path / "a.ktc", leaves=False)
    with open_bundle(tmp_path / "a.ktc") as bundle:
        assert [section.kind for section in bundle.sections] == ["gguf"]
    verify(tmp_path / "a.ktc")


def test_leftovers_of_killed_writers_go_and_those_of_others_stay(tmp_path):
    target = tmp_path / "a.ktc"
    left, fresh, other, busy = (
        tmp_path / name
        for name in (
            ".a.ktc.00112233aabb.tmp",
            ".a.ktc.00112233aabc.tmp",
            ".b.ktc.00112233aabb.tmp",
            ".a.ktc.ffffffffffff.tmp",
        )
    )
    for path in (left, fresh, other, busy):
        path.write_bytes(b"part")
    for path in (left, other, busy):
        os.utime(path, (1, 1))
    with busy.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with NewFile(target) as new:
            new.write(b"whole")
            new.keep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (target, fresh, other, busy)
    )
