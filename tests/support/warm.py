"""What tests of warm starts share: prompts, engines with a folder of files, and answers of cold ones."""

from __future__ import annotations

import math

from kinetic.engine import Engine
from kinetic.types import SPEED_UPS, PrefixCache, Request, Sampling
from ktc.digest import logits_digest
from tests.support.tiny_recurrent import RECURRENT
from tests.support.whole_models import tokens_of

SETTINGS = (
    Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=-1),
    Sampling(temperature=0.8, seed=7, presence_penalty=0.2, logit_bias=((17, 1.5), (40, -math.inf))),
)
STATEFUL = (*RECURRENT, "granitehybrid")
A, B = tokens_of(100, 700), tokens_of(101, 500)
PROMPTS = (A[:600], B, A[:600] + B[:40], A[:300] + B[:40], A[:300] + B[:40], A, B, [A[0], *B])
"""Unrelated ones, that go on, that fork in an earlier block, the same again, one that has nothing of an earlier one."""

SECRET = b"k" * 32


def digest(row):
    return logits_digest(row.astype("<f4", copy=False).view("u1").data, b"")


def cache(folder, limit=1 << 30, secret=SECRET, known="ab"):
    folder.mkdir(mode=0o700, exist_ok=True)
    return PrefixCache(str(folder), limit, secret, "tiny", known * 32, lambda: known * 32)


def engine_of(tiny, prefixes=None, **options):
    return Engine(tiny.file.gguf, tiny.file.weights, prefixes=prefixes, **{"threads": 2, **options})


def ask(engine, tokens, settings=SETTINGS[1], count=12, keep=True):
    steps = list(engine.generate(Request(tuple(tokens), settings, count), digest=digest))
    if keep:
        engine.keep()
    return steps


def cold(tiny, prompts, settings=SETTINGS[1], count=12):
    engine = engine_of(tiny, threads=1, off=SPEED_UPS)
    found = [ask(engine, prompt, settings, count) for prompt in prompts]
    assert engine.reused == 0 and engine._warm is None
    engine.close()
    return found
