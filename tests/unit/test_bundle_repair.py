"""Mending a damaged bundle from another copy of the model, into a new file that is verified whole."""

import os

import pytest

from ktc.errors import KtcError
from ktc.repair import Repaired, repair
from ktc.verify import verify
from tests.support.sample_bundles import LEAF, SEED, SLOT, Part, forge, gguf, parts

MODEL = gguf(data=os.urandom(5 * LEAF + 1234))
SOUND = forge(parts(MODEL), seeds=[SEED])
WITHOUT_LEAVES = forge(parts(MODEL)[:3])
TOKENIZER_AT = len(SOUND) - SLOT - 3 * 4096


@pytest.fixture
def mend(tmp_path):
    """``mend(damaged bytes, donor's bytes)``: what was mended, and the new file's bytes."""

    def run(damaged, donor):
        (tmp_path / "new.ktc").unlink(missing_ok=True)
        (tmp_path / "damaged.ktc").write_bytes(damaged)
        (tmp_path / "donor").write_bytes(donor)
        try:
            found = repair(tmp_path / "damaged.ktc", tmp_path / "donor", tmp_path / "new.ktc")
        except KtcError as error:
            assert not (tmp_path / "new.ktc").exists()
            return error.name, str(error)
        finally:
            assert {path.name for path in tmp_path.iterdir()} <= {"damaged.ktc", "donor", "new.ktc"}
        return found, (tmp_path / "new.ktc").read_bytes()

    return run


def damaged(*places, data=SOUND):
    changed = bytearray(data)
    for at in places:
        changed[at] ^= 0x40
    return bytes(changed)


LEAVES = [4096 + 7, 4096 + 3 * LEAF, 4096 + 4 * LEAF - 1, 4096 + 5 * LEAF + 1000]
"""Bytes in the leaves 0, 3, 3 and 5, the last of them short."""


@pytest.mark.parametrize("donor", [MODEL, SOUND, WITHOUT_LEAVES], ids=["gguf", "ktc", "ktc without leaves"])
def test_leaves(mend, donor):
    assert mend(damaged(*LEAVES), donor) == (Repaired([0, 3, 5], [], 0), SOUND)


def test_a_donor_that_is_damaged_elsewhere(mend):
    """A leaf that is not needed may be wrong, or missing."""
    assert mend(damaged(LEAVES[0]), damaged(3 * LEAF, data=MODEL))[1] == SOUND
    assert mend(damaged(LEAVES[0]), MODEL[: 2 * LEAF])[1] == SOUND


def test_a_donor_that_does_not_help(mend):
    name, message = mend(damaged(LEAVES[1]), damaged(3 * LEAF + 9, data=MODEL))
    assert (name, "leaf 3" in message) == ("DONOR", True)
    assert mend(damaged(LEAVES[3]), MODEL[:-1])[0] == "DONOR"
    assert mend(damaged(LEAVES[3]), b"")[0] == "DONOR"
    assert mend(damaged(LEAVES[3]), gguf(data=bytes(6 * LEAF)))[0] == "DONOR"


def test_all_at_once(mend):
    """A leaf, the padding after the manifest, the tokenizer and the template."""
    found, data = mend(damaged(LEAVES[0], 4000, TOKENIZER_AT + 5, TOKENIZER_AT + 4096), MODEL)
    assert data == SOUND
    assert found == Repaired([0], ["tokenizer", "template"], 1)


def test_a_damaged_list_of_leaves(mend):
    leaves_at = TOKENIZER_AT + 2 * 4096
    assert mend(damaged(leaves_at + 40), MODEL) == (Repaired([], ["leaves"], 0), SOUND)
    both = damaged(leaves_at + 40, LEAVES[0])
    assert mend(both, MODEL) == (Repaired([], ["gguf", "leaves"], 0), SOUND)
    assert mend(both, damaged(99, data=MODEL))[0] in ("LEAF_DIGEST", "SECTION_DIGEST", "BAD_GGUF")


def test_without_leaves_all_of_the_model_is_replaced(mend):
    broken = damaged(LEAVES[0], data=WITHOUT_LEAVES)
    assert mend(broken, MODEL) == (Repaired([], ["gguf"], 0), WITHOUT_LEAVES)
    assert mend(broken, MODEL[:-1])[0] == "DONOR"
    assert mend(broken, damaged(5, LEAF, data=MODEL))[0] == "SECTION_DIGEST"


def test_a_sound_bundle_is_not_written_again(tmp_path):
    (tmp_path / "a.ktc").write_bytes(SOUND)
    (tmp_path / "a.gguf").write_bytes(MODEL)
    assert repair(tmp_path / "a.ktc", tmp_path / "a.gguf", tmp_path / "new.ktc") == Repaired([], [], 0)
    assert not (tmp_path / "new.ktc").exists()


def test_what_no_other_copy_can_mend(mend):
    manifest, slot = damaged(200), damaged(len(SOUND) - SLOT + 60)
    assert mend(manifest, MODEL)[0] == "MANIFEST_DIGEST"
    assert mend(slot, MODEL)[0] in ("SLOT", "BAD_SIGNATURE", "BAD_KEY")
    extra = forge([*parts(MODEL), Part("notes", b"kept by hand", critical=False)])
    assert mend(damaged(len(extra) - SLOT - 4096, data=extra), MODEL)[0] == "NOT_REPAIRABLE"
    lies = forge(parts(MODEL), manifest=lambda table: table["sections"][0].update(blake3=bytes(32)))
    assert mend(lies, MODEL)[0] == "SECTION_DIGEST"


def test_the_target_is_not_overwritten(tmp_path):
    (tmp_path / "a.ktc").write_bytes(damaged(LEAVES[0]))
    (tmp_path / "a.gguf").write_bytes(MODEL)
    for target in ("a.ktc", "a.gguf"):
        with pytest.raises(KtcError) as refused:
            repair(tmp_path / "a.ktc", tmp_path / "a.gguf", tmp_path / target)
        assert refused.value.name == "EXISTS"
    repair(tmp_path / "a.ktc", tmp_path / "a.gguf", tmp_path / "a.ktc", overwrite=True)
    verify(tmp_path / "a.ktc", sha256=True)
