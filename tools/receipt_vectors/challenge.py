"""Steps 6 and 9: challenges and their seeds; and prompts that are withheld, with their openings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ktc.digest import token_digest, withheld_commitment
from receipts.identity import challenge_seed, receipt_id
from tools.receipt_vectors.build import (
    ENGINE,
    FILE,
    OK,
    PROMPT,
    SEED,
    Case,
    Expect,
    changed,
    draws,
    ids,
    packed,
    plain,
    record,
    signed,
)

WANTED, OTHER = "c0" * 16, "c1" * 16
SALT = bytes(range(100, 132))


def cases() -> Iterator[Case]:
    yield from _challenges()
    yield from _idle()
    yield from _withheld()
    yield from _openings()


def answering(challenge: str, **changes: Any) -> Any:
    """A receipt whose seed is the one that the challenge gives."""
    return seeded(record(**changes), challenge)


def seeded(made: Any, challenge: str = WANTED) -> Any:
    """The same receipt as an answer to a challenge."""
    made = made | {"challenge": challenge}
    return changed(made, "sampling.seed", challenge_seed(made))


def _challenges() -> Iterator[Case]:
    good, wrong_seed, refused = answering(WANTED), (11, "CHALLENGE_SEED", 6), (12, "CHALLENGE", 9)
    asked = {"challenge": WANTED}
    yield Case("challenge", [95, 111], "A receipt that answers its challenge.", plain(good), OK, asked, more=ids(good))
    for size in (16, 64):
        made = answering("5a" * size)
        what = f"A challenge of {size} bytes."
        yield Case(f"challenge-{size}-bytes", [95], what, plain(made), OK, {"challenge": "5a" * size}, more=ids(made))
    yield Case("challenge-not-asked", [95], "A challenge that nobody asks for now.", plain(good), OK)
    what = "A challenge, and a critical extension that is not there: the question can't be told."
    yield Case("challenge-crit-absent", [95, 105], what, plain(good | {"crit": ["a"]}), (11, "CRITICAL", 6))
    for name, what, file, expect in [
        ("sent-again", "The answer to another challenge, sent again.", plain(answering(OTHER)), refused),
        ("none", "A receipt that answers no challenge.", plain(record()), refused),
        (
            "swapped-in",
            "The challenge is put into an old receipt.",
            plain(record() | {"challenge": WANTED}),
            wrong_seed,
        ),
        ("picked-seed", "The seed is one that was picked.", plain(changed(good, "sampling.seed", "8")), wrong_seed),
        ("removed", "The challenge is taken out.", plain(good | {"challenge": ""}), refused),
        (
            "prompt-changed",
            "The prompt is another than the seed was made for.",
            plain(good | _prompt([3, 1, 5])),
            wrong_seed,
        ),
        (
            "setting-changed",
            "A setting is another than the seed was made for.",
            plain(changed(good, "sampling.top_k", 41)),
            wrong_seed,
        ),
        (
            "index-changed",
            "Another completion of the question needs another seed.",
            plain(good | {"completion_index": 1}),
            wrong_seed,
        ),
    ]:
        yield Case(f"challenge-{name}", [95], what, file, expect, asked)
    for name, value in [("short", "c0" * 15), ("long", "c0" * 65), ("odd", "c0" * 16 + "c"), ("capitals", "C0" * 16)]:
        what = "A challenge that is not 16 to 64 bytes in lower-case hex."
        yield Case(f"challenge-{name}", [95], what, plain(record() | {"challenge": value}), (11, "BAD_HEX", 5), asked)
    full = plain(answering(WANTED, output=[1, 2, 3], stop_reason="context", overrides={"context": 6}))
    what = "The size of the context is known only afterwards, so the seed does not depend on it."
    yield Case("challenge-context", [95], what, full, OK, asked, {"draws": draws(1, 2, 3)})
    signed_well = signed(good, SEED)
    yield Case("challenge-signed", [95], "A signed answer to a challenge.", signed_well, OK, asked)


IDLE: dict[str, tuple[str, dict[str, Any]]] = {
    "penalty-window": ("How far penalties reach, where there is none", {"repeat_last_n": 64}),
    "repeat-penalty": ("A penalty for repetition among no tokens", {"repeat_penalty": "1.5"}),
    "frequency-penalty": ("A penalty for frequency among no tokens", {"frequency_penalty": "0.5"}),
    "presence-penalty": ("A penalty for presence among no tokens", {"presence_penalty": "-0.5"}),
    "xtc-threshold": ("The threshold of XTC that is off", {"xtc_threshold": "0.2"}),
    "xtc-probability": ("XTC with a threshold that no two reach", {"xtc_probability": "0.5", "xtc_threshold": "0.6"}),
    "dynatemp-exponent": ("The exponent of a dynamic temperature without a range", {"dynatemp_exponent": "2"}),
    "dry-base": ("The base of DRY that is off", {"dry_base": "2"}),
    "dry-allowed-length": ("The allowed length of DRY that is off", {"dry_allowed_length": 3}),
    "dry-window": ("How far DRY reaches, where it is off", {"dry_penalty_last_n": 64}),
    "dry-breakers": ("Sequence breakers of DRY that is off", {"dry_sequence_breakers": [":"]}),
    "dry-multiplier": ("DRY among no tokens", {"dry_multiplier": "0.8", "dry_penalty_last_n": 0}),
    "dry-low-base": ("DRY with a base below 1", {"dry_multiplier": "0.8", "dry_base": "0.5"}),
    "mirostat-tau": ("The target of Mirostat that is off", {"mirostat_tau": "6"}),
    "mirostat-eta": ("The rate of Mirostat that is off", {"mirostat_eta": "0.2"}),
    "bias": ("A bias of 0", {"logit_bias": [{"token": 1, "bias": "0"}]}),
}
"""Settings that have no effect, and are not plain."""


def _idle() -> Iterator[Case]:
    refused: Expect = (11, "CHALLENGE_SETTING", 6)
    asked = {"challenge": WANTED}
    for name, (what, settings) in IDLE.items():
        made = changed(record(), "sampling", record()["sampling"] | settings)
        what = f"{what}: the seed could be chosen with it."
        yield Case(f"challenge-idle-{name}", [95], what, plain(seeded(made)), refused, asked)
    adapter = FILE._asdict() | {"name": "lora.gguf", "scale": "0"}
    what = "An adapter of scale 0, which may be any file: the seed could be chosen with it."
    yield Case("challenge-idle-adapter", [95], what, plain(seeded(record(adapters=[adapter]))), refused, asked)
    made = changed(record(), "sampling.repeat_last_n", 64)
    what = "A setting that has no effect, where there is no challenge."
    yield Case("challenge-none-idle", [95], what, plain(made), OK, more=ids(made))
    used = {"repeat_last_n": 64, "repeat_penalty": "1.5", "xtc_probability": "0.5", "xtc_threshold": "0.5"}
    made = seeded(changed(record(), "sampling", record()["sampling"] | used))
    what = "Settings of samplers that are on may be any."
    yield Case("challenge-used-settings", [95], what, plain(made), OK, asked, more=ids(made))


def _prompt(tokens: list[int]) -> dict[str, Any]:
    return {"prompt": {"tokens": tokens, "digest": token_digest(tokens), "commitment": ""}}


def withheld(made: Any = None) -> Any:
    """A receipt with a commitment in place of its prompt."""
    prompt = {"tokens": [], "digest": "", "commitment": withheld_commitment(SALT, PROMPT)}
    return (made or record()) | {"prompt": prompt}


def opening(made: Any, **changes: Any) -> dict[str, str]:
    """The option that opens a receipt, with other fields than its own."""
    fields: dict[str, Any] = {
        "type": "kinetic-opening",
        "version": 1,
        "receipt_id": receipt_id(made),
        "salt": SALT.hex(),
        "tokens": PROMPT,
    }
    return {"opening": json.dumps(fields | changes)}


def _withheld() -> Iterator[Case]:
    kept, prompt_error, closed = withheld(), (11, "PROMPT", 6), (13, "WITHHELD", 10)
    commitment = kept["prompt"]["commitment"]
    yield Case(
        "withheld", [96, 111], "A withheld prompt and its opening.", plain(kept), OK, opening(kept), more=ids(kept)
    )
    yield Case("withheld-cbor", [96], "The same in CBOR.", packed(kept), OK, opening(kept))
    yield Case("withheld-closed", [96], "A withheld prompt without its opening.", plain(kept), closed)
    for name, what, prompt in [
        (
            "with-digest",
            "The plain digest beside the commitment: a short prompt could be guessed.",
            {"digest": token_digest(PROMPT)},
        ),
        ("with-tokens", "The tokens beside the commitment.", {"tokens": PROMPT}),
        (
            "digest-alone",
            "Only the plain digest: no salt keeps it from being guessed.",
            {"digest": token_digest(PROMPT), "commitment": ""},
        ),
        ("nothing", "Neither tokens nor a commitment.", {"commitment": ""}),
    ]:
        file = plain(kept | {"prompt": kept["prompt"] | prompt})
        yield Case(f"withheld-{name}", [96], what, file, prompt_error, opening(kept))
    unsalted = kept | {"prompt": kept["prompt"] | {"commitment": token_digest(PROMPT)}}
    what = "An unsalted digest in place of the commitment: no opening can show it."
    yield Case("withheld-unsalted", [96], what, plain(unsalted), (11, "OPENING", 10), opening(unsalted))
    for name, path, value in [
        ("short", "prompt.commitment", commitment[:-2]),
        ("salted", "prompt.commitment", SALT.hex() + commitment),
    ]:
        file = plain(changed(kept, path, value))
        yield Case(f"withheld-commitment-{name}", [96], "A commitment of another length.", file, (11, "BAD_HEX", 5))
    commits = [f"{at:02x}" * 8 for at in range(4)]
    engine = {"draws": [draw | {"commit": commits[at]} for at, draw in enumerate(ENGINE["draws"])]}
    made = kept | {"logit_commit": commits}
    yield Case(
        "withheld-commits", [96], "A withheld prompt and digests of the logits.", plain(made), OK, opening(made), engine
    )


def _openings() -> Iterator[Case]:
    kept, wrong = withheld(), (11, "OPENING", 10)
    changes: Any
    for name, what, changes, expect in [
        ("other-salt", "Another salt.", {"salt": "00" * 32}, wrong),
        ("other-tokens", "Other tokens.", {"tokens": [3, 1, 5]}, wrong),
        ("no-tokens", "No tokens.", {"tokens": []}, wrong),
        ("other-receipt", "The opening of another receipt.", {"receipt_id": "00" * 32}, wrong),
        ("no-salt", "An empty salt.", {"salt": ""}, (11, "BAD_HEX", 5)),
        ("short-salt", "A salt of 16 bytes.", {"salt": "00" * 16}, (11, "BAD_HEX", 5)),
        ("unknown-field", "A field that no opening has.", {"text": "Hi"}, (11, "UNKNOWN_FIELD", 5)),
        ("negative-token", "A negative token.", {"tokens": [-1]}, (11, "OUT_OF_RANGE", 5)),
        ("other-type", "Another kind of document.", {"type": "kinetic-receipt"}, (11, "NOT_AN_OPENING", 5)),
        ("newer", "A later version.", {"version": 2}, (13, "VERSION", 5)),
        ("boolean-version", "True as the version.", {"version": True}, (11, "WRONG_TYPE", 5)),
    ]:
        yield Case(f"opening-{name}", [96], what, plain(kept), expect, opening(kept, **changes))
    twice = {"opening": opening(kept)["opening"].replace('"version"', '"salt": "' + "00" * 32 + '", "version"')}
    yield Case(
        "opening-salt-twice", [78, 96], "The salt stands there twice.", plain(kept), (11, "DUPLICATE_KEY", 2), twice
    )
    empty: Expect = (11, "BAD_JSON", 2)
    yield Case("opening-empty", [96], "An empty opening.", plain(kept), empty, {"opening": ""})
    yield Case(
        "opening-of-open-prompt",
        [96],
        "An opening for a prompt that is shown.",
        plain(record()),
        (11, "OPENING", 10),
        opening(record()),
    )
