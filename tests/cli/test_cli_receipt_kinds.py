"""``kinetic receipt``: what is given in place of a receipt is called what it is, and who signed only one of two."""

import json

import pytest

from ktc.layout import MAGIC
from ktc.signature import key_id, key_pair
from tests.support.receipt_files import OTHER_SEED, put, put_withheld
from tests.support.sample_receipts import SEED, sample


@pytest.mark.parametrize("size", [0, 17 << 20])
@pytest.mark.parametrize(
    "words", [("show",), ("convert", "-o", "b.json"), ("export", "dsse", "-o", "b"), ("sign", "--key", "k2")]
)
def test_a_bundle_in_place_of_a_receipt(refused, place, words, size):
    (place / "m.ktc").write_bytes(MAGIC + bytes(size))
    err = refused(*words, "m.ktc", code=11, name="NOT_A_RECEIPT")
    assert "m.ktc: this is a bundle" in err
    assert ("`kinetic sign` signs it" if words[0] == "sign" else "`kinetic verify`") in err


def test_other_files_are_called_what_they_are(run, refused, place):
    put("a.json", sample(), SEED)
    put_withheld()
    run("export", "dsse", "a.json", "-o", "a.dsse.json")
    (place / "empty.json").write_bytes(b"")
    for name, says in (
        ("w.opening.json", "this is an opening"),
        ("a.dsse.json", "this is a DSSE envelope: the receipt itself"),
        ("empty.json", "the file is empty"),
    ):
        assert f"{name}: {says}" in refused("show", name, code=11)


def test_diff_lists_who_signed_only_one(run, place):
    put("a.json", sample(), SEED)
    put("b.json", sample(), OTHER_SEED)
    ids = [key_id(key_pair(seed).public) for seed in (SEED, OTHER_SEED)]
    out, _ = run("diff", "a.json", "b.json")
    assert f"claim     signatures: '{ids[0]}' in a.json, absent in b.json\n" in out
    assert f"claim     signatures: absent in a.json, '{ids[1]}' in b.json\n" in out
    table = json.loads(run("diff", "--json", "a.json", "b.json")[0])
    assert [one for one in table["claims"] if one["field"] == "signatures"] == [
        {"field": "signatures", "first": ids[0], "second": None},
        {"field": "signatures", "first": None, "second": ids[1]},
    ]
    assert "signatures" not in run("diff", "a.json", "a.json")[0]
