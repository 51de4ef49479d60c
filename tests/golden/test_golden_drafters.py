"""Models that guess from the layers of another, against llama.cpp: features, what is made of them, logits, drafts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic import models
from kinetic.api.model import Model
from kinetic.backends.reference import ops
from kinetic.engine import Engine
from kinetic.engine.drafts import Drafter
from kinetic.errors import KineticError, UnsupportedModel
from kinetic.layers.deltanet import HIDDEN
from kinetic.layers.watched import LayerInputs
from kinetic.loader import open_model_file
from kinetic.types import Batch, Request, Sampling
from tests.golden.test_golden_archs import FloatCache
from tests.invariance.test_drafts import Free
from tests.support.backends import assert_same, loaded
from tests.support.hidden_drafts import check_hidden_drafts

TARGET = "llama-gqa"
LARGEST, FLOAT16 = 2e-4, 0.004
"""With keys and values in float32, as llama.cpp has them for these numbers, and in float16."""

COLD = ("warm",)
"""A drafter sees nothing of what is not computed again."""

MODELS = ("eagle3", "eagle3-normfc", "dflash")
EAGLES = MODELS[:2]


class Case:
    def __init__(self, golden, name, file, target):
        self.target = target
        self.folder = golden / "archs" / name
        self.tokens = tuple(json.loads((self.folder / "tokens.json").read_text())["tokens"])
        self.spec = json.loads((self.folder / "spec.json").read_text())
        self.family = models.build(target.gguf, target.weights)
        self.drafter = models.build_drafter(file.gguf, file.weights, target.weights)
        self.features = np.load(self.folder / "features.npy")

    def difference(self, found, name):
        expected = np.load(self.folder / name)
        known = np.isfinite(expected)
        assert (known == np.isfinite(found)).all()
        return float(np.abs(found[known] - expected[known]).max())

    def spread(self, logits):
        """Logits by the target's tokens."""
        if not self.drafter.ids:
            return logits
        whole = np.full((len(logits), self.family.vocab_size), -np.inf, np.float32)
        whole[:, self.drafter.ids] = logits
        return whole


@pytest.fixture
def case(request, golden):
    archs = golden / "archs"
    with (
        open_model_file(archs / request.param / "model.gguf") as file,
        open_model_file(archs / TARGET / "model.gguf") as target,
    ):
        yield Case(golden, request.param, file, target)


def batch(tokens, start=0, outputs=None):
    rows = tuple(range(len(tokens)))
    positions = tuple(start + row for row in rows)
    return Batch(tuple(tokens), positions, (0,) * len(rows), rows if outputs is None else outputs)


@pytest.mark.parametrize("case", MODELS[1:], indirect=True)
def test_what_the_layers_of_the_target_see(case, monkeypatch):
    """And looking changes no bit of the answer."""
    inputs = LayerInputs(case.drafter.layers)
    family, found = case.family, []
    for forward in (family.forward, lambda ops: family.forward(inputs(ops))):
        with loaded(forward, family.attention) as program:
            found.append(program.run(batch(case.tokens)))
    assert_same(found[1], found[0])
    monkeypatch.setattr(ops, "Cache", FloatCache)
    with loaded(lambda ops: family.forward(inputs(ops)), family.attention, "reference") as program:
        program.run(batch(case.tokens))
        taps = program.taps()
    assert case.difference(np.concatenate([taps[name] for name in inputs.names], axis=1), "features.npy") < LARGEST


@pytest.mark.parametrize("case", EAGLES, indirect=True)
def test_eagle3(case, monkeypatch):
    monkeypatch.setattr(ops, "Cache", FloatCache)
    drafter, spec = case.drafter, case.spec
    with loaded(drafter.encode, (), "reference") as program:
        encoded = program.run(batch(case.tokens), case.features)
    with loaded(drafter.encode, ()) as program:
        assert_same(program.run(batch(case.tokens), case.features), encoded)
    assert case.difference(encoded, "g_embd.npy") < LARGEST
    tokens = [*case.tokens[1:], spec["id_last"]]
    for backend, largest in (("reference", LARGEST), ("cpu", FLOAT16)):
        with loaded(drafter.forward, drafter.attention, backend) as program:
            logits = program.run(batch(tokens), encoded)
            assert case.difference(case.spread(logits), "logits.npy") < largest
            assert case.difference(program.taps()[HIDDEN], "h_draft.npy") < largest
            drafts = []
            while len(drafts) < len(spec["draft_ids"]):
                number = int(logits[-1].argmax())
                drafts.append(drafter.ids[number] if drafter.ids else number)
                row = program.taps()[HIDDEN][-1:]
                logits = program.run(batch(drafts[-1:], len(tokens) + len(drafts) - 1), row)
        assert drafts == spec["draft_ids"]


@pytest.mark.parametrize("case", MODELS[2:], indirect=True)
def test_dflash(case, monkeypatch):
    """All rows at once, and what was seen in two pieces before the block."""
    monkeypatch.setattr(ops, "Cache", FloatCache)
    drafter, count, width = case.drafter, len(case.tokens), case.features.shape[1]
    assert (drafter.block, drafter.mask) == (case.spec["block"], case.spec["mask_token_id"])
    tokens = [*case.tokens, case.spec["id_last"], *[drafter.mask] * (drafter.block - 1)]
    given = np.zeros((len(tokens), drafter.width), np.float32)
    given[:count, :width], given[count:, width:] = case.features, 1
    block = tuple(range(count, len(tokens)))
    for backend, largest in (("reference", LARGEST), ("cpu", FLOAT16)):
        with loaded(drafter.forward, drafter.attention, backend) as program:
            logits = program.run(batch(tokens, 0, block), given)
            assert case.difference(logits, "logits.npy") < largest
            assert logits[1:].argmax(axis=1).tolist() == case.spec["draft_ids"]
            if backend == "reference":
                continue
            program.truncate(0, 0)
            program.run(batch(tokens[:31], 0, ()), given[:31])
            rest = tuple(row - 31 for row in block)
            assert_same(program.run(batch(tokens[31:], 31, rest), given[31:]), logits)
            program.truncate(0, count)
            again = tuple(range(drafter.block))
            assert_same(program.run(batch(tokens[count:], count, again), given[count:]), logits)


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_what_the_engine_guesses_first(case):
    """After the prompt, in one pass over what the model showed and in many."""
    engine = Engine(case.target.gguf, case.target.weights, draft=case.drafter, threads=2, off=COLD)
    for rows in (512, 31, 1):
        assert first_guesses(engine, case.tokens, rows) == [case.spec["id_last"], *case.spec["draft_ids"]]
    engine.close()


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_it_goes_on_behind_an_answer_that_was_set_aside(case):
    """With guesses that were wrong: it knows what one knows that saw all at once."""
    found, tokens = [], case.tokens
    for off in ((), COLD):
        engine = Engine(case.target.gguf, case.target.weights, draft=case.drafter, threads=2, off=off)
        source = engine._seeing.source(None)
        source.rates.of = lambda kind: 1.0
        engine.drafter = Drafter([source], Free())
        answer = [step.token for step in engine.generate(Request(tokens[:40], Sampling(temperature=0), 6))]
        drafted = engine.drafter.tally.drafted
        list(engine.generate(Request(tokens[::-1], Sampling(temperature=0), 1)))
        longer = (*tokens[:40], *answer, *tokens[:5])
        (step,) = engine.generate(Request(longer, Sampling(temperature=0), 1))
        assert drafted > 0 and (engine.reused >= 40) == (off == ())
        (branch,) = source.propose([*longer, step.token], 8)
        found.append((answer, step, list(branch.tokens), list(branch.kinds), source._done))
        engine.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_it_goes_on_behind_what_is_not_computed_again(case):
    """The live sequence, cut back, and one that was set aside: the guesses are those of one that saw all."""
    engine = Engine(case.target.gguf, case.target.weights, draft=case.drafter, threads=2)
    source = engine._seeing.source(None)
    source.rates.of = lambda kind: 1.0
    expected = [case.spec["id_last"], *case.spec["draft_ids"]]
    others = (case.tokens[::-1], case.tokens[:-9] + case.tokens[:20], case.tokens[:40])
    for prompt in (case.tokens, *others):
        engine.drafter = Drafter([source])
        for asked in (prompt, case.tokens):
            steps = engine.generate(Request(asked, Sampling(temperature=0)))
            first = next(steps).token
            if asked == case.tokens:
                assert source._base == 0 and len(source._tokens) == len(asked)
                (branch,) = source.propose([*asked, first], 8)
                assert [first, *branch.tokens][: len(expected)] == expected
            steps.close()
        assert engine.reused > 0
    engine.close()


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_steps_are_those_of_plain_decoding(case):
    engine = Engine(case.target.gguf, case.target.weights, draft=case.drafter, threads=2, off=COLD)
    plain = Engine(case.target.gguf, case.target.weights, threads=1, off=("drafts",))
    check_hidden_drafts(engine, plain, case.tokens)
    engine.close()
    plain.close()


@pytest.mark.parametrize("name", ["qwen35-mtp", "qwen35moe-mtp"])
def test_what_a_layer_for_one_token_more_guesses_first(golden, name):
    folder = golden / "archs" / name
    tokens = tuple(json.loads((folder / "tokens.json").read_text())["tokens"])
    spec = json.loads((folder / "mtp_spec.json").read_text())
    with open_model_file(folder / "model.gguf") as file:
        engine = Engine(file.gguf, file.weights, threads=2, off=COLD)
        if name == "qwen35moe-mtp":  # a dense one is in the invariance suite
            plain = Engine(file.gguf, file.weights, threads=1, off=("drafts",))
            check_hidden_drafts(engine, plain, tokens)
            plain.close()
        for rows in (512, 31, 1):
            assert first_guesses(engine, tokens, rows)[:7] == [spec["id_last"], *spec["draft_ids"]]
        engine.close()


def first_guesses(engine, tokens, rows):
    """The first token, and all that are guessed behind it; the prompt is read by ``rows`` rows at once."""
    source = engine._seeing.source(None)
    source.rates.of = lambda kind: 1.0
    engine.prompt_rows, engine.drafter = rows, Drafter([source])
    steps = engine.generate(Request(tokens, Sampling(temperature=0)))
    first = next(steps).token
    (branch,) = source.propose([*tokens, first], 8)
    steps.close()
    return [first, *branch.tokens][: 1 + 6 + bool(engine._seeing._drafter.block)]


@pytest.mark.parametrize("case", [MODELS[0], MODELS[2]], indirect=True)
def test_a_file_that_is_given_beside_the_model(golden, case, monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))
    path, found = golden / "archs" / TARGET / "model.gguf", []
    for options in ({"draft_model": case.folder / "model.gguf"}, {"off": ("drafts",)}):
        with Model(path, threads=1, pack_cache=False, **options) as model:
            found.append(model.generate("and so", raw=True, max_tokens=20, temperature=0.8, seed=3).tokens)
    assert found[0] == found[1]
    with pytest.raises(UnsupportedModel, match="guesses for another model") as caught:
        Model(case.folder / "model.gguf")
    assert caught.value.name == "IS_DRAFTER"


def test_files_that_do_not_fit_are_refused(golden):
    archs = golden / "archs"

    def built(name, target, **metadata):
        with (
            open_model_file(archs / name / "model.gguf") as file,
            open_model_file(archs / target / "model.gguf") as other,
        ):
            file.gguf.metadata.update({key.replace("__", "."): value for key, value in metadata.items()})
            drafter = models.build_drafter(file.gguf, file.weights, other.weights)
            Engine(other.gguf, other.weights, draft=drafter, threads=1).close()

    for name, target, metadata, expected in (
        ("eagle3", "gemma3", {}, "OTHER_VOCABULARY"),
        ("eagle3", TARGET, {"eagle3__target_layers": [1, 2, 4]}, "NO_SUCH_LAYER"),
        ("eagle3", TARGET, {"eagle3__target_layers": [1, 1, 2]}, "BAD_SETTING"),
        ("eagle3", TARGET, {"eagle3__target_layers": [1, 2]}, "WRONG_SHAPE"),
        ("eagle3", TARGET, {"eagle3__target_hidden_size": 65}, "OTHER_WIDTH"),
        ("dflash", TARGET, {"dflash__attention.sliding_window": 8}, "UNSUPPORTED_SETTING"),
        ("dflash", TARGET, {"tokenizer__ggml__mask_token_id": 320}, "BAD_SETTING"),
    ):
        with pytest.raises(KineticError) as caught:
            built(name, target, **metadata)
        assert caught.value.name == expected, (name, metadata)
