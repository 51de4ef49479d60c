"""From one device to another: a GPU's kernels beside the processor's, or the other way round.

OpenCL's device may be a processor too (PoCL): the kernels are the same, and so are the bits.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from conformance.answers import tokens_digest
from conformance.case import Case, Evidence, counted, require, require_rows, row_digests, together
from conformance.cases.neighbours import mixed
from conformance.cases.rows import GROUPS
from conformance.recipes import expected
from conformance.setting import Setting, Subject
from kinetic.api import Model
from kinetic.api.verify import Checker

PROPERTY = "Every device gives the same rows, whatever is in a batch, and a receipt of one verifies on another."
OF_MODELS = True

FEW = ("llama-mixed", "gemma3-mixed", "qwen3moe-mixed", "lfm2-mixed", "qwen35-mixed")
"""Keys alone, windows, experts, and two kinds of recurrent state: the models of a quick run, and of receipts."""

BATCHES = ("llama-mixed", "lfm2-mixed")
"""Those tried with every number of rows."""

BESIDE = "lfm2-mixed"
"""The one, of keys and states, that is tried with other sequences in its batches."""

PASSES = (1, 2, 7, 8, 9, 31, 32, 33, 63, 64)
"""Rows of the passes that a model's rows are read in; the last repeats."""

QUESTION = {"raw": True, "max_tokens": 8, "temperature": 0.8, "seed": 12, "commit_logits": True}
PROMPT = "the quick brown fox"


def cases(setting: Setting) -> Iterator[Case]:
    for device in setting.others:
        for subject in setting.subjects:
            is_one_of_few = subject.recipe is None or subject.name in FEW
            if is_one_of_few or not setting.is_quick:
                yield Case(f"{subject.name}/{device}", partial(_rows, setting, subject, device))
            if subject.name in BATCHES and not setting.is_quick:
                yield Case(f"{subject.name}/{device}-batches", partial(_batches, setting, subject, device))
            if subject.name == BESIDE and not setting.is_quick:
                yield Case(f"{subject.name}/{device}-neighbours", partial(_neighbours, setting, subject, device))
            if is_one_of_few and (not setting.is_quick or subject.recipe is None or subject.name == FEW[0]):
                for name, ways in {"to": (setting.device, device), "from": (device, setting.device)}.items():
                    yield Case(f"{subject.name}/{name}-{device}", partial(_receipt, setting, subject, *ways))


def _rows(setting: Setting, subject: Subject, device: str) -> Evidence:
    """Against the committed digest; row by row only where it is another, to say where."""
    setting.require(device)
    found, hasher = [], blake3()
    for rows in subject.probe(device=device).feed(subject.tokens, PASSES):
        hasher.update(np.ascontiguousarray(rows, "<f4").view("u1").data)
        found += row_digests(rows)
    committed = expected().get(subject.name) if subject.recipe and subject.rows == subject.recipe.rows else None
    if committed is None or hasher.hexdigest() != committed.logits:
        _require_same(found, subject.plain.rows, f"on {device}")
        require(committed is None, "the logits are not those that were committed, on any device")
    return Evidence(counted(len(found), f"bit for bit those on {setting.device}"), together(found))


def _require_same(found: Sequence[bytes], plain: Sequence[bytes], where: str) -> None:
    for place, (one, other) in enumerate(zip(found, plain, strict=True)):
        require(one == other, f"row {place} {where} has other bits")


def _batches(setting: Setting, subject: Subject, device: str) -> Evidence:
    setting.require(device)
    alone, found = subject.plain.rows, []
    for size in [size for sizes in GROUPS for size in sizes if size <= len(subject.tokens)]:
        probe = subject.probe(device=device)
        found += require_rows(probe.feed(subject.tokens[:size], [size]), alone, f"in a batch of {size} on {device}")
    return Evidence(counted(len(found)), together(found))


def _neighbours(setting: Setting, subject: Subject, device: str) -> Evidence:
    setting.require(device)
    found = mixed(setting, subject, "uneven", device)
    return Evidence(counted(len(found), "bit for bit those of each sequence alone"), together(found))


def _receipt(setting: Setting, subject: Subject, here: str, there: str) -> Evidence:
    """An answer of ``here``, with digests of its logits, rerun ``there``."""
    for device in (here, there):
        setting.require(device)
    setting.close()  # one model in memory at a time
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        receipt = Path(folder) / "answer.json"
        with Model(subject.path, device=here, threads=1, pack_cache=False, progress=setting.news) as model:
            answer = model.generate(PROMPT, **QUESTION)  # type: ignore[arg-type]
            answer.save_receipt(receipt)
        claims = json.loads(receipt.read_text(encoding="utf-8"))["receipt"]["claims"]
        kind = here.partition(":")[0]
        require(claims["device_class"] == kind, f"the receipt says {claims['device_class']}, and {kind} answered")
        with Checker(subject.path, device=there, pack_cache=False, progress=setting.news) as checker:
            verdict = checker.verify(receipt)
    require(verdict.exit_code == 0, f"made on {here}, on {there}: {verdict.exit_code} {verdict.name}")
    return Evidence(f"{len(answer.tokens)} tokens of {here}, identical on {there}", tokens_digest(answer.tokens))
