"""Which type each tensor gets: what llama-quantize b11434 chose for small models of every shape its rules look at.

tests/unit/quantize_choices.txt holds its answers, from ``llama-quantize --dry-run`` on the models of
tests/support/quantize_models.py: ``model: types: choices``. A type is followed by /with or /without where the answer
depends on an importance matrix; choices are in the order of ``runs``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic.errors import UnsupportedModel, UsageError
from kinetic.quantize.choice import Asked, choose
from kinetic.quantize.facts import Facts, facts
from kinetic.quantize.prune import renamed
from kinetic.quantize.recipe import Recipe, parse_override
from kinetic.quantize.tensors import dimensions, kind_of, may_change, order
from kinetic.quantize.types import FILE_TYPES, file_type, find_file_type
from tests.support.quantize_models import MODELS, metadata, runs

ANSWERS = [line.split(": ") for line in Path(__file__).with_name("quantize_choices.txt").read_text().splitlines()]


def choices(model, name, has_importance, **settings):
    """(tensor, Choice) of each tensor of a model, in the file's order."""
    shapes = MODELS[model][2]
    names = sorted(shapes, key=order)
    asked = [Asked(n, shapes[n], "F32" if len(shapes[n]) == 1 else "F16") for n in names]
    recipe = Recipe(file_type(name), **settings)
    return list(zip(names, choose(asked, recipe, facts(metadata(model)), has_importance), strict=True))


@pytest.mark.parametrize(("model", "types", "expected"), ANSWERS, ids=lambda word: word.split()[0])
def test_as_llama_quantize_chooses(model, types, expected):
    for word in types.split():
        name, _, only = word.partition("/")
        for has_importance in [only == "with"] if only else [True, False]:
            if expected == "refused":
                with pytest.raises(UnsupportedModel, match="blocks"):
                    choices(model, name, has_importance)
                continue
            found = choices(model, name, has_importance)
            assert runs((tensor, choice.tensor_type) for tensor, choice in found) == expected


def test_every_type_and_model_has_an_answer():
    found = {(model, word.partition("/")[0]) for model, types, _ in ANSWERS for word in types.split()}
    named = {entry.name for entry in FILE_TYPES if entry.name == entry.mixture and entry.name != "COPY"}
    assert found == {(model, name) for model in MODELS for name in named}


@pytest.mark.parametrize(
    ("model", "name", "tensor", "wanted", "instead"),
    [
        ("rows-of-320", "Q4_K_M", "blk.1.attn_q.weight", "Q4_K", "Q5_0"),
        ("rows-of-320", "Q4_K_M", "token_embd.weight", "Q6_K", "Q8_0"),
        ("rows-of-320", "Q8_0", "token_embd.weight", "Q8_0", "Q8_0"),
        ("rows-of-96", "Q4_0", "output.weight", "Q6_K", "Q8_0"),
        ("rows-of-96", "IQ3_S", "blk.0.ffn_up.weight", "IQ3_S", "IQ4_NL"),
        ("rows-of-96", "Q2_K", "blk.0.ffn_up.weight", "Q2_K", "Q4_0"),
        ("rows-of-100", "Q5_K_S", "blk.0.ffn_up.weight", "Q5_K", "F16"),
        ("rows-of-100", "Q8_0", "blk.0.ffn_up.weight", "Q8_0", "F16"),
        ("heads-1", "Q5_K_S", "blk.0.ffn_up.weight", "Q5_K", "Q5_K"),
    ],
)
def test_substitutions(model, name, tensor, wanted, instead):
    choice = dict(choices(model, name, False))[tensor]
    assert (choice.wanted, choice.tensor_type) == (wanted, instead)


def test_what_options_decide():
    named = (("attn_q", "F16"), (r"blk\.[12]\.ffn_(up|gate)", "Q8_0"), ("ffn_up", "Q2_K"), ("norm", "Q8_0"))
    found = dict(choices("heads-4", "Q4_K_M", False, tensor_types=named, output_type="Q5_0", embedding_type="BF16"))
    types = {tensor: choice.tensor_type for tensor, choice in found.items()}
    assert (
        types["output.weight"] == "Q5_0"
        and types["token_embd.weight"] == "BF16"
        and types["output_norm.weight"] == "F32"
    )
    assert (
        types["blk.3.attn_q.weight"] == "F16"
        and types["blk.1.ffn_up.weight"] == types["blk.2.ffn_gate.weight"] == "Q8_0"
    )
    assert types["blk.3.ffn_up.weight"] == "Q2_K" and types["blk.3.ffn_gate.weight"] == "Q4_K"
    pure = dict(choices("heads-4", "Q4_K_M", False, pure=True, leave_output=True))
    assert pure["output.weight"].tensor_type == "F16" and not pure["output.weight"].may_change
    assert {c.tensor_type for name, c in pure.items() if "blk" in name or "embd" in name} == {"Q4_K"}
    copied = choices("heads-4", "COPY", False)
    assert not any(choice.may_change for _, choice in copied)


def test_an_embedding_that_is_the_output_too():
    assert dict(choices("heads-1", "Q4_K_M", False, output_type="Q8_0"))["token_embd.weight"].tensor_type == "Q8_0"
    both = dict(choices("heads-1", "Q4_K_M", False, output_type="Q8_0", embedding_type="Q5_0"))
    assert both["token_embd.weight"].tensor_type == "Q5_0"


def test_the_embedding_of_layers_may_be_named_apart():
    named = (("token_embd", "Q5_1"),)
    found = dict(choices("odd-names", "Q4_0", False, tensor_types=named, embedding_type="Q8_0"))
    assert (
        found["token_embd.weight"].tensor_type == "Q8_0" and found["per_layer_token_embd.weight"].tensor_type == "Q5_1"
    )


def test_rows_that_cannot_have_the_type_that_was_given():
    with pytest.raises(UsageError, match="blocks of 256"):
        choices("rows-of-320", "Q4_0", False, embedding_type="Q6_K")
    with pytest.raises(UnsupportedModel, match="blocks of 64"):
        choices("rows-of-96", "Q4_0", False, tensor_types=(("ffn_up", "NVFP4"),))


def test_layers_by_name_in_a_model_of_experts():
    shape = Facts("llama", 2, experts=4)
    for name in ("blk.2.ffn_down.weight", "ffn_down.weight"):
        with pytest.raises(UnsupportedModel, match="--pure"):
            list(choose([Asked(name, (2, 256), "F16")], Recipe(file_type("Q4_K_M")), shape, False))


# -- the pieces


def test_a_family_that_keeps_more():
    shape, recipe = Facts("glm5-next", 2), Recipe(file_type("Q4_0"))
    names = ("blk.0.attn_q_a.weight", "blk.0.ssm_beta.weight", "blk.0.ffn_up.weight", "blk.0.hc_fn.weight")
    found = [c.tensor_type for c in choose([Asked(n, (2, 256), "F16") for n in names], recipe, shape, False)]
    assert found == ["Q8_0", "F16", "Q4_0", "F16"]
    asked = [Asked(n, (3, 2, 256), "F16") for n in ("blk.0.attn_x.weight", "blk.0.ffn_up_exps.weight")]
    mixed = choose(asked, Recipe(file_type("MXFP4_MOE")), Facts("bailingmoe3", 1, 3), False)
    assert [c.tensor_type for c in mixed] == ["Q8_0", "MXFP4"]


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("llama", {"block_count": 80, "attention.head_count": 64, "attention.head_count_kv": 8}, (80, 0, 8, True)),
        ("llama", {"block_count": 80, "attention.head_count": 64}, (80, 0, 1, False)),
        ("llama", {"block_count": 80, "expert_count": 8, "attention.head_count": 8}, (80, 8, 1, False)),
        ("qwen2", {"block_count": 81, "nextn_predict_layers": 1, "attention.head_count": 6}, (81, 0, 1, True)),
        ("jais2", {"block_count": 68}, (68, 0, 0, True)),
        ("nanbeige", {"block_count": 9, "num_loops": 2}, (18, 0, 0, False)),
        ("graniteswitch", {"block_count": 9}, (10, 0, 0, False)),
        ("clip", {}, (0, 0, 0, False)),
    ],
)  # fmt: skip
def test_facts(architecture, keys, expected):
    stored = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
    assert facts(stored)[1:] == expected


def test_overrides_count():
    stored = {"general.architecture": "llama", "llama.block_count": 4}
    words = ("llama.block_count=int:9", "llama.block_count=int:3", "llama.expert_count=float:8")
    assert facts(stored, tuple(map(parse_override, words)))[:3] == ("llama", 9, 0)
    named = parse_override("general.architecture=str:other")
    assert facts({**stored, "other.block_count": 5}, (named,)).layers == 5


def test_order_dimensions_and_kinds():
    names = ["blk.10.a", "blk.2.b", "output.weight", "blk.2.a", "Z.weight", "blk.2"]
    assert sorted(names, key=order) == ["Z.weight", "output.weight", "blk.2", "blk.2.a", "blk.2.b", "blk.10.a"]
    assert [dimensions(shape) for shape in [(4,), (1, 4), (2, 4), (2, 1, 4), (1, 2, 1), (3, 1, 1, 1)]] == [
        1,
        1,
        2,
        3,
        2,
        4,
    ]
    assert kind_of("blk.0.ffn_gate_up_exps.weight").name == "GATE" and kind_of("x.attn_v.weight").name == "VALUE"
    assert may_change("blk.0.attn_v.weight", (2, 8), "llama") and not may_change("blk.0.attn_v.weight", (1, 8), "llama")


def test_pruned_layers_move_up():
    names = ["a", *(f"blk.{n}.x" for n in (0, 1, 2, 3, 5))]
    kept, left = renamed(names, frozenset({1, 2}))
    assert kept == {"a": "a", "blk.0.x": "blk.0.x", "blk.3.x": "blk.1.x", "blk.5.x": "blk.2.x"} and left == 3
    assert renamed(names, frozenset()) == ({name: name for name in names}, 0)


@pytest.mark.parametrize(
    ("text", "name"), [("q4_k_m", "Q4_K_M"), ("15", "Q4_K"), ("0", "F32"), ("copy", "COPY"), ("7", "Q8_0")]
)
def test_types_by_name_and_number(text, name):
    assert file_type(text).name == name


@pytest.mark.parametrize("text", ["", "Q9", "4", "-1", "out.gguf", "٧"])
def test_no_such_type(text):
    assert find_file_type(text) is None
    with pytest.raises(UsageError, match="no type"):
        file_type(text)
