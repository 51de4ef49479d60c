"""Which token is drawn does not depend on the device, nor on what else is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from conformance.answers import SETTINGS, tokens_digest
from conformance.case import F32, Case, Evidence, require
from conformance.recipes import committed, numbers
from conformance.setting import Setting
from kinetic.api import probe
from kinetic.types import Sampling

PROPERTY = "A draw is a function of logits, settings, tokens before it and seed alone, and the same on every device."
OF_MODELS = False

VOCABULARY, ROWS = 4096, 12
SEED = 41

DRAWS = SETTINGS | {
    "top-k": Sampling(temperature=0.9, top_k=3, top_p=1.0, min_p=0.0, seed=3),
    "top-p": Sampling(temperature=1.0, top_k=0, top_p=0.5, min_p=0.0, seed=4),
    "min-p": Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.3, seed=5),
    "typical": Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typ_p=0.4, seed=8),
    "top-n-sigma": Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, top_n_sigma=1.5, seed=9),
    "xtc": Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.1, seed=10),
    "dynamic-temperature": Sampling(temperature=1.0, min_p=0.01, dynatemp_range=0.9, dynatemp_exponent=0.7, seed=11),
    "dry": Sampling(temperature=0.7, dry_multiplier=9.5, dry_allowed_length=1, dry_sequence_breakers=(), seed=12),
    "biased": Sampling(temperature=1.0, logit_bias=((7, 9.5), (8, float("-inf"))), seed=6),
}


def cases(setting: Setting) -> Iterator[Case]:
    for name in DRAWS:
        yield Case(f"{name}/{setting.device}", partial(_run, setting, name))


def rows() -> F32:
    """Logits of a vocabulary larger than those of the built-in models, many of them equal to others."""
    spread = numbers.normals(SEED, 0, ROWS, VOCABULARY) * np.float32(4)
    rounded: F32 = np.floor(spread * np.float32(64)) / np.float32(64)
    return rounded


def history(name: str, number: int) -> list[int]:
    """The tokens before draw ``number``; for DRY the best one followed a copy of the newest."""
    if name != "dry":
        return [5, *range(number)]
    best = int(rows()[number].argmax())
    return [5, *range(number), 17, best, *range(number), 17]


def draws(name: str, device: str) -> list[int]:
    """A token for each row and two completions, drawn after the numbers of the rows before."""
    table = rows()
    with probe.bare(device, width=VOCABULARY) as program:
        return [
            probe.draw(program, row, history(name, number), DRAWS[name], completion)
            for completion in (0, 1)
            for number, row in enumerate(table)
        ]


def _run(setting: Setting, name: str) -> Evidence:
    found, expected = draws(name, setting.device), draws(name, "reference")
    require(found == expected, f"the tokens are {found} on {setting.device}, and {expected} on the reference")
    same = tokens_digest(found) == committed("samplers").get(name)
    require(same, f"the tokens are {found}, and not those committed")
    table, sampling = rows(), DRAWS[name]
    with probe.bare(setting.device, width=VOCABULARY) as program:  # backwards, and beside draws of other seeds
        for number in reversed(range(ROWS)):
            probe.draw(program, table[number], [1], replace(sampling, seed=99))
            again = probe.draw(program, table[number], history(name, number), sampling)
            require(again == found[number], f"draw {number} is {again} after other draws, and {found[number]} before")
    return Evidence(
        f"{len(found)} tokens with the committed digest, on the reference too and in any order", tokens_digest(found)
    )
