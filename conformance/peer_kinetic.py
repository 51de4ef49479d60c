"""Kinetic under each condition: the same questions as a peer is asked, answered through ``kinetic.api.probe``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conformance.peer_conditions import GROUPS, PIECE, THREADS, Question, Tokens, Told, grouped
from kinetic import __version__
from kinetic.api.probe import Probe, instruction_sets
from kinetic.types import Batch, Request, Sampling

GREEDY = Sampling(temperature=0)


class Kinetic:
    """An ``Engine``. Close it when done."""

    def __init__(self, model: Path, news: Callable[[str], None] | None = None) -> None:
        self._model, self._news = model, news
        self._running: tuple[tuple[int, str], Probe] | None = None
        self.name = f"Kinetic {__version__}"
        self._isa = instruction_sets()[0][-1]
        """The plainest one; where it is the only one there is nothing to compare."""

    def conditions(self) -> Mapping[str, str]:
        here = instruction_sets()[0]
        found = {
            "again": "asked twice",
            "neighbour": "rows of two answers in each batch",
            "neighbours": "rows of four answers in each batch",
            "prefix": "first half of the prompt kept from another question",
            "chunks": f"prompt read in passes of {PIECE} rows",
            "thread": "1 thread",
        }
        return found | ({"isa": f"{self._isa} instead of {here[0]}"} if len(here) > 1 else {})

    def ask(self, condition: str, questions: Sequence[Question], count: int, told: Told) -> list[Tokens]:
        isa = self._isa if condition == "isa" else ""
        probe = self._probe(1 if condition == "thread" else THREADS, isa)
        answers: list[Tokens] = []
        for group in grouped(questions, GROUPS.get(condition, 1)):
            answers += self._answers(probe, condition, group, count)
            told(len(group))
        return answers[: len(questions)]

    def _answers(self, probe: Probe, condition: str, group: Sequence[Question], count: int) -> list[Tokens]:
        for sequence in range(max(GROUPS.values())):
            probe.forget(sequence)
        if condition in GROUPS:
            return beside(probe, [question.prompt for question in group], count)
        if condition == "prefix":
            return [after_related(probe, group[0], count)]
        request = Request(tuple(group[0].prompt), GREEDY, count)
        steps = probe.answer(request, rows_at_once=PIECE if condition == "chunks" else 0)
        return [[step.token for step in steps]]

    def _probe(self, threads: int, isa: str) -> Probe:
        if self._running is None or self._running[0] != (threads, isa):
            self.close()
            self._running = (threads, isa), Probe(self._model, threads=threads, isa=isa, progress=self._news)
        return self._running[1]

    def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running[1].close()

    def __enter__(self) -> Kinetic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def beside(probe: Probe, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
    """Answers that grow side by side: prompts in one pass, then a row of each in every pass."""
    rows = [(token, place, number) for number, prompt in enumerate(prompts) for place, token in enumerate(prompt)]
    tokens, positions, sequences = zip(*rows, strict=True)
    ends = [place for place, row in enumerate(rows) if row[1] == len(prompts[row[2]]) - 1]
    found = probe.run(Batch(tokens, positions, sequences, tuple(ends)))
    return _decode(probe, found, [[*prompt] for prompt in prompts], count)


def after_related(probe: Probe, question: Question, count: int) -> Tokens:
    """Keys and values of the tokens that both questions begin with are those of the other question's reading."""
    prompt, other = question
    shared = next((i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(map(len, question)))
    shared = min(shared, len(prompt) - 1)  # one row at least must be computed to draw from
    for _ in probe.feed(other, [len(other)]):
        pass
    shared = probe.forget(0, shared)
    rest = tuple(prompt[shared:])
    places = tuple(range(shared, len(prompt)))
    found = probe.run(Batch(rest, places, (0,) * len(rest), (len(rest) - 1,)))
    return _decode(probe, found, [[*prompt]], count)[0]


def _decode(probe: Probe, rows: object, histories: list[Tokens], count: int) -> list[Tokens]:
    """``count`` tokens for each history, whose last logits are ``rows`` float32 [len(histories), V]."""
    begins, numbers = [len(history) for history in histories], tuple(range(len(histories)))
    for step in range(count):
        for history, row in zip(histories, rows, strict=True):  # type: ignore[call-overload]
            history.append(probe.draw(row, history, GREEDY))
        if step + 1 < count:
            tokens = tuple(history[-1] for history in histories)
            positions = tuple(len(history) - 1 for history in histories)
            rows = probe.run(Batch(tokens, positions, numbers, numbers))
    return [history[begin:] for history, begin in zip(histories, begins, strict=True)]
