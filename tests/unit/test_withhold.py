"""Withheld prompts: what the receipt shows then, and the opening that shows the rest."""

import json
import os
import stat

import pytest

from ktc import canonical
from ktc.digest import token_digest, withheld_commitment
from ktc.errors import FileProblem, KtcError, LimitExceeded, Malformed
from receipts import batch
from receipts.checks import check_answer, check_record
from receipts.identity import canonical_bytes, question_id, receipt_id
from receipts.withhold import Opening, open_prompt, opening_of, read_opening, withhold, write_opening
from tests.support.sample_receipts import sample

SALT = bytes(range(100, 132))
TOKENS = [70_000, 70_001, 5]
SHOWN = sample(prompt=TOKENS)
WITHHELD = withhold(SHOWN, SALT)
OPENING = Opening(receipt_id(WITHHELD), SALT, TOKENS)


def refused(call, *arguments):
    with pytest.raises(KtcError) as caught:
        call(*arguments)
    return caught.value


# --- the receipt ---


def test_a_withheld_receipt_holds_a_commitment_and_nothing_else_of_the_prompt():
    assert WITHHELD["prompt"] == {"tokens": [], "digest": "", "commitment": withheld_commitment(SALT, TOKENS)}
    check_answer(check_record(WITHHELD))
    assert {name for name in SHOWN if SHOWN[name] != WITHHELD[name]} == {"prompt"}
    data = canonical_bytes(WITHHELD)
    assert bytes.fromhex(token_digest(TOKENS)) not in data and canonical.encode(TOKENS) not in data
    assert SALT not in data
    assert SHOWN["prompt"]["tokens"] == TOKENS, "the record given is left alone"


def test_two_salts_make_two_questions():
    other = withhold(SHOWN, bytes(32))
    assert len({question_id(record) for record in (SHOWN, WITHHELD, other)}) == 3


def test_the_opening_shows_the_prompt_for_a_rerun():
    assert opening_of(WITHHELD, SALT, TOKENS) == OPENING
    opened = open_prompt(WITHHELD, OPENING)
    assert opened == SHOWN
    check_answer(check_record(opened))
    assert WITHHELD["prompt"]["tokens"] == [], "the record given is left alone"


@pytest.mark.parametrize(
    ("record", "opening", "says"),
    [
        (SHOWN, OPENING, "nothing to open"),
        (WITHHELD | {"text": " red"}, OPENING, "another receipt"),
        (WITHHELD, OPENING._replace(receipt_id="00" * 32), "another receipt"),
        (WITHHELD, OPENING._replace(salt=bytes(32)), "commitment"),
        (WITHHELD, OPENING._replace(tokens=[70_000, 70_001]), "commitment"),
        (WITHHELD, OPENING._replace(tokens=TOKENS[::-1]), "commitment"),
        (WITHHELD, OPENING._replace(tokens=[]), "no tokens"),
    ],
)
def test_an_opening_that_is_not_this_receipts(record, opening, says):
    error = refused(open_prompt, record, opening)
    assert (type(error), error.name) == (Malformed, "OPENING") and says in str(error)


def test_an_empty_prompt_can_be_committed_to_and_still_not_opened():
    empty = WITHHELD | {"prompt": {"tokens": [], "digest": "", "commitment": withheld_commitment(SALT, [])}}
    assert refused(open_prompt, empty, Opening(receipt_id(empty), SALT, [])).name == "OPENING"


def test_a_place_in_a_batch_leaves_the_opening_as_it_is():
    records = batch.with_parents([WITHHELD, sample(completion_index=1)])
    assert receipt_id(records[0]) != OPENING.receipt_id
    assert open_prompt(records[0], OPENING)["prompt"] == SHOWN["prompt"]
    assert opening_of(records[0], SALT, TOKENS) == OPENING


# --- the file ---


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answer.opening.json"


def test_an_opening_reads_back_and_is_its_owners(path, tmp_path):
    old = os.umask(0)
    try:
        write_opening(path, OPENING)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_opening(path) == read_opening(path.read_bytes()) == OPENING
    assert json.loads(path.read_bytes()) == {
        "type": "kinetic-opening",
        "version": 1,
        "receipt_id": OPENING.receipt_id,
        "salt": SALT.hex(),
        "tokens": TOKENS,
    }
    assert os.listdir(tmp_path) == [path.name]


def test_an_opening_replaces_nothing(path, tmp_path):
    path.write_text("before")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for name in (path, link):
        error = refused(write_opening, name, OPENING)
        assert (error.exit_code, error.name) == (3, "EXISTS")
    assert path.read_text() == "before" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "opening",
    [
        OPENING._replace(salt=bytes(31)),
        OPENING._replace(tokens=[-1]),
        OPENING._replace(tokens=[2**31]),
        OPENING._replace(receipt_id="AB" * 32),
    ],
)
def test_what_could_not_be_read_is_not_written(path, tmp_path, opening):
    assert refused(write_opening, path, opening).exit_code == 11
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_nothing(path, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert isinstance(refused(write_opening, path, OPENING), FileProblem)
    assert os.listdir(tmp_path) == []


def forged(**changes):
    table = {
        "type": "kinetic-opening",
        "version": 1,
        "receipt_id": OPENING.receipt_id,
        "salt": SALT.hex(),
        "tokens": TOKENS,
    }
    return json.dumps({name: value for name, value in (table | changes).items() if value is not ...}).encode()


def test_the_forged_base_is_right():
    assert read_opening(forged()) == OPENING


@pytest.mark.parametrize(
    ("data", "code", "name"),
    [
        (forged(type="kinetic-receipt"), 11, "NOT_AN_OPENING"),
        (forged(type=...), 11, "NOT_AN_OPENING"),
        (forged(version=2, later="field"), 13, "VERSION"),
        (forged(version=0), 11, "OUT_OF_RANGE"),
        (forged(version=True), 11, "WRONG_TYPE"),
        (forged(version=...), 11, "MISSING_FIELD"),
        (forged(prompt="x"), 11, "UNKNOWN_FIELD"),
        (forged(salt=...), 11, "MISSING_FIELD"),
        (forged(salt=""), 11, "BAD_HEX"),
        (forged(salt=SALT.hex()[:-2]), 11, "BAD_HEX"),
        (forged(salt=SALT.hex().upper()), 11, "BAD_HEX"),
        (forged(salt=list(SALT)), 11, "WRONG_TYPE"),
        (forged(receipt_id="00"), 11, "BAD_HEX"),
        (forged(tokens="x"), 11, "WRONG_TYPE"),
        (forged(tokens=[True]), 11, "WRONG_TYPE"),
        (forged(tokens=[1.0]), 11, "FLOAT"),
        (forged(tokens=[-1]), 11, "OUT_OF_RANGE"),
        (forged(tokens=None), 11, "WRONG_TYPE"),
        (forged()[:-1] + b',"salt":"00"}', 11, "DUPLICATE_KEY"),
        (forged() + b"{}", 11, "BAD_JSON"),
        (forged()[:-1], 11, "BAD_JSON"),
        (b"[]", 11, "WRONG_TYPE"),
        (b"", 11, "BAD_JSON"),
        (b"\xff", 11, "NOT_UTF8"),
        (canonical.encode(json.loads(forged())), 11, "NOT_UTF8"),
    ],
)
def test_openings_are_read_strictly(data, code, name):
    error = refused(read_opening, data)
    assert (error.exit_code, error.name) == (code, name)


def test_missing_and_huge_files(path):
    assert (refused(read_opening, path).exit_code, refused(read_opening, path).name) == (3, "UNREADABLE")
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse
    assert isinstance(refused(read_opening, path), LimitExceeded)
