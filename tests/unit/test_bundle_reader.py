"""Opening bundles for use: what is checked when, by which handle, and what it costs in memory."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ktc.errors import KtcError, Malformed, SignatureProblem
from ktc.leaves import LeafChecker
from ktc.reader import is_bundle, open_bundle, open_verified
from ktc.signature import key_pair
from ktc.trust import pinned
from ktc.verify import check_keys, verify
from tests.support.sample_bundles import LEAF, SEED, SLOT, forge, gguf, parts

ROOT = Path(__file__).resolve().parents[2]
MODEL = gguf(data=os.urandom(6 * LEAF + 999))
SOUND = forge(parts(MODEL), seeds=[SEED])


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "a.ktc"
    place.write_bytes(SOUND)
    return place


def spoil(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def refusal(call, *arguments, **options):
    with pytest.raises(KtcError) as refused:
        call(*arguments, **options)
    return refused.value.name


def test_what_it_hands_out(path):
    with open_verified(path, check="full") as bundle:
        assert bundle.path == str(path)
        assert bundle.view(bundle.gguf) == MODEL
        assert bundle.buffer == SOUND
        assert bundle.buffer.readonly
        assert bundle.section("gguf") == bundle.gguf
        assert bundle.section("nonsense") is None
        assert bundle.manifest["name"] == "tiny"
        assert bundle.standing.sentence.startswith("signature consistent, signer unknown")
        assert (bundle.checked, bundle.leaves) == ("full", None)
        assert os.fstat(bundle.fileno()).st_ino == path.stat().st_ino
    with pytest.raises(OSError):
        os.fstat(bundle.fileno())


def test_views_outlive_it(path):
    with open_verified(path, check="none") as bundle:
        view = bundle.view(bundle.gguf)
    assert view == MODEL


def test_the_file_may_lose_its_name(path):
    """Nothing is opened by the path again."""
    with open_verified(path, check="lazy") as bundle:
        os.unlink(path)
        path.write_bytes(b"something else")
        bundle.leaves.touch(0, len(MODEL))
        check_keys(bundle)
        assert bundle.view(bundle.gguf) == MODEL


def test_lazily(path):
    with open_verified(path, check="lazy") as bundle:
        leaves = bundle.leaves
        assert (bundle.checked, leaves.checked, leaves.count) == ("lazy", 0, 7)
        leaves.touch(0, 1)
        leaves.touch(5, 0)
        leaves.touch(0, LEAF)
        assert leaves.checked == 1
        leaves.touch(LEAF - 1, 2)
        assert leaves.checked == 2
        leaves.touch(len(MODEL) - 1, 1)
        assert leaves.checked == 3
        leaves.touch(0, len(MODEL))
        assert leaves.checked == 7
        for offset, length in ((-1, 5), (0, len(MODEL) + 1), (len(MODEL), 1)):
            with pytest.raises(ValueError):
                leaves.touch(offset, length)


@pytest.mark.parametrize("index", [0, 3, 6])
def test_a_damaged_leaf_is_found_when_it_is_touched(path, index):
    spoil(path, 4096 + index * LEAF + 77)
    with open_verified(path, check="lazy") as bundle:
        for other in range(7):
            if other != index:
                bundle.leaves.touch(other * LEAF, 1)
        for _ in range(2):  # it does not pass the second time either
            with pytest.raises(Malformed, match=f"leaf {index} of section 'gguf'") as refused:
                bundle.leaves.touch(0, len(MODEL))
            assert refused.value.name == "LEAF_DIGEST"
    assert refusal(open_verified, path, check="full") == "LEAF_DIGEST"
    open_verified(path, check="none").close()


def test_a_leaf_is_checked_once_by_many_threads(path, monkeypatch):
    from ktc import leaves as module

    counted = []
    digest = module.leaf_digest

    def slowly(index, data):
        counted.append(index)
        time.sleep(0.01)  # time enough for the others to come to the same leaf
        return digest(index, data)

    monkeypatch.setattr(module, "leaf_digest", slowly)
    with open_verified(path, check="lazy") as bundle:
        threads = [threading.Thread(target=bundle.leaves.touch, args=(0, len(MODEL))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(counted) == list(range(7))


def test_without_leaves_lazy_means_full(path):
    path.write_bytes(forge(parts(MODEL)[:3]))
    with open_verified(path, check="lazy") as bundle:
        assert (bundle.checked, bundle.leaves) == ("full", None)
        with pytest.raises(Malformed):
            LeafChecker(bundle)
    spoil(path, 5000)
    assert refusal(open_verified, path, check="lazy") == "SECTION_DIGEST"


def test_a_damaged_list_of_leaves_is_found_at_once(path):
    spoil(path, len(SOUND) - SLOT - 4096)
    assert refusal(open_verified, path, check="lazy") == "SECTION_DIGEST"


def test_lazily_the_keys_are_checked_before_they_are_believed(path):
    spoil(path, 4096 + 40)
    with open_verified(path, check="lazy") as bundle:
        assert refusal(check_keys, bundle) == "LEAF_DIGEST"


@pytest.mark.parametrize("check", ["full", "lazy", "none"])
def test_trust_is_judged_whatever_is_checked(path, check):
    trusted = pinned({"k": key_pair(SEED).public}, "bundle")
    stranger = pinned({"k": key_pair(bytes(32)).public}, "bundle")
    with open_verified(path, trust=trusted, check=check) as bundle:
        assert bundle.standing.is_trusted
    with pytest.raises(SignatureProblem):
        open_verified(path, trust=stranger, check=check)
    assert refusal(open_verified, path, min_release=4, check=check) == "OLD_RELEASE"


def test_a_warning_where_trust_only_warns(path):
    stranger = pinned({"k": key_pair(bytes(32)).public}, "bundle")._replace(mode="warn")
    with open_verified(path, trust=stranger) as bundle:
        assert bundle.warnings == [bundle.standing.warning]
    assert verify(path, trust=stranger).warnings


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        assert refusal(open_bundle, name) == "NOT_A_FILE"
    for name in (tmp_path / "none", tmp_path / "a\0b"):
        assert refusal(open_bundle, name) == "UNREADABLE"


def test_a_bundle_is_told_by_its_first_bytes(path, tmp_path):
    (tmp_path / "a.gguf").write_bytes(MODEL)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    assert is_bundle(path)
    for other in ("a.gguf", "empty", "fifo", "none"):
        assert not is_bundle(tmp_path / other)


def test_a_file_that_changes_while_it_is_checked(path):
    def touch(done, total):
        os.utime(path, (1, 1))

    def cut(done, total):
        os.truncate(path, 2 * LEAF)

    assert refusal(verify, path, progress=touch) == "FILE_CHANGED"
    assert refusal(verify, path, progress=cut) == "FILE_CHANGED"
    path.write_bytes(SOUND)
    with open_bundle(path) as bundle:
        os.utime(path, (2, 2))
        assert refusal(bundle.check_unchanged) == "FILE_CHANGED"


def test_a_file_that_changes_at_the_very_end(path, monkeypatch):
    from ktc import verify as module

    monkeypatch.setattr(module, "_check_keys", lambda bundle, keys, **how: os.utime(path, (1, 1)))
    assert refusal(verify, path) == "FILE_CHANGED"


def test_progress_is_told_to_the_end(path):
    for sha256 in (False, True):
        told = []
        verify(path, sha256=sha256, progress=lambda done, total, told=told: told.append((done, total)))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > len(MODEL)


def test_an_interrupt_ends_all_passes(path):
    def stop(done, total):
        if done > 2 * LEAF:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        verify(path, progress=stop, sha256=True)
    assert threading.active_count() == before


MEMORY = """
import sys
from ktc.verify import verify
verify(sys.argv[1], sha256=True)
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """2 GiB, nearly all of it a hole in the file. What the process that starts the check uses is not counted."""
    from ktc.inputs import ModelFile
    from ktc.writer import write_bundle

    size = 2 << 30
    (tmp_path / "a.gguf").write_bytes(MODEL)
    os.truncate(tmp_path / "a.gguf", size)
    with ModelFile(tmp_path / "a.gguf") as model:
        write_bundle(tmp_path / "a.ktc", model, name="tiny", file="a.gguf")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "a.ktc")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert int(result.stdout) < 100_000  # KiB
