"""Whatever is guessed, steps are those of plain decoding: tokens, runners-up, gaps and digests of the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kinetic.engine import Engine
from kinetic.engine.drafts import Branch, Drafter, ModelSource, NgramSource, Rates, RowCosts, Trie
from kinetic.engine.drafts.model import first_rates
from kinetic.errors import KineticError
from kinetic.loader import open_model_file
from kinetic.types import Request, Sampling
from ktc.digest import logits_digest
from tests.invariance.conftest import Tiny
from tests.support.backends import assert_same
from tests.support.branches import check_branches
from tests.support.whole_models import feed, program_of, tokens_of

SETTINGS = {
    "greedy": Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=-1),
    "drawn": Sampling(temperature=0.8, seed=7, presence_penalty=0.2, logit_bias=((17, 1.5), (40, -math.inf))),
}
PROMPT, ANSWER = 247, 26
"""The answer goes over the end of the first chunk of keys."""


class Free(RowCosts):
    """Rows cost next to nothing, so that as much as possible is guessed."""

    fork = 0.0

    def of(self, rows):
        return 1 + 1e-6 * rows


class Guesses:
    """Branches around the true answer: ``right`` of each run of guesses are right, where it forks they are not."""

    spent = 0.0

    def __init__(self, answer, wrong):
        self.rates = Rates([0.9, 0.4])
        self.rates.note = lambda kind, is_right: None  # asked again and again, however bad
        self._answer, self._wrong, self._done = answer, wrong, 0

    def begin(self, prompt):
        self._done = 0

    def extend(self, token):
        self._done += 1

    def propose(self, history, longest):
        """Three branches: wrong after some tokens, wrong from the start, right."""
        ahead = self._answer[self._done : self._done + longest]
        for length in self._wrong(self._done):
            tokens = ahead[:length] + [(token + 1) % 300 for token in ahead[length : length + 4]]
            yield Branch(tokens, [0] * len(tokens), 1)


KINDS = {
    "right": lambda done: (99,),
    "tree": lambda done: (done % 5, 0, 99, 2),
    "late": lambda done: (0, 3 + done % 3),
    "hostile": lambda done: (0,),
}


@pytest.fixture(scope="module")
def llama(tiny_folder):
    with open_model_file(tiny_folder / "llama.gguf") as file:
        yield Tiny("llama", file.gguf.paths[0], file, tokens_of(100), np.zeros(0))


def digest(row):
    return logits_digest(row.astype("<f4", copy=False).view("u1").data, b"")


def engine_of(tiny, **options):
    return Engine(tiny.file.gguf, tiny.file.weights, **options)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_steps_are_those_of_plain_decoding(tiny, settings):
    request = Request(tuple(tiny.tokens[:PROMPT]), settings, ANSWER)
    plain, engine = engine_of(tiny, threads=1, off=("drafts",)), engine_of(tiny, threads=2)
    expected = list(plain.generate(request, digest=digest))
    answer = [step.token for step in expected]
    for kind, wrong in KINDS.items():
        engine.drafter = Drafter([Guesses(answer, wrong)], Free(), can_branch=engine._program.can_branch)
        assert list(engine.generate(request, digest=digest)) == expected, kind
        tally = engine.drafter.tally
        assert tally.accepted == {"hostile": 0}.get(kind, ANSWER - tally.passes - 1)
        assert (tally.drafted > tally.accepted) == (kind != "right")
        if engine._program.can_branch or kind in ("right", "hostile"):  # else the wrong way may be the only one tried
            assert (tally.passes < ANSWER - 1) == (kind != "hostile")
    plain.close()
    engine.close()


def test_n_grams(llama):
    """The second time an answer is known, and goes through at once; half of it is known the third time."""
    engine = engine_of(llama, threads=2)
    engine.drafter = Drafter([NgramSource()], Free(), can_branch=engine._program.can_branch)
    request = Request(tuple(llama.tokens[:60]), SETTINGS["drawn"], 40)
    first = list(engine.generate(request))
    assert list(engine.generate(request)) == first
    assert engine.drafter.tally.passes < 8
    engine.drafter = None
    assert list(engine.generate(request)) == first
    engine.close()


def test_a_draft_model(llama):
    """The model itself, as a draft of itself: what it guesses at temperature 0 is right."""
    engine, small = engine_of(llama, threads=2, off=("drafts",)), engine_of(llama, threads=1, off=("drafts",))
    for settings in (Sampling(temperature=0), SETTINGS["drawn"]):
        request = Request(tuple(llama.tokens[:60]), settings, 12)
        engine.drafter = None
        expected = list(engine.generate(request, digest=digest))
        source = ModelSource(small._program, small.context)
        engine.drafter = Drafter([source], Free(), can_branch=engine._program.can_branch)
        for _ in range(2):
            assert list(engine.generate(request, digest=digest)) == expected
            assert settings.temperature or engine.drafter.tally.accepted == engine.drafter.tally.drafted > 0
    engine.close()
    small.close()


def test_branches_of_a_tree(tiny):
    with program_of(tiny.file) as program:
        if not program.can_branch:
            with pytest.raises(KineticError, match="forked"):
                program.fork(0, -1, 0)
            return
    check_branches(tiny.file, tiny.tokens, (0, 15, 250))


def test_a_stopped_answer_leaves_nothing(llama):
    """The caller goes away between two tokens of one pass: what was guessed behind them is not part of the sequence."""
    request = Request(tuple(llama.tokens[:PROMPT]), SETTINGS["drawn"], ANSWER)
    engine = engine_of(llama, threads=2, off=("drafts",))
    expected = list(engine.generate(request))
    engine.drafter = Drafter([Guesses([step.token for step in expected], KINDS["tree"])], Free())
    steps = engine.generate(request)
    taken = [next(steps) for _ in range(7)]
    steps.close()
    assert taken == expected[:7]
    assert engine._program._pages._pages.keys() == {0}
    tokens = [step.token for step in expected[:7]]
    again = feed(engine._program, tokens[6:], [1], start=PROMPT + 6)
    plain = engine.logits([*request.prompt, *tokens], PROMPT + 6)
    assert_same(again, plain)
    engine.close()


def test_a_pass_that_fails_leaves_nothing(llama, monkeypatch):
    """Its branches are given up: pages of theirs that others have by now are not read for those of the next answer."""
    request = Request(tuple(llama.tokens[:PROMPT]), SETTINGS["drawn"], ANSWER)
    engine = engine_of(llama, threads=2, off=("drafts",))
    expected = list(engine.generate(request))
    answer = [step.token for step in expected]
    workers = engine._program._workers
    engine.drafter = Drafter([Guesses(answer, KINDS["tree"])], Free())
    steps = engine.generate(replace(request, prompt=tuple(tokens_of(9, 300))))
    next(steps)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(workers, "run", interrupted)
        list(steps)
    engine.drafter = Drafter([Guesses(answer, KINDS["tree"])], Free())
    assert list(engine.generate(request)) == expected
    engine.close()


def interrupted():
    raise KeyboardInterrupt


def test_what_is_computed_again_stays_little(tiny):
    """Guesses that are half right all the time: recurrent states go back to a mark, which must move on."""
    request = Request(tuple(tiny.tokens[:40]), SETTINGS["greedy"], 60)
    engine = engine_of(tiny, threads=2, off=("drafts",))
    expected = list(engine.generate(request))
    engine.drafter = Drafter(
        [Guesses([step.token for step in expected], KINDS["late"])], Free(), 6, can_branch=engine._program.can_branch
    )
    rows, sizes = engine._program.rows, []
    engine._program.rows = lambda batch, *wanted: sizes.append(len(batch.tokens)) or rows(batch, *wanted)
    assert list(engine.generate(request)) == expected
    assert max(sizes) < 40
    engine.close()


@pytest.mark.parametrize("longest", [1, 2, 3, 4, 15, 16])
def test_how_far_is_guessed(llama, longest):
    """CASES D9 and D10: any length, with a draft model that is the model and with one that guesses at random."""
    request = Request(tuple(llama.tokens[:60]), SETTINGS["greedy"], 20)
    engine, small = engine_of(llama, threads=2, off=("drafts",)), engine_of(llama, threads=1, off=("drafts",))
    expected = list(engine.generate(request, digest=digest))
    noise = Guesses(tokens_of(130, 20), KINDS["tree"])
    for sources in ([ModelSource(small._program, small.context)], [noise], [noise, NgramSource()]):
        engine.drafter = Drafter(sources, Free(), longest, can_branch=True)
        assert list(engine.generate(request, digest=digest)) == expected
        assert engine.drafter.tally.drafted > 0
    engine.close()
    small.close()


class Forgetful:
    """A program that, like a recurrent one, has no branches and goes back only to places it has kept."""

    can_branch = False

    def __init__(self, program):
        self._program = program
        self.recomputed = 0

    def truncate(self, sequence, length):
        return self._program.truncate(sequence, length // 8 * 8)

    def rows(self, batch, choice=None, best=0):
        assert set(batch.sequences) == {0} and not batch.also
        self.recomputed += batch.outputs[0]
        return self._program.rows(batch, choice)

    def __getattr__(self, name):
        return getattr(self._program, name)


def test_a_rollback_that_goes_further_back(llama):
    """What is gone is computed again, before the guesses of the next pass."""
    request = Request(tuple(llama.tokens[:PROMPT]), SETTINGS["drawn"], ANSWER)
    engine = engine_of(llama, threads=2, off=("drafts",))
    expected = list(engine.generate(request, digest=digest))
    engine._loaded = program = Forgetful(engine._program)
    source = Guesses([step.token for step in expected], KINDS["late"])
    engine.drafter = Drafter([source], Free(), can_branch=engine._program.can_branch)
    assert list(engine.generate(request, digest=digest)) == expected
    assert program.recomputed > 10
    engine.close()


# --- how much is guessed ---


def trie_of(*branches, rates=(0.9, 0.5, 0.1)):
    trie, known = Trie(), Rates(rates)
    for tokens, kind, fork in branches:
        trie.add(Branch(tokens, [kind] * len(tokens), fork), known)
    return trie, known


def test_the_layout_of_a_tree():
    ways = ((5, 6, 7), 0, 0), ((5, 8, 9), 0, 1), ((5, 6, 1), 0, 1), ((2,), 0, 1)
    trie, _ = trie_of(*ways, rates=(0.6, 0.4))
    tree = trie.best(Free(), 64)
    ways = {}
    for row, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        assert parent < row
        ways[row] = (*ways.get(parent, ()), token)
        assert tree.depths[row] == len(ways[row])
    assert sorted(ways.values()) == [(2,), (5,), (5, 6), (5, 6, 1), (5, 6, 7), (5, 8), (5, 8, 9)]
    leaves = [row for row in ways if row not in tree.parents]
    assert tree.count == len(leaves)
    for branch, leaf in enumerate(leaves):
        on_it = {row for row in ways if branch in (tree.branches[row], *tree.also[row])}
        assert on_it == {row for row in ways if ways[leaf][: len(ways[row])] == ways[row]}
    for branch in range(tree.count):  # rows of a sequence rise
        depths = [tree.depths[row] for row in ways if tree.branches[row] == branch]
        assert all(after > before for before, after in pairwise(depths))
    assert trie.best(Free(), 64, can_branch=False).tokens == (5, 6, 7)
    assert len(trie.best(Free(), 3).tokens) == 2


def test_what_is_not_worth_it_is_not_guessed():
    trie, rates = trie_of(((1, 2, 3, 4), 1, 1), rates=(0.9, 0.3))
    assert trie.best(RowCosts(), 64).tokens == ()
    for _ in range(60):
        trie.learn([1, 2, 3, 4])
    assert rates.of(1) > 0.7
    trie, _ = trie_of((tuple(range(20)), 0, 1), rates=(0.97, 0.1))
    assert len(trie.best(RowCosts(), 64).tokens) >= 7


def test_hostile_guesses_cost_little():
    """By the costs that passes have: three of a hundred, however sure a source is of what is wrong."""
    source = Guesses(list(range(3000)), KINDS["hostile"])
    drafter = Drafter([source])
    costs, history = 0.0, []
    drafter.begin([])
    for token in range(2000):
        history.append(token)
        tree = drafter.propose(history, 60)
        costs += drafter.costs.of(1 + len(tree.tokens))
        history_after = [*history, token + 1]
        drafter.settle(history_after, tree, 0)
        drafter.extend(token)
    assert 2000 < costs < 2000 * 1.03


def test_a_source_that_takes_time_is_left_alone():
    source = Guesses(list(range(3000)), KINDS["hostile"])
    source.spent = 1.0
    asked = []
    plain = source.propose
    source.propose = lambda history, longest: asked.append(len(history)) or plain(history, longest)
    costs = RowCosts({"1": 1.0})
    drafter = Drafter([source], costs)
    for token in range(2000):
        drafter.settle([0] * (token + 2), drafter.propose([0] * (token + 1), 60), 0)
    assert 3 < len(asked) < 40
    assert asked[-1] > 900  # and asked again, later and later


def test_a_draft_model_is_not_asked_where_others_know_enough():
    class Counting(ModelSource):
        def __init__(self):
            self.rates, self.spent, self.asked = first_rates(), 0.0, 0

        def propose(self, history, longest):
            self.asked += 1
            return []

    slow, source = Counting(), Guesses(list(range(40)), KINDS["right"])
    drafter = Drafter([source, slow])
    for answer, asked in ((40, 0), (3, 1)):
        source._answer = list(range(answer))
        drafter.propose([1, 2, 3], 60)
        assert slow.asked == asked


def test_costs_of_rows():
    costs = RowCosts({"16": 2.0, "7": 1.0, "64": -1.0, "24": "x"})
    assert costs.of(1) == 1 and costs.of(16) > 2.5  # of one row nothing is known yet
    for _ in range(6):
        costs.note(1, 1.0)
    costs.note(1, 50.0)
    assert costs.plain_seconds < 1.1
    assert 1.8 < costs.of(9) == costs.of(16) <= 2.0
    assert RowCosts(costs.kept()).kept() == costs.kept()
    assert costs.of(48) == RowCosts().of(33)


def test_a_request_that_goes_on_is_known_once():
    """So that the memory holds no conversation as often as it had turns."""
    source = NgramSource()
    source.begin([1, 2, 3, 4])
    source.extend(5)
    source.begin([1, 2, 3, 4, 5, 6, 7])
    assert source._new.tokens == [-1, 1, 2, 3, 4, 5, 6, 7]
    source.begin([1, 2, 3, 9])
    source.begin([1, 2])
    assert source._new.tokens == [-1, 1, 2, 3, 4, 5, 6, 7, -1, 1, 2, 3, 9, -1, 1, 2]
    assert [list(branch.tokens) for branch in source.propose([8, 1, 2], 4)] == [[3, 9], [3, 4, 5, 6]]
