"""Settings of rotary positions in place of a file's: the bits of a file that says so itself, and what is refused."""

from __future__ import annotations

import copy

import pytest

from kinetic import models
from kinetic.api.opening import rope_overrides
from kinetic.backends.rope_tables import Yarn, frequencies, yarn_magnitude
from kinetic.engine import Engine
from kinetic.errors import UnsupportedModel, UsageError
from kinetic.loader import open_model_file
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.types import RopeOverrides
from tests.support.tiny_families import KINDS, write_tiny_family
from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

YARN = {"rope_scaling": "yarn", "rope_scale": 4.0}


def rope(path, asked, **scaling):
    """The rotation and the context of a tiny model, whose file says this of scaling."""
    keys = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    sizes = {"types": {}, "width": 64, "heads": 1, "kv_heads": 1, "ffn": 64}
    with open_model_file(write_tiny_llama(path / "m.gguf", keys=keys, **sizes)) as file:
        gguf = models.asked(file.gguf, rope_overrides(asked))
        family = models.build(gguf, file.weights)
        return read_rope(gguf, "llama", read_dense(gguf, "llama"), interleaved=True), family.context_length


@pytest.mark.parametrize(
    "asked, scaling, expected, context",
    [
        ({}, {}, frequencies(1e4, 64), 2048),
        ({"rope_freq_base": 5e5}, {}, frequencies(5e5, 64), 2048),
        ({"rope_scale": 4.0}, {}, frequencies(1e4, 64, factor=4.0), 8192),
        ({"rope_freq_scale": 0.25}, {}, frequencies(1e4, 64, factor=4.0), 8192),
        ({"rope_scale": 0.5}, {}, frequencies(1e4, 64, factor=0.5), 2048),
        ({"rope_scaling": "none"}, {"type": "linear", "factor": 4.0}, frequencies(1e4, 64), 2048),
        ({"rope_scaling": "linear"}, {"type": "yarn", "factor": 4.0}, frequencies(1e4, 64, factor=4.0), 8192),
        (YARN, {}, frequencies(1e4, 64, factor=4.0, yarn=Yarn(2048)), 8192),
        (YARN | {"yarn_orig_ctx": 1024}, {}, frequencies(1e4, 64, factor=4.0, yarn=Yarn(1024)), 4096),
        (YARN | {"yarn_ext_factor": 0.0}, {}, frequencies(1e4, 64, factor=4.0), 8192),
        (
            YARN | {"yarn_ext_factor": 0.5, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
            {"yarn_beta_fast": 8.0},
            frequencies(1e4, 64, factor=4.0, yarn=Yarn(2048, 16.0, 2.0, 0.5)),
            8192,
        ),
        ({"rope_scale": 1e9}, {}, frequencies(1e4, 64, factor=1e9), 1 << 20),
    ],
)
def test_in_place_of_the_files(tmp_path, asked, scaling, expected, context):
    found, longest = rope(tmp_path, asked, **scaling)
    assert (found.frequencies, longest) == (expected, context)
    has_yarn = asked.get("rope_scaling") == "yarn" and asked.get("yarn_ext_factor") != 0
    assert found.magnitude == (yarn_magnitude(4.0) if has_yarn else 1.0)


def test_a_share_of_yarn():
    """Half of what each pair would keep, between stretched and not."""
    plain, whole = frequencies(1e4, 64), frequencies(1e4, 64, factor=4.0, yarn=Yarn(2048))
    half = frequencies(1e4, 64, factor=4.0, yarn=Yarn(2048, share=0.5))
    for i, (free, kept, between) in enumerate(zip(plain, whole, half, strict=True)):
        assert between == pytest.approx((kept + free / 4) / 2, rel=1e-15), i


def test_the_attention_factor(tmp_path):
    assert rope(tmp_path, {"yarn_attn_factor": 1.5}, attn_factor=2.0)[0].magnitude == 3.0
    with pytest.raises(UnsupportedModel) as caught:
        rope(tmp_path, YARN | {"yarn_attn_factor": 1.5})
    assert caught.value.name == "UNUSED_ROPE"


@pytest.mark.parametrize("name", ["yarn_orig_ctx", "yarn_beta_fast", "yarn_beta_slow"])
def test_what_would_change_nothing_is_refused(tmp_path, name):
    with pytest.raises(UnsupportedModel) as caught:
        rope(tmp_path, {name: 16, "rope_scale": 2.0})
    assert caught.value.name == "UNUSED_ROPE" and name.replace("_", "-") in str(caught.value)


@pytest.mark.parametrize(
    "asked, name",
    [
        ({"rope_scale": 2.0, "rope_freq_scale": 0.5}, "ROPE_SCALE_TWICE"),
        ({"rope_scale": float("nan")}, "BAD_ROPE_SCALE"),
        ({"rope_scale": -1.0}, "BAD_ROPE_SCALE"),
        ({"rope_scale": 1e-30}, "BAD_ROPE_SCALE"),
        ({"rope_freq_base": float("inf")}, "BAD_ROPE_FREQ_BASE"),
        ({"rope_scaling": "longrope"}, "BAD_ROPE_SCALING"),
        ({"yarn_orig_ctx": -1}, "BAD_YARN_ORIG_CTX"),
        ({"yarn_orig_ctx": 1.5}, "BAD_YARN_ORIG_CTX"),
        ({"yarn_ext_factor": 1.5}, "BAD_YARN_EXT_FACTOR"),
        ({"yarn_beta_fast": 0.0}, "BAD_YARN_BETA_FAST"),
        ({"yarn_beta_slow": "1"}, "BAD_YARN_BETA_SLOW"),
        ({"rope": 1.0}, "UNKNOWN_OPTION"),
    ],
)
def test_settings_that_make_no_sense(asked, name):
    with pytest.raises(UsageError) as caught:
        rope_overrides(asked)
    assert caught.value.name == name


def test_settings_are_rounded_once_and_llama_cpps_defaults_are_none():
    assert rope_overrides({"rope_scale": 0.1}).rope_scale == 0.10000000149011612
    given = {"rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_orig_ctx": 0, "yarn_ext_factor": -1.0}
    assert rope_overrides(given | {"yarn_attn_factor": -1, "yarn_beta_fast": -1.0}) == rope_overrides(None)


def test_a_base_that_is_none(tmp_path):
    with pytest.raises(UnsupportedModel) as caught:
        rope(tmp_path, {"rope_freq_base": 0.5})
    assert caught.value.name == "BAD_SETTING"


@pytest.mark.parametrize("family", ["gemma3", *KINDS])
def test_every_family_takes_them(tmp_path, family):
    """Another file says of scaling what is asked for here: the same rotations, so the same graph."""
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 512}
    said, plain = ({f"{family}.{key}": value for key, value in keys.items()}, {})
    if family == "gemma3":
        paths = [write_tiny_gemma3(tmp_path / f"{n}.gguf", keys=one) for n, one in enumerate((said, plain))]
    else:
        paths = [write_tiny_family(tmp_path / f"{n}.gguf", family, keys=one) for n, one in enumerate((keys, plain))]
    asked = RopeOverrides(rope_scaling="yarn", rope_scale=8.0, yarn_orig_ctx=512)
    found = [rotations(path, one) for path, one in zip(paths, (RopeOverrides(), asked), strict=True)]
    assert found[0] == found[1] != rotations(paths[1], RopeOverrides())


def rotations(path, asked):
    """Those of a forward pass, in order."""
    seen = []

    class Watch:
        def rope(self, x, rope, head_dim):
            seen.append(rope)

        def __getattr__(self, name):
            return lambda *inputs, **settings: None

    with open_model_file(path) as file:
        models.build(models.asked(file.gguf, asked), file.weights).forward(Watch())
    return seen


@pytest.mark.parametrize(
    "name, asked",
    [
        ("llama-yarn", {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 64}),
        ("llama-linear", {"rope_scale": 4.0}),
        ("qwen3-yarn", {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 32}),
    ],
)
def test_the_bits_of_a_file_that_says_so(golden, name, asked):
    """llama.cpp's logits of these files are those of test_golden_archs; without their keys, flags give the same."""
    tokens = [3, 77, 105, 41, 250, 3, 9, 61, 84]
    with open_model_file(golden / "archs" / name / "model.gguf") as file:
        plain = copy.copy(file.gguf)
        plain.metadata = {key: value for key, value in file.gguf.metadata.items() if ".rope.scaling." not in key}
        ggufs = (file.gguf, models.asked(plain, rope_overrides(asked)), plain)
        found = []
        for gguf in ggufs:
            engine = Engine(gguf, file.weights, threads=1)
            found.append(engine.logits(tokens).tobytes())
            engine.close()
    assert found[0] == found[1] != found[2]
