"""Steps 10 to 14: answers that an honest rerun does not give, or that contradict themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.receipt_vectors.build import (
    END,
    FILE,
    OK,
    SEED,
    SETTINGS,
    Case,
    Expect,
    changed,
    draws,
    edit,
    ids,
    plain,
    record,
    signed,
    with_output,
)

DIFFERS: Expect = (10, "DIFFERS", 11)
STOP: Expect = (11, "STOP_REASON", 12)
TEXT: Expect = (11, "TEXT", 13)


def cases() -> Iterator[Case]:
    yield from _edited()
    yield from _other_questions()
    yield from _undeclared()
    yield from _claims()
    yield from _cut_and_grown()
    yield from _commits()
    yield from _features()
    yield from _reruns()


def _at(position: int) -> dict[str, Any]:
    return {"position": position}


def _edited() -> Iterator[Case]:
    base = record()
    for position in range(4):
        tokens = [4 if at == position else token for at, token in enumerate(base["output"]["tokens"])]
        lazy, careful = changed(base, "output.tokens", tokens), with_output(base, tokens)
        what = f"Output token {position} is changed"
        yield Case(f"token-{position}-edited", [89], what + ".", plain(lazy), DIFFERS, more=_at(position))
        what += ", and the digest with it."
        yield Case(f"token-{position}-forged", [89], what, plain(careful), DIFFERS, more=_at(position))
    swapped = with_output(base, [1, 3, 2, END])
    yield Case("tokens-swapped", [89], "Two output tokens have changed places.", plain(swapped), DIFFERS, more=_at(1))
    for name, path, value, expect in [
        ("digest", "output.digest", "00" * 32, (11, "OUTPUT_DIGEST", 12)),
        ("text", "text", " red blue green.", TEXT),
        ("text-empty", "text", "", TEXT),
        ("text-space", "text", " red blue green ", TEXT),
        ("text-look-alike", "text", " red blue gr\N{CYRILLIC SMALL LETTER IE}en", TEXT),
        ("text-unnormalised", "text", " red blue gre\u0301en", TEXT),
    ]:
        yield Case(
            f"answer-{name}", [87], f"{path} is changed, the tokens are not.", plain(changed(base, path, value)), expect
        )


def _other_questions() -> Iterator[Case]:
    """The answer is kept and the question changed: the honest engine is asked the question that stands there."""
    base, other = record(), {"draws": draws(1, 4, 3, END)}
    model: Expect = (13, "MODEL", 10)
    for name, path, value in [
        ("blake3", "model.files.0.blake3", "00" * 32),
        ("sha256", "model.files.0.sha256", "00" * 32),
        ("size", "model.files.0.size", 123_457),
        ("architecture", "model.architecture", "gemma3"),
    ]:
        yield Case(f"model-{name}", [89], f"{path} is that of another model.", plain(changed(base, path, value)), model)
    more_files = plain(record(files=[FILE, FILE]))
    yield Case("model-two-files", [89], "The model's file stands there twice.", more_files, model)
    renamed = plain(changed(base, "model.files.0.name", "other.gguf"))
    same = {"question_id": ids(base)["question_id"]}
    yield Case("model-renamed", [89], "The model's file has another name: the same question.", renamed, OK, more=same)
    changes: Any
    for name, changes in [
        ("seed", {"seed": 8}),
        ("temperature", {"temperature": 0.9}),
        ("top-k", {"top_k": 39}),
        ("top-p", {"top_p": 0.94}),
        ("penalty", {"repeat_penalty": 1.1}),
    ]:
        file = plain(record(sampling=SETTINGS | changes))
        what = f"{name} is changed to one that gives another second token."
        yield Case(f"setting-{name}", [89], what, file, DIFFERS, engine=other, more=_at(1))
    prompt = plain(record(prompt=[3, 1, 5]))
    yield Case("prompt-forged", [89], "Another prompt with its digest.", prompt, DIFFERS, engine=other, more=_at(1))
    greedy = SETTINGS | {"temperature": 0, "seed": 99}
    what = "At temperature 0 the seed can't matter, so another one is another question with the same answer."
    yield Case("seed-at-temperature-0", [89], what, plain(record(sampling=greedy)), OK)
    index = plain(record(completion_index=1))
    yield Case(
        "completion-index", [89], "Another completion of the question.", index, DIFFERS, engine=other, more=_at(1)
    )


def _undeclared() -> Iterator[Case]:
    what = "was used and is not declared, so the honest engine draws otherwise."
    for name in ("adapter", "grammar", "bias", "rope-scaling", "cache-type"):
        engine = {"draws": draws(1, 2, 4)}
        file = plain(record())
        yield Case(f"undeclared-{name}", [92], f"A {name} {what}", file, DIFFERS, engine=engine, more=_at(2))


def _claims() -> Iterator[Case]:
    base = record()
    entries = json.loads(signed(base))["signatures"]
    for path, value in [
        ("claims.device_class", "abacus"),
        ("claims.device_name", "a faster one"),
        ("claims.engine_id", "00" * 32),
        ("claims.engine_version", "9.9.9"),
        ("claims.time", "1999-12-31T23:59:60Z"),
        ("clock", "noon"),
        ("bundle", "00" * 32),
        ("certificate", "00" * 32),
        ("ext", {"note": "believe me"}),
        ("commitments", [{"name": "a", "digest": "00" * 32}]),
        ("model.files.0.name", "gpt.gguf"),
    ]:
        name, other = path.rpartition(".")[2].replace("_", "-"), changed(base, path, value)
        what = f"{path} is a claim that no rerun can prove or disprove."
        same = {"question_id": ids(base)["question_id"]}
        yield Case(f"claim-{name}", [90], what, plain(other), OK, more=same)
        what = f"{path} of a signed receipt is changed."
        yield Case(f"claim-{name}-signed", [90], what, plain(other, entries), (12, "BAD_SIGNATURE", 8))


def _cut_and_grown() -> Iterator[Case]:
    base = record()
    for count in range(4):
        cut = with_output(base, base["output"]["tokens"][:count])
        yield Case(f"cut-to-{count}", [86], f"Only {count} tokens are left of four.", plain(cut), STOP)
    lazy = plain(changed(base, "output.tokens", [1, 2]))
    yield Case(
        "cut-without-digest", [86], "Two tokens are left, and the digest of four.", lazy, (11, "OUTPUT_DIGEST", 12)
    )
    prefix = plain(with_output(base, [1, 2]) | {"text": " red blue", "stop": base["stop"] | {"reason": "interrupt"}})
    what = "Cut, and said to be interrupted: that is true of every beginning, and the verdict says it is one."
    yield Case("cut-as-interrupted", [86], what, prefix, OK)
    for name, tokens, drawn, expect in [
        ("after-end", [1, 2, 3, END, 4], draws(1, 2, 3, END, 5), DIFFERS),
        ("after-end-as-drawn", [1, 2, 3, END, 4], draws(1, 2, 3, END, 4), STOP),
        ("end-twice", [1, 2, 3, END, END], draws(1, 2, 3, END, END), STOP),
    ]:
        more = _at(4) if expect is DIFFERS else {}
        grown = plain(with_output(base, tokens))
        yield Case(
            f"token-{name}", [86], "Tokens stand behind the end token.", grown, expect, {}, {"draws": drawn}, more
        )


def _commits() -> Iterator[Case]:
    engine = {"draws": [draw | {"commit": f"{at:02x}" * 8} for at, draw in enumerate(draws(1, 2, 3, END))]}
    right = [f"{at:02x}" * 8 for at in range(4)]
    good = record(logit_commit=right)
    yield Case("commits", [89], "Each token with the digest of its logits.", plain(good), OK, engine=engine)
    for name, what, commits, expect in [
        ("other", "The digest of one token's logits is another.", [*right[:3], "ff" * 8], (10, "LOGITS_DIFFER", 14)),
        ("swapped", "Two digests have changed places.", [right[1], right[0], *right[2:]], (10, "LOGITS_DIFFER", 14)),
        ("fewer", "One digest less than tokens.", right[:3], (11, "LOGIT_COMMIT", 12)),
        ("more", "One digest more than tokens.", [*right, "04" * 8], (11, "LOGIT_COMMIT", 12)),
        ("short", "A digest of seven bytes.", [*right[:3], "00" * 7], (11, "BAD_HEX", 5)),
    ]:
        more = _at({"other": 3, "swapped": 0}[name]) if expect[0] == 10 else {}
        file = plain(good | {"logit_commit": commits})
        yield Case(f"commits-{name}", [87, 89], what, file, expect, engine=engine, more=more)
    edited = plain(with_output(good, [1, 4, 3, END]))
    what = "A token is changed: it is named, not its digest."
    yield Case("commits-token-edited", [89], what, edited, DIFFERS, engine=engine, more=_at(1))


def _features() -> Iterator[Case]:
    adapter = FILE._asdict() | {"scale": "1"}
    changes: Any
    for name, changes in [
        ("adapters", {"adapters": [adapter]}),
        ("grammar", {"grammar": "00" * 32}),
        ("context_size", {"overrides": {"context": 64}}),
        ("kv_q8_0", {"overrides": {"cache_type_k": "q8_0"}}),
        ("kv_f32", {"overrides": {"cache_type_v": "f32"}}),
        ("rope", {"overrides": {"rope_freq_base": 1e6}}),
        ("dry", {"sampling": {"dry_multiplier": 0.8}}),
        ("xtc", {"sampling": {"xtc_probability": 0.5}}),
        ("typ_p", {"sampling": {"typ_p": 0.9}}),
        ("top_n_sigma", {"sampling": {"top_n_sigma": 1}}),
        ("dynatemp", {"sampling": {"dynatemp_range": 0.5}}),
        ("mirostat", {"sampling": {"mirostat": 2}}),
        ("sampler_order", {"sampling": {"samplers": ["temperature", "top_k"]}}),
    ]:
        file = plain(record(**changes))
        what = f"The answer needs {name}, which this engine does not rerun to the bit."
        lacks = {"lacks": [name]}
        yield Case(f"feature-{name.replace('_', '-')}", [92], what, file, (13, "FEATURE", 10), engine=lacks)


def _reruns() -> Iterator[Case]:
    file, cost = plain(record()), (14, "RERUN_COST", 10)
    yield Case("rerun-cost", [83], "Seven tokens where a rerun may take six.", file, cost, options={"limit": 6})
    yield Case("rerun-cost-exact", [83], "Seven tokens where a rerun may take seven.", file, OK, options={"limit": 7})
    ended: Expect = (13, "REPLAY_ENDED", 11)
    yield Case(
        "rerun-ends", [110], "The rerun breaks off after two tokens.", file, ended, engine={"draws": draws(1, 2)}
    )
    yield Case("rerun-gives-nothing", [110], "The rerun gives nothing at all.", file, ended, engine={"draws": []})
    good = signed(record(), SEED)
    other = edit('"text": " red blue green"', '"text": " red blue"', of=good)
    what = "A broken signature is told before anything is rerun."
    yield Case("rerun-not-reached", [110], what, other, (12, "BAD_SIGNATURE", 8), engine={"draws": []})
