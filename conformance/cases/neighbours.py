"""What else is in a batch does not matter: other sequences, at other lengths, drawn with other settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from conformance.answers import SETTINGS, plain_steps, request, tokens_digest
from conformance.case import Case, Evidence, counted, require, require_rows, row_digests, together
from conformance.setting import Setting, Subject, tokens_of
from kinetic.types import Batch, Request

PROPERTY = "A sequence's rows and tokens are those it has alone, whatever else is computed in the same batches."
OF_MODELS = True

SHARES = {"in-turn": (1, 1, 1), "uneven": (5, 1, 17), "one-long": (300, 3, 40)}
"""Rows that three sequences put into a batch by turns."""

DECODED = 12


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        for name in SHARES:
            yield Case(f"{subject.name}/{name}", partial(_mixed, setting, subject, name))
        yield Case(f"{subject.name}/other-settings", partial(_other_settings, setting, subject))


def _mixed(setting: Setting, subject: Subject, name: str) -> Evidence:
    digests = mixed(setting, subject, name)
    return Evidence(counted(len(digests), "bit for bit those of each sequence alone"), together(digests))


def mixed(setting: Setting, subject: Subject, name: str, device: str = "") -> list[bytes]:
    """Three sequences of different lengths in one pass. Digests of their rows."""
    length, vocabulary = len(subject.tokens), max(subject.tokens) + 1
    pending = {0: subject.tokens}
    pending |= {1: tokens_of(length // 4 + 1, vocabulary, 1), 2: tokens_of(length // 2, vocabulary, 2)}
    expected = {0: subject.plain.rows}
    probe = subject.probe(device=device, threads=setting.threads)
    for sequence in (1, 2):
        expected[sequence] = [d for rows in probe.feed(pending[sequence], [1], 0, 3) for d in row_digests(rows)]
        probe.forget(3)
    batch = _together(pending, SHARES[name])
    found = probe.run(batch)
    digests = []
    for sequence, alone in expected.items():
        rows = found[np.array(batch.sequences) == sequence]
        digests += require_rows([rows], alone, f"of sequence {sequence} among others")
    return digests


def _together(pending: dict[int, list[int]], shares: Sequence[int]) -> Batch:
    """Takes ``shares[s]`` rows of sequence s in turn until all are gone; positions ascend within each."""
    place = dict.fromkeys(pending, 0)
    rows: list[tuple[int, int, int]] = []
    while any(place[s] < len(pending[s]) for s in pending):
        for sequence, share in zip(pending, shares, strict=True):
            end = min(place[sequence] + share, len(pending[sequence]))
            rows += [(pending[sequence][i], i, sequence) for i in range(place[sequence], end)]
            place[sequence] = end
    tokens, positions, sequences = zip(*rows, strict=True)
    return Batch(tokens, positions, sequences, tuple(range(len(rows))))


def _other_settings(setting: Setting, subject: Subject) -> Evidence:
    """Answers that grow side by side, each token drawn by its own sequence's settings."""
    asked = [request(subject, sampling, 8 + 5 * n, DECODED) for n, sampling in enumerate(SETTINGS.values())]
    alone = [[step.token for step in plain_steps(subject, one)] for one in asked]
    beside = _side_by_side(setting, subject, asked)
    for name, found, plain in zip(SETTINGS, beside, alone, strict=True):
        require(found == plain, f"the {name} answer beside three others is {found}, and {plain} alone")
    tokens = [token for answer in beside for token in answer]
    return Evidence(f"{len(tokens)} tokens of {len(asked)} answers, those of each answer alone", tokens_digest(tokens))


def _side_by_side(setting: Setting, subject: Subject, asked: Sequence[Request]) -> list[list[int]]:
    probe = subject.probe(threads=setting.threads)
    histories = [list(one.prompt) for one in asked]
    batch = _together(dict(enumerate(histories)), [7] * len(asked))
    ends = [max(i for i, s in enumerate(batch.sequences) if s == n) for n in range(len(asked))]
    rows = probe.run(batch)[ends]
    for _ in range(DECODED):
        for history, row, one in zip(histories, rows, asked, strict=True):
            history.append(probe.draw(row, history, one.sampling))
        tokens, positions = zip(*((history[-1], len(history) - 1) for history in histories), strict=True)
        count = len(histories)
        rows = probe.run(Batch(tokens, positions, tuple(range(count)), tuple(range(count))))
    return [history[len(one.prompt) :] for history, one in zip(histories, asked, strict=True)]
