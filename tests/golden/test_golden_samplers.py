"""Survivors and probabilities of each sampler against llama.cpp's (draws differ: the generator is another)."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.reference.candidates import candidates
from kinetic.sampling import Sampler, adjusted, survivors, validate
from kinetic.types import Sampling

TOLERANCE = 1e-5
CASES = 304
"""So many of the golden cases consist of samplers that exist here, in the order in which they run here."""

OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_last_n=0)
ORDER = ["logit_bias", "penalties", "top_k", "top_p", "min_p", "temp"]
NEUTRAL = {"dry 0.0", "typical 1.0", "xtc 0.0", "top_n_sigma -1"}
"""Samplers that do not exist here yet, switched off in llama.cpp's default chain."""


def settings_of(ops):
    """Our settings for a chain of llama.cpp's samplers, or None if they can't express it."""
    ops = [op for op in ops if not any(op.startswith(neutral) for neutral in NEUTRAL)]
    names = [op.split()[0] for op in ops]
    if [name for name in ORDER if name in names] != names:
        return None
    settings = OFF
    for name, *values in map(str.split, ops):
        if name in ("top_p", "min_p") and int(values[1]) > 1:
            return None  # min_keep is always 1 here
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
    return {{"temp": "temperature"}.get(name, name): float(values[0])}


def check_adjusted(name, row, case, settings):
    """Bias and penalties alone keep every token: the logits must be llama.cpp's exactly."""
    expected = np.array(case["result"]["logits"], np.float32)[np.argsort(case["result"]["ids"])]
    assert np.array_equal(adjusted(row, case["history"], settings), expected), name


def llama_order(result):
    """(logit, id, probability) of llama.cpp's survivors that can be drawn, best first, ties by id."""
    rows = zip(map(float, result["logits"]), result["ids"], result["probs"], strict=True)
    return sorted((row for row in rows if row[0] > -math.inf), key=lambda row: (-row[0], row[1]))


def check_survivors(name, row, case, settings):
    row = adjusted(row, case["history"], settings)
    ids, weights = survivors(*candidates(row, settings.top_k, math.inf), settings)
    theirs = llama_order(case["result"])
    assert len(ids) == len(theirs), name
    total = int(weights.sum())
    for (_, _, probability), weight in zip(theirs, weights.tolist(), strict=True):
        assert abs(weight / total - probability) < TOLERANCE, name
    # llama.cpp's sort leaves open which of equal logits pass a cut: above the last value all must agree.
    decided = [token for logit, token, _ in theirs if logit > theirs[-1][0]]
    assert ids.tolist()[: len(decided)] == decided, name
    assert len(set(row[ids[len(decided) :]].tolist())) == 1, name


def check_greedy(name, row, case, settings):
    drawn = Sampler(settings, 0, row.size).draw(row, case["history"], candidates).token
    assert [drawn] == [token for _, token, _ in llama_order(case["result"])], name


@pytest.fixture(scope="module")
def cases(golden):
    folder = golden / "samplers"
    cases = json.loads((folder / "samplers.json").read_text(encoding="utf-8"))["cases"]
    rows = {name: np.load(folder / f"logits_{name}.npy") for name in {case["logits"] for case in cases.values()}}
    return [(name, rows[case["logits"]], case) for name, case in cases.items()]


def test_survivors_and_probabilities(cases):
    checked = 0
    for name, row, case in cases:
        settings = settings_of(case["ops"])
        if settings is None:
            continue
        settings = validate(settings, row.size)
        (check_survivors if settings.temperature > 0 else check_greedy)(name, row, case, settings)
        if all(op.startswith(("penalties", "logit_bias")) for op in case["ops"]):
            check_adjusted(name, row, case, settings)
        checked += 1
    assert checked >= CASES
