"""Receipts of every family, true and changed: reading them in batches and decoding again give one verdict."""

from __future__ import annotations

import copy

import pytest

from kinetic.api.model import Model
from kinetic.api.verify import Checker
from ktc.digest import token_digest

COUNT = 12


def spoken(record, tokens, **stop):
    """With other output tokens."""
    record["output"] = {"tokens": tokens, "digest": token_digest(tokens)}
    record["stop"] |= stop
    record["logit_commit"] = record["logit_commit"][: len(tokens)]


def forged(record):
    tokens = record["output"]["tokens"]
    spoken(record, [*tokens[:5], (tokens[5] + 1) % 290, *tokens[6:]])


def shortened(record):
    spoken(record, record["output"]["tokens"][:7])


def interrupted(record):
    spoken(record, record["output"]["tokens"][:7], reason="interrupt")
    record["text"] = record.pop("first")


CHANGES = {
    "true": (lambda record: None, (0, "IDENTICAL", -1)),
    "forged": (forged, (10, "DIFFERS", 5)),
    "seed": (lambda record: record["sampling"].update(seed="8"), (10, "DIFFERS", None)),
    "temperature": (lambda record: record["sampling"].update(temperature="0"), (10, "DIFFERS", None)),
    "shortened": (shortened, (11, "STOP_REASON", -1)),
    "interrupted": (interrupted, (0, "IDENTICAL", -1)),
    "logits": (lambda record: record["logit_commit"].__setitem__(9, "00" * 8), (10, "LOGITS_DIFFER", 9)),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))


def answer(path):
    """A receipt of ``COUNT`` tokens drawn nearly at random, and what the first seven of them say."""
    with Model(path, threads=1, pack_cache=False) as model:
        hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}
        never = [(token, float("-inf")) for token in sorted(model.tokenizer.end_tokens)]
        asked = {"raw": True, "max_tokens": COUNT, "commit_logits": True, "logit_bias": never, **hot}
        given = model.generate("hello wo", **asked)
        first = model.generate("hello wo", **asked | {"max_tokens": 7}).text
    return given.receipt(), first


def test_both_methods_give_one_verdict(tiny, home):
    record, first = answer(tiny.path)
    with Checker(tiny.path, threads=2, pack_cache=False) as checker:
        for name, (change, expected) in CHANGES.items():
            changed = copy.deepcopy(record) | ({"first": first} if change is interrupted else {})
            change(changed)
            verdicts = []
            for method in ("replay", "decode"):
                checker.method = method
                verdicts.append(checker.rerun_record(changed))
            by_replay, by_decoding = verdicts
            assert by_replay._replace(method="", sentence="") == by_decoding._replace(method="", sentence=""), name
            assert (by_replay.exit_code, by_replay.name) == expected[:2], (name, by_replay.sentence)
            assert expected[2] is None or by_replay.position == expected[2], name
