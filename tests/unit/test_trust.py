"""Trust: which signatures are enough, and for which reason others are not."""

import pytest

from ktc import signature
from ktc.errors import KtcError, Malformed, SignatureProblem
from ktc.trust import GRAVITY, SCOPES, Trust, TrustedKey, judge, parse_time, pinned

ALICE, BOB, CAROL, EVE = (signature.key_pair(bytes([number]) * 32).public for number in range(4))
A, B, C, E = map(signature.key_id, (ALICE, BOB, CAROL, EVE))
START, END = 1_767_225_600, 1_798_761_600  # 2026-01-01 and 2027-01-01, UTC
NOW = START + 86_400 * 100


def trust(*keys, mode="enforce", revoked=(), receipt=1, bundle=None):
    thresholds = {scope: count for scope, count in (("receipt", receipt), ("bundle", bundle)) if count}
    return Trust(mode, keys, frozenset(revoked), thresholds)


def key(name, public, *scopes, start=None, end=None):
    return TrustedKey(name, public, scopes or ("receipt",), start, end)


def refused(call, *arguments):
    with pytest.raises(KtcError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert sentence.isprintable() and "valid" not in sentence
    return type(caught.value), caught.value.name, sentence


# --- without trust: the word is never said


@pytest.mark.parametrize("told", [None, trust(key("alice", ALICE), mode="off")])
def test_without_trust_nothing_is_called_valid(told):
    assert judge(told, "receipt", [], NOW) == ("unsigned", False, "")
    assert judge(told, "receipt", [A], NOW) == (f"signature consistent, signer unknown (key {A})", False, "")
    both = judge(told, "receipt", [A, B, A], NOW)
    assert both == (f"signatures consistent, signers unknown (keys {A}, {B})", False, "")


# --- enough


def test_a_pinned_key():
    standing = judge(pinned({"alice.pub": ALICE}, "receipt"), "receipt", [A], NOW)
    assert standing == (f"valid signature by alice.pub (key {A})", True, "")


def test_one_of_several_pinned_keys_and_strangers_beside_it():
    told = pinned({"a": ALICE, "b": BOB}, "receipt")
    for signers in ([B], [E, B], [B, E]):
        assert judge(told, "receipt", signers, NOW).sentence == f"valid signature by b (key {B})"


def test_a_threshold_counts_distinct_keys():
    told = trust(key("alice", ALICE), key("bob", BOB), key("carol", CAROL), receipt=2)
    standing = judge(told, "receipt", [C, E, A], NOW)
    assert standing == (f"valid signatures by carol (key {C}) and alice (key {A})", True, "")
    assert refused(judge, told, "receipt", [A, A], NOW)[1] == "THRESHOLD"  # attack 100
    assert refused(judge, told, "receipt", [A, E], NOW)[1] == "THRESHOLD"


def test_names_cannot_steer_a_terminal():
    sentence = judge(pinned({"a\x1b[2J\n": ALICE}, "receipt"), "receipt", [A], NOW).sentence
    assert sentence.isprintable() and "'a\\x1b[2J\\n'" in sentence


# --- not enough: each reason, its name and its sentence


def not_enough(told, signers, at=NOW, scope="receipt"):
    """(name, sentence) of the refusal, after seeing that mode ``warn`` says the same and goes on."""
    kind, name, sentence = refused(judge, told, scope, signers, at)
    assert kind is SignatureProblem and name in GRAVITY
    mild = judge(told._replace(mode="warn"), scope, signers, at)
    assert mild == (judge(None, scope, signers, at).sentence, False, sentence)
    return name, sentence


def test_unsigned():
    assert not_enough(trust(key("alice", ALICE)), []) == (
        "UNSIGNED",
        "the receipt is not signed, and a signature by a pinned key is asked for",
    )
    assert "signatures by 2 pinned keys are asked for" in not_enough(trust(receipt=2), [])[1]


def test_a_key_of_somebody_else():
    """Attack 99: a key carried in the file itself."""
    expected = f"no key that signed the receipt is trusted: key {E} is not one of the pinned keys"
    assert not_enough(trust(key("alice", ALICE)), [E]) == ("UNTRUSTED_KEY", expected)
    assert not_enough(pinned({}, "receipt"), [E]) == ("UNTRUSTED_KEY", expected)


def test_a_revoked_key():
    name, sentence = not_enough(trust(key("alice", ALICE), revoked=[A]), [A])
    assert name == "REVOKED_KEY" and f"key {A} (alice) is revoked" in sentence
    assert not_enough(trust(key("alice", ALICE), revoked=[E]), [E])[0] == "REVOKED_KEY"
    two = trust(key("alice", ALICE), key("bob", BOB), revoked=[A])
    assert judge(two, "receipt", [A, B], NOW).sentence == f"valid signature by bob (key {B})"
    assert not_enough(two._replace(thresholds={"receipt": 2}), [A, B])[0] == "REVOKED_KEY"


@pytest.mark.parametrize(
    ("at", "counts"), [(START - 1, False), (START, True), (END - 1, True), (END, False), (END + 1, False)]
)
def test_times_include_the_first_second_and_not_the_last(at, counts):
    told = trust(key("alice", ALICE, start=START, end=END))
    if counts:
        assert judge(told, "receipt", [A], at).is_trusted
        return
    name, sentence = not_enough(told, [A], at)
    assert name == "EXPIRED_KEY"
    assert ("counts from 2026-01-01T00:00:00Z" if at < START else "counted until 2027-01-01T00:00:00Z") in sentence


def test_only_one_end():
    assert judge(trust(key("alice", ALICE, start=START)), "receipt", [A], 2**40).is_trusted
    assert judge(trust(key("alice", ALICE, end=END)), "receipt", [A], -1).is_trusted


def test_a_key_for_something_else():
    told = trust(key("alice", ALICE, "bundle"), key("bob", BOB), bundle=1)
    name, sentence = not_enough(told, [A])
    assert name == "WRONG_SCOPE" and f"key {A} (alice) is trusted with a bundle, not with a receipt" in sentence
    assert judge(told, "bundle", [A], NOW).is_trusted


@pytest.mark.parametrize("signers", [[], [A]])
def test_a_scope_nobody_is_trusted_with(signers):
    name, sentence = not_enough(trust(key("alice", ALICE, *SCOPES)), signers, scope="bundle")
    assert (name, sentence) == ("WRONG_SCOPE", "nobody is trusted with a bundle: the trust file has no table [bundle]")


def test_too_few():
    told = trust(key("alice", ALICE), key("bob", BOB), receipt=2)
    count = "the receipt has 1 of the 2 trusted signatures that are asked for"
    assert not_enough(told, [A]) == ("THRESHOLD", f"{count}: the other keys that may sign it have not")
    assert not_enough(told, [E])[1].startswith("the receipt has 0 of the 2 trusted signatures")


def test_of_several_reasons_the_gravest_is_told():
    """A signer for each reason; the gravest is taken away, and the next is told."""
    dave, frank = (signature.key_pair(bytes([number]) * 32).public for number in (8, 9))
    told = trust(
        key("alice", ALICE),
        key("bob", BOB, end=START),
        key("carol", CAROL, "bundle"),
        key("dave", dave),
        key("frank", frank),
        revoked=[signature.key_id(dave)],
        receipt=2,
    )
    signers = {
        "UNTRUSTED_KEY": E,
        "THRESHOLD": A,
        "WRONG_SCOPE": C,
        "EXPIRED_KEY": B,
        "REVOKED_KEY": signature.key_id(dave),
    }
    for name in GRAVITY[:-1]:
        assert not_enough(told, list(signers.values()))[0] == name
        assert not_enough(told, list(reversed(signers.values())))[0] == name
        del signers[name]


# --- times on the command line


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("2026-03-14T15:09:26Z", 1_773_500_966),
        ("2026-03-14", 1_773_446_400),
        ("2024-02-29", 1_709_164_800),
        ("0001-01-01", -62_135_596_800),
        ("9999-12-31T23:59:59Z", 253_402_300_799),
    ],
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0",
        "2026",
        "2026-3-14",
        "2026-02-30",
        "2026-03-14T15:09:26",
        "2026-03-14T15:09:26z",
        "2026-03-14T24:00:00Z",
    ]
    + ["2026-03-14T15:09:60Z", "2026-03-14T15:09:26+00:00", "2026-03-14T15:09:26.5Z", "2026-03-14 15:09:26Z"]
    + [
        "2026-03-14Z",
        " 2026-03-14",
        "2026-03-14\n",
        "２０２６-03-14",
        "20260314",
        "2026-W11-6",
        "0000-01-01",
        "\x1b[2J",
    ],
)
def test_what_is_no_time(text):
    assert refused(parse_time, text)[:2] == (Malformed, "BAD_TIME")
