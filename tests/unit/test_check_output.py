"""``check-output``: nothing between equal settings, a floor that quantised activations make, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.api import check_output, machine
from kinetic.api.check_output import Decoded, Setting, check
from kinetic.errors import OutOfMemory, UsageError
from kinetic.formats import by_type
from kinetic.loader import open_model_file
from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

FLOATS = {"": "F32", "attn_q": "F16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny_llama(folder / "a.gguf", types={"": "Q8_0"})
    write_tiny_llama(folder / "other.gguf", types={"": "Q4_0"}, seed=1)
    write_tiny_llama(folder / "floats.gguf", types=FLOATS)
    write_tiny_gemma3(folder / "gemma.gguf")
    return folder


@pytest.fixture(autouse=True)
def short(request, monkeypatch):
    """A third of the text: these models have a token for every byte or two."""
    if "text" not in request.node.name:
        begun = check_output.text()[:1000]
        monkeypatch.setattr(check_output, "text", lambda: begun)


def run(a, b, **options):
    return check(a, b, pack_cache=False, **options)


@pytest.mark.parametrize("other", [{}, {"threads": 2}, {"rows": 7}, {"rows": 1, "threads": 2}])
def test_equal_settings_are_exactly_0_apart(folder, other):
    a = Setting(str(folder / "a.gguf"), threads=1)
    outcome = run(a, Setting(**{"model": a.model, "threads": 1} | other), floor=0.0)
    assert outcome.found.kld == (0.0, 0.0) and outcome.found.largest == 0.0
    assert outcome.found.same_top == (1.0, 0.0)
    assert outcome.is_inside and outcome.floor is None


def test_the_floor_is_what_rounding_activations_makes(folder):
    a = Setting(str(folder / "a.gguf"), threads=1)
    outcome = run(a, Setting(str(folder / "other.gguf"), threads=1))
    assert not outcome.is_inside
    assert outcome.limit == outcome.floor.kld.value
    assert 1e-6 < outcome.limit < 1e-2 < outcome.found.kld.value
    assert outcome.floor.largest < outcome.found.largest
    assert outcome.tokens == outcome.facts()["tokens"] > 600


def test_a_model_of_floats_has_the_last_place_for_a_floor(folder):
    a = Setting(str(folder / "floats.gguf"), threads=1)
    outcome = run(a, a)
    assert 0 < outcome.limit < 1e-7 and outcome.is_inside  # a key or value may round to another float16


def test_other_tokens_are_refused(folder):
    with pytest.raises(UsageError) as caught:
        run(Setting(str(folder / "a.gguf")), Setting(str(folder / "gemma.gguf")))
    assert caught.value.name == "OTHER_TOKENS"


def test_a_floor_that_needs_too_much_memory(folder, monkeypatch):
    facts = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: facts._replace(free=1 << 20))
    a = Setting(str(folder / "a.gguf"), threads=1)
    with pytest.raises(OutOfMemory):
        run(a, a)
    assert run(a, a, floor=0.0).is_inside


def test_decoded_weights_have_the_same_values(folder):
    with open_model_file(folder / "a.gguf") as file:
        decoded = Decoded(file.weights)
        assert set(decoded) == set(file.weights) and len(decoded) == len(file.weights)
        for name, weight in file.weights.items():
            made = decoded[name]
            assert made.shape == weight.shape and not by_type(made.ggml_type, name).QUANTISED
            values = by_type(weight.ggml_type, name).decode(weight.data)
            assert np.array_equal(by_type(made.ggml_type, name).decode(made.data), values)


def test_the_text_is_varied_and_neither_short_nor_long():
    text = check_output.text()
    assert 3000 < len(text.encode()) < 4096
    for part in ("def checksum", "121.5", "Küche", "vous m'entendez", "niño", "| Monday |"):
        assert part in text
