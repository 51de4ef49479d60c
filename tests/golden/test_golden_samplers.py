"""Survivors and probabilities of each sampler against llama.cpp's (draws differ: the generator is another)."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.reference.candidates import candidates
from kinetic.gguf import Gguf
from kinetic.samplers.cuts import top_n_sigma
from kinetic.samplers.dry import Trie
from kinetic.sampling import Sampler, adjusted, survivors, validate
from kinetic.text import load_tokenizer
from kinetic.text.breakers import breaker_runs
from kinetic.types import Sampling

TOLERANCE = 1e-5
CASES = 482
"""So many of the golden cases have our order of samplers. The rest ask for min_keep above 1, or for another order."""

DIFFERENT = {
    "neginf__typical_0.9": "llama.cpp's entropy is NaN where a probability is 0, so what it keeps is arbitrary",
    "large__typical_0.9": "the same: probabilities that vanish in float32",
    "neginf__temp_ext": "llama.cpp counts banned tokens in the largest entropy that the candidates could have",
}
"""Cases that are left out, and why."""

OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_last_n=0)
ORDER = "logit_bias penalties dry top_n_sigma top_k typical top_p min_p xtc temp temp_ext".split()


def settings_of(ops):
    """Our settings for a chain of llama.cpp's samplers, or None if they can't express it."""
    names = [op.split()[0] for op in ops]
    if [name for name in ORDER if name in names] != names:
        return None
    settings = OFF
    for name, *values in map(str.split, ops):
        if name in ("top_p", "min_p", "typical") and int(values[1]) > 1:
            return None  # min_keep is always 1 here; XTC's changes nothing where so many are left
        settings = replace(settings, **fields_of(name, values))
    return settings


def fields_of(name, values):
    if name == "logit_bias":
        pairs = zip(values[::2], values[1::2], strict=True)
        return {"logit_bias": tuple((int(token), float(bias)) for token, bias in pairs)}
    if name == "penalties":
        last_n, repeat, frequency, presence = values
        return {
            "repeat_last_n": int(last_n),
            "repeat_penalty": float(repeat),
            "frequency_penalty": float(frequency),
            "presence_penalty": float(presence),
        }
    if name == "top_k":
        return {"top_k": int(values[0])}
    if name == "dry":
        multiplier, base, allowed, last_n, *breakers = values
        return {
            "dry_multiplier": float(multiplier),
            "dry_base": float(base),
            "dry_allowed_length": int(allowed),
            "dry_penalty_last_n": int(last_n),
            "dry_sequence_breakers": tuple(bytes.fromhex(text).decode() for text in breakers),
        }
    if name == "xtc":
        return {"xtc_probability": float(values[0]), "xtc_threshold": float(values[1])}
    if name == "temp_ext":
        return dict(zip(("temperature", "dynatemp_range", "dynatemp_exponent"), map(float, values), strict=True))
    return {{"temp": "temperature", "typical": "typ_p"}.get(name, name): float(values[0])}


def check_adjusted(name, row, case, settings, breakers):
    """Bias, penalties and DRY alone keep every token: the logits must be llama.cpp's exactly."""
    expected = np.array(case["result"]["logits"], np.float32)[np.argsort(case["result"]["ids"])]
    assert np.array_equal(adjusted(row, case["history"], settings, Trie.of(breakers)), expected), name


def llama_order(result):
    """(logit, id, probability) of llama.cpp's survivors that can be drawn, best first, ties by id."""
    rows = zip(map(float, result["logits"]), result["ids"], result["probs"], strict=True)
    return sorted((row for row in rows if row[0] > -math.inf), key=lambda row: (-row[0], row[1]))


def check_survivors(name, row, case, settings, breakers):
    row = adjusted(row, case["history"], settings, Trie.of(breakers))
    near = top_n_sigma(row, settings.top_n_sigma) if settings.top_n_sigma else row
    is_xtc_due = settings.xtc_probability == 1
    ids, weights = survivors(*candidates(near, settings.top_k, math.inf), settings, is_xtc_due=is_xtc_due)
    theirs = llama_order(case["result"])
    assert len(ids) == len(theirs), name
    total = int(weights.sum())
    for (_, _, probability), weight in zip(theirs, weights.tolist(), strict=True):
        assert abs(weight / total - probability) < TOLERANCE, name
    # llama.cpp's sort leaves open which of equal logits pass a cut: above the last value all must agree.
    decided = [token for logit, token, _ in theirs if logit > theirs[-1][0]]
    assert ids.tolist()[: len(decided)] == decided, name
    assert len(set(row[ids[len(decided) :]].tolist())) == 1, name


def check_greedy(name, row, case, settings, breakers):
    drawn = Sampler(settings, 0, row.size, breakers).draw(row, case["history"], candidates).token
    assert [drawn] == [token for _, token, _ in llama_order(case["result"])], name


@pytest.fixture(scope="module")
def cases(golden):
    folder = golden / "samplers"
    cases = json.loads((folder / "samplers.json").read_text(encoding="utf-8"))["cases"]
    rows = {name: np.load(folder / f"logits_{name}.npy") for name in {case["logits"] for case in cases.values()}}
    return [(name, rows[case["logits"]], case) for name, case in cases.items()]


@pytest.fixture(scope="module")
def tokenizer(golden):
    with Gguf.open(golden / "archs" / "llama-gqa" / "model.gguf") as file:
        return load_tokenizer(file.metadata)


def test_survivors_and_probabilities(cases, tokenizer):
    checked = 0
    for name, row, case in cases:
        settings = settings_of(case["ops"])
        if settings is None or name in DIFFERENT:
            continue
        settings = validate(settings, row.size)
        breakers = breaker_runs(tokenizer, settings.dry_sequence_breakers)
        (check_survivors if settings.temperature > 0 else check_greedy)(name, row, case, settings, breakers)
        if all(op.startswith(("penalties", "logit_bias", "dry")) for op in case["ops"]):
            check_adjusted(name, row, case, settings, breakers)
        checked += 1
    assert checked >= CASES
