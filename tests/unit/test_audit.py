"""Audits without an engine: which files, which sample, what chance, and what is kept of an interrupted one."""

import errno
import fcntl
import itertools
import json
import os
from collections import Counter
from fractions import Fraction
from math import comb

import pytest

from ktc import limits
from ktc.errors import KtcError
from receipts import audit, audit_state, kinds
from receipts.audit import Size, Source, chance, choose, find_files, parse_seed, parse_size, percent
from receipts.audit_state import State
from receipts.encode import Receipt, to_cbor, to_json
from receipts.report import to_sarif
from receipts.report.rows import Report
from receipts.verify import Place, Verdict
from tests.support.sample_receipts import sample

SEED = bytes(range(32))

# Files


@pytest.fixture
def folder(tmp_path):
    for name in ("b.json", "a.CBOR", "sub/c.json", "sub/.d.json", ".hidden/e.json", "notes.txt", "f[1].json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    return tmp_path


def names(sources, folder):
    return [(os.path.relpath(source.path, folder), source.is_named) for source in sources]


def test_a_folder_stands_for_what_it_holds(folder):
    found = names(find_files([str(folder)]), folder)
    assert found == [("a.CBOR", False), ("b.json", False), ("f[1].json", False), ("sub/c.json", False)]


def test_files_and_patterns_are_named_and_each_counts_once(folder):
    link = folder / "sub" / "same.json"
    link.symlink_to(folder / "b.json")
    asked = [str(folder / name) for name in ("notes.txt", "sub/../b.json", "*.json", "f[1].json", "absent.json")]
    assert names(find_files(asked), folder) == [
        ("notes.txt", True),
        ("b.json", True),
        ("f[1].json", True),
        ("absent.json", True),
    ]
    assert names(find_files([str(folder), str(folder / "b.json")]), folder)[1] == ("b.json", True)
    assert names(find_files([str(folder / "su*")]), folder) == [("sub/c.json", False), ("sub/same.json", False)]
    assert names(find_files([str(folder / "**" / "c.json")]), folder) == [("sub/c.json", True)]


def test_a_pattern_that_fits_nothing_is_no_empty_audit(folder):
    with pytest.raises(KtcError) as caught:
        find_files([str(folder / "*.jsonl")])
    assert caught.value.exit_code == 3


def test_a_pipe_in_a_folder_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    assert names(find_files([str(tmp_path)]), tmp_path) == [("gone.json", False)]


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert find_files([str(tmp_path)]) == [Source(str(tmp_path / "closed"), True)]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        *((data, "") for data in (b"", bytes(8), b"{", b"{}", b"[]", b"null", b"not JSON", b"\xa0", b"[" * 100_000)),
        (b'{"recepit": {}, "signatures": []}', ""),
        (b'{"receipt": {}, "type": "kinetic-opening"}', ""),
        (b'{"type": "kinetic-receipt"}', ""),
        (b'{"type": "kinetic-other"', ""),
        (b'{"version": 1, "runs": 2}', ""),
        (b'{"mediaType": "text/plain"}', ""),
        (b'{"payloadType": 1, "payload": ""}', ""),
        (b"\xd2", ""),
        (to_cbor(Receipt(sample(), []))[:200], ""),
        (b'{"version": 1, "type": "kinetic-opening"}', kinds.OPENING),
        (b'{"type": "kinetic-report", "seconds": 1.5', kinds.REPORT),
        (audit_state.HEAD * 2, kinds.STATE),
        (b'{"payload": "", "payloadType": "x", "signatures": []}', kinds.DSSE),
        (b'{"version": "2.1.0", "runs": []}', kinds.SARIF),
        (to_sarif(Report([], "t", [])).encode()[:200], kinds.SARIF),
        (b'{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}', kinds.SIGSTORE),
        (b"\xd2\x84\x40", kinds.COSE),
        (b'{"type": "kinetic-report", "rows": [' + b"[]," * limits.MAX_CONTAINERS + b"[]]}", kinds.REPORT),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_surely_something_else(data, kind):
    assert kinds.other_kind(data) == kind


def test_what_is_or_would_be_found(folder):
    (folder / "link").symlink_to("b.json")
    (folder / "away").symlink_to(folder / "sub")
    asked = [str(folder / "sub"), str(folder / "b.json"), str(folder / "notes.txt")]
    sources = find_files(asked)
    found = ("sub/c.json", "sub/new.json", "sub/more/new.CBOR", "away/c.json", "b.json", "sub/../link", "notes.txt")
    for name in found:
        assert audit.is_among(str(folder / name), sources, asked), name
    for name in ("a.CBOR", "new.json", "sub/new.txt", "sub/.d.json", "sub/.more/new.json", "sub", "absent"):
        assert not audit.is_among(str(folder / name), sources, asked), name


# Samples


@pytest.mark.parametrize(
    ("text", "size", "of_50"),
    [
        ("20", Size(20), 20),
        ("999999999", Size(999_999_999), 50),
        ("5%", Size(0, 5_000_000), 3),
        ("100%", Size(0, 100_000_000), 50),
        ("0.000001%", Size(0, 1), 1),
        ("2.5%", Size(0, 2_500_000), 2),
        ("4.0%", Size(0, 4_000_000), 2),
    ],
)
def test_sizes(text, size, of_50):
    assert parse_size(text) == size and size.of(50) == of_50 and size.of(0) == 0


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "0%", "0.0%", "100.1%", "101%", "%", "5 %", "1e2", "5%%", "٣"])
def test_sizes_that_are_none(text):
    with pytest.raises(KtcError):
        parse_size(text)


def test_seeds():
    assert parse_seed("0A" * 32) == b"\n" * 32
    for text in ("", "0a" * 31, "0a" * 33, "zz" * 32, " " + "0a" * 32):
        with pytest.raises(KtcError):
            parse_seed(text)


def test_a_choice_is_the_one_that_the_published_seed_gives():
    assert choose(50, 8, SEED) == [8, 9, 17, 26, 30, 36, 39, 49]
    assert choose(10**9, 3, bytes(32)) == [504296273, 708775509, 895856704]
    assert choose(5, 5, SEED) == [0, 1, 2, 3, 4] and choose(5, 0, SEED) == []
    assert choose(2000, 2000, SEED) == list(range(2000))


def test_every_set_is_as_likely_as_any_other():
    seeds = [index.to_bytes(32, "little") for index in range(4000)]
    seen = Counter(tuple(choose(5, 2, seed)) for seed in seeds)
    assert set(seen) == set(itertools.combinations(range(5), 2))
    assert all(320 < count < 480 for count in seen.values()), seen  # 400 expected, 19 the standard deviation


def test_words_that_would_favour_some_numbers_are_passed_over():
    top = 2**64 - 1
    assert audit._below(3, iter([top, 7])) == 1, "2^64 - 1 is a multiple of 3, and so one too many"
    assert audit._below(2, iter([top, 7])) == 1 and audit._below(5, iter([top - 1])) == 4


@pytest.mark.parametrize("count", range(1, 9))
def test_chances_are_the_hypergeometric_ones(count):
    for size, bad in itertools.product(range(count + 1), repeat=2):
        exact = 1 - Fraction(comb(count - bad, size), comb(count, size))
        assert chance(count, size, bad) == pytest.approx(float(exact), abs=1e-12)
        assert (chance(count, size, bad) == 1.0) == (exact == 1)


def test_chances_are_counted_out_on_all_samples():
    hits = sum(bool({0, 1} & set(chosen)) for chosen in itertools.combinations(range(7), 3))
    assert chance(7, 3, 2) == pytest.approx(hits / comb(7, 3))


def test_chances_of_a_large_audit():
    cases = dict(audit.chances(10_000, 300))
    assert cases["1 is bad"] == pytest.approx(0.03)
    assert cases["1% are"] == pytest.approx(1 - comb(9900, 300) / comb(10_000, 300))
    assert cases["5% are"] > 0.99999 and list(cases)[-1] == "10% are"
    assert audit.chances(0, 0) == [] and dict(audit.chances(3, 3))["1% are"] == 1.0


def test_only_certainty_is_a_hundred_per_cent():
    assert [percent(p) for p in (0.0, 0.1, 0.123456, 0.9999999, 1.0)] == ["0%", "10%", "12.345%", "99.999%", "100%"]


def test_groups_keep_the_order_in_which_they_came():
    assert audit.grouped([3, 1, 2, 5, 4], lambda item: item % 2) == {1: [3, 1, 5], 0: [2, 4]}


# State


TRAIL = (Place(1, "a", 2, "\ud800", 0.5),)
DIFFERS = Verdict(10, "DIFFERS", "token 0 …", 1, gap=float("inf"), notes=("a",), method="replay", trail=TRAIL)
IDENTICAL = Verdict(0, "IDENTICAL", "all", 3, True, method="decode")


def test_what_was_found_is_there_again(tmp_path):
    path = tmp_path / "state"
    with State(path) as state:
        assert state.seed == "" and state.get("f", "u") is None
        state.begin_sample(SEED)
        state.add("f", "u", DIFFERS)
        state.add("g", "u", IDENTICAL)
    assert path.stat().st_mode & 0o777 == 0o600
    with State(path) as state:
        assert state.seed == SEED.hex()
        assert (state.get("f", "u"), state.get("g", "u")) == (DIFFERS, IDENTICAL)
        assert state.get("f", "v") is None and state.get("h", "u") is None


def test_only_the_verdict_of_a_rerun_is_kept(tmp_path):
    with State(tmp_path / "state") as state:
        state.add("a", "u", Verdict(13, "MODEL_MISSING", "no"))
        state.add("b", "u", Verdict(11, "WRONG_TYPE", "no"))
        state.add("c", "u", Verdict(13, "NonFinite", "no", method="replay"))
        state.add("d", "u", Verdict(11, "TEXT", "no", method="replay"))
    assert (tmp_path / "state").read_bytes().count(b"\n") == 2
    with State(tmp_path / "state") as state:
        assert [state.get(name, "u") is None for name in "abcd"] == [True, True, True, False]


def test_a_torn_line_is_passed_over_and_the_next_is_whole(tmp_path):
    path = tmp_path / "state"
    with State(path) as state:
        state.add("f", "u", IDENTICAL)
        state.add("g", "u", IDENTICAL)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        with State(path) as state:
            assert (state.get("f", "u"), state.get("g", "u")) == (IDENTICAL, None)
            state.add("h", "u", DIFFERS)
        with State(path) as state:
            assert (state.get("f", "u"), state.get("h", "u")) == (IDENTICAL, DIFFERS)
    for end in range(len(audit_state.HEAD)):
        path.write_bytes(audit_state.HEAD[:end])
        with State(path):
            assert path.read_bytes() == audit_state.HEAD


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": "0"},
        {"exit_code": 13},
        {"exit_code": 12},
        {"exit_code": False},
        {"method": ""},
        {"method": "guess"},
        {"is_prefix": 1},
        {"notes": 1},
        {"trail": [[1, 2]]},
        {"more": 1},
        {"sentence": None},
    ],
)
def test_a_line_that_is_not_ours_counts_for_nothing(tmp_path, change):
    path = tmp_path / "state"
    verdict = json.loads(json.dumps(IDENTICAL._asdict())) | change
    lines = ["[]", "5", "null", '{"file": 1}', "\x00", "1" * 5000, "[" * 100_000, '{"seed": 5}', '{"seed": "zz"}']
    lines.append(json.dumps({"file": "f", "under": "u", "verdict": verdict}))
    path.write_bytes(audit_state.HEAD + "\n".join([*lines, ""]).encode())
    with State(path) as state:
        assert state.get("f", "u") is None and state.seed == ""
        state.add("g", "u", IDENTICAL)
    path.write_bytes(b"\xff\xfe\n".join([audit_state.HEAD, path.read_bytes().removeprefix(audit_state.HEAD)]))
    with State(path) as state:
        assert state.get("g", "u") == IDENTICAL, "what is ours counts among whatever else"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path, mode):
    path = tmp_path / "state"
    with State(path) as state:
        state.add("f", "u", IDENTICAL)
    path.chmod(mode)
    assert refusal(path) == (3, "EXPOSED_STATE")
    path.chmod(0o644)
    with State(path) as state:
        assert state.get("f", "u") == IDENTICAL


def test_a_file_of_somebody_else_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "state"
    with State(path):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    before = path.read_bytes()
    assert refusal(path) == (3, "EXPOSED_STATE") and path.read_bytes() == before


def refusal(path):
    """Exit code and name of the refusal to use this file."""
    with pytest.raises(KtcError) as caught:
        State(path)
    return caught.value.exit_code, caught.value.name


def test_two_audits_do_not_share_a_state(tmp_path):
    path = tmp_path / "state"
    with State(path) as state:
        state.add("f", "u", IDENTICAL)
        assert refusal(path) == (3, "BUSY")
        state.add("g", "u", IDENTICAL)
    with State(path) as state:
        assert state.get("g", "u") == IDENTICAL, "and the one refused left it alone"


def test_a_state_that_was_taken_away_meanwhile_is_not_written_to(tmp_path, monkeypatch):
    path, real = tmp_path / "state", fcntl.flock

    def lock(handle, how):
        path.unlink()
        return real(handle, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    assert refusal(path) == (3, "BUSY") and not path.exists()


def test_where_files_cannot_be_locked_an_audit_goes_on(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with State(tmp_path / "state") as state:
        state.add("f", "u", IDENTICAL)


def test_the_end_of_an_audit(tmp_path):
    path = tmp_path / "state"
    with State(path) as state:
        state.begin_sample(SEED)
        state.finish(keep=True)
    with State(path) as state:
        assert state.seed == "", "the next sample is a new one"
        state.finish(keep=False)
    assert not path.exists()


@pytest.mark.parametrize("content", [to_json(Receipt(sample(), [])), "GGUF", "\n", "{}"])
def test_no_other_file_is_written_to(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(KtcError) as caught:
        State(path)
    assert (caught.value.exit_code, caught.value.name) == (3, "NOT_A_STATE")
    assert path.read_text() == content
    with pytest.raises(KtcError):
        State(tmp_path / "absent" / "state")
    with pytest.raises(KtcError):
        State(tmp_path)
