"""Whole models in bundles: packed and unpacked to the same bytes, and answering with the same tokens."""

from __future__ import annotations

import filecmp
import random

import pytest

from kinetic.api import Model
from kinetic.api.bundle import pack, unpack, verify
from kinetic.errors import Malformed
from kinetic.loader import open_model_file
from tests.support.talking_model import write_talker
from tests.support.whole_models import WRITERS

MODELS = {"smollm2": "smollm2_path", "gemma3-270m": "gemma3_path"}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


def round_trip(model, folder, *, leaves):
    bundle, back = folder / "model.ktc", folder / "back.gguf"
    written = pack(model, bundle, leaves=leaves)
    unpack(bundle, back)
    assert filecmp.cmp(model, back, shallow=False)
    found = verify(bundle, sha256=True)
    assert found["verdict"] == "INTACT" and found["manifest_digest"] == written.manifest_digest
    back.unlink()
    return bundle


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("name", [*WRITERS, "talker"])
def test_every_tiny_model_comes_back_as_it_went_in(tmp_path, name, leaves):
    write = WRITERS.get(name, write_talker)
    bundle = round_trip(write(tmp_path / f"{name}.gguf"), tmp_path, leaves=leaves)
    with Model(tmp_path / f"{name}.gguf", threads=1) as bare, Model(bundle, threads=1) as model:
        asked = {"temperature": 0, "max_tokens": 8, "raw": True}
        assert model.generate("one two", **asked).tokens == bare.generate("one two", **asked).tokens
        assert model.identity == bare.identity


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_comes_back_and_answers_as_before(request, tmp_path, name):
    path = request.getfixturevalue(MODELS[name])
    bundle = round_trip(path, tmp_path, leaves=True)
    asked = {"seed": 7, "max_tokens": 16}
    with Model(path) as bare:
        expected = bare.generate("Name three rivers.", **asked)
    for check in ("lazy", "full", "none"):
        with Model(bundle, check=check) as model:
            assert model.generate("Name three rivers.", **asked).tokens == expected.tokens
            assert model.identity == bare.identity


@pytest.mark.slow
def test_any_flipped_bit_of_a_real_model_is_found_lazily_before_all_of_it_was_used(tmp_path, smollm2_path):
    """Wherever it is: at opening, or when the tensor is used that it is in."""
    bundle = tmp_path / "model.ktc"
    pack(smollm2_path, bundle, leaves=True)
    with open_model_file(bundle) as loaded:
        section = loaded.bundle.gguf
    chance = random.Random(1)
    with bundle.open("r+b") as file:
        for _ in range(20):
            at, bit = section.offset + chance.randrange(section.length), 1 << chance.randrange(8)
            file.seek(at)
            byte = file.read(1)[0]
            for value in (byte ^ bit, byte):
                file.seek(at)
                file.write(bytes([value]))
                file.flush()
                if value == byte:
                    continue
                leaf = (at - section.offset) >> 20
                with pytest.raises(Malformed, match=f"leaf {leaf} of section 'gguf'"):
                    use_all_of(bundle)
    use_all_of(bundle)


def use_all_of(bundle):
    with open_model_file(bundle) as loaded:
        for name in loaded.gguf.tensors:
            loaded.gguf.data(name)
