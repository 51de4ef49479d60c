"""Plain decoding against every speed-up: the same tokens, from logits with the same bits.

Plain decoding reads the prompt too one row at a time, on one thread, with nothing kept from before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from conformance.answers import SETTINGS, evidence, plain_steps, request, require_same_steps
from conformance.case import Case, Evidence, Skipped, require
from conformance.kept_packs import KeptPacks
from conformance.setting import Setting, Subject
from kinetic.api.probe import Probe, keeps_packs
from kinetic.types import Request, Step

PROPERTY = "No speed-up changes an answer: it is token for token that of plain decoding, whatever the settings."
OF_MODELS = True

SpeedUp = Callable[[Setting, Subject, Request, list[Step]], list[Step]]
"""The steps of an answer that is made, or read, in a faster way; the last argument is the plain answer."""


def _batched(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    return subject.probe().answer(asked)


def _threaded(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    return subject.probe(threads=setting.threads).answer(asked)


def _replayed(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    return subject.probe(threads=setting.threads).replay(asked, [step.token for step in plain])


def _drafted(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    """Trees around the answer: wrong from the start, wrong after some tokens, right; then nothing but wrong guesses."""
    answer = [step.token for step in plain]
    probe = subject.probe(threads=setting.threads)

    def wrong(tokens: Sequence[int]) -> list[int]:
        return [(token + 1) % probe.vocab_size for token in tokens]

    def around(history: Sequence[int]) -> list[list[int]]:
        ahead = answer[len(history) - len(asked.prompt) :]
        late = len(history) % 4
        return [wrong(ahead[:3]), [*ahead[:late], *wrong(ahead[late : late + 3])], ahead]

    hostile = probe.drafted(asked, lambda history: around(history)[:1])
    require_same_steps(hostile, plain, "with wrong drafts")
    return probe.drafted(asked, around)


def _warmed(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    """After an answer to a prompt that has nothing of it, and to one that parts from it halfway; then once more."""
    probe, prompt = subject.probe(threads=setting.threads), asked.prompt
    half = len(prompt) // 2
    others = tuple((token + 1) % probe.vocab_size for token in prompt)
    before = [replace(asked, prompt=found) for found in (others, prompt[:half] + others[half:])]
    *_, halfway, found, again = probe.warmed([asked, *before, asked, asked])
    require_same_steps(again, plain, "asked a second time")
    require_same_steps(halfway, probe.answer(before[1]), "after another conversation")
    return found


def _packed(setting: Setting, subject: Subject, asked: Request, plain: list[Step]) -> list[Step]:
    if not keeps_packs():
        raise Skipped("no packed weights are kept on this system")
    setting.close()
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        packs = KeptPacks(Path(folder) / "packs", subject.path)
        with Probe(subject.path, threads=setting.threads, packs=packs.cache, progress=setting.news) as first:
            first.answer(asked)
        packs.age()
        with Probe(subject.path, threads=setting.threads, packs=packs.cache, progress=setting.news) as second:
            found = second.answer(asked)
        require(packs.was_used(), "the second start did not use the packed weights of the first")
    return found


SPEED_UPS: dict[str, SpeedUp] = {
    "prompt-in-batches": _batched,
    "threads": _threaded,
    "replay-in-batches": _replayed,
    "drafts": _drafted,
    "warm": _warmed,
    "packed-weights": _packed,
}


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        for name in (
            SPEED_UPS if setting.device == "cpu" else ("prompt-in-batches", "replay-in-batches", "drafts", "warm")
        ):
            yield Case(f"{subject.name}/{name}", partial(_run, setting, subject, name))


def _run(setting: Setting, subject: Subject, name: str) -> Evidence:
    steps: list[Step] = []
    for sampling in [*SETTINGS.values()][: 2 if setting.is_quick else None]:
        asked = request(subject, sampling)
        plain = plain_steps(subject, asked)
        found = SPEED_UPS[name](setting, subject, asked, plain)
        require_same_steps(found, plain, f"with {name.replace('-', ' ')}")
        steps += found
    return evidence(steps)
