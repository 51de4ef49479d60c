"""Tensor types that this build can't compute with: they matter only where a model uses such a tensor."""

from __future__ import annotations

import pytest

from conformance.attacks.tiny_model import tiny_model
from kinetic.api import describe
from kinetic.api.model import Model
from kinetic.errors import UnsupportedModel
from kinetic.gguf_types import TYPES

UNUSED = "blk.0.attn_rot_embd.weight"

OTHER_TYPES = {"removed": 4, "made while computing": 9, "64-bit": 28, "newer than all": 43, "far": 1000, "negative": -1}


def content(code, values):
    """Zeros, as many as the type takes; of an unknown one any number."""
    _, block, size = TYPES.get(code, ("", 1, 3))
    return bytes(values // block * size)


@pytest.mark.parametrize("code", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_a_tensor_that_is_never_read_may_have_any_type(tmp_path, code):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model(shapes={UNUSED: (32,)}, types={UNUSED: code}, data={UNUSED: content(code, 32)}))
    assert describe.describe(path)["runnable"]
    with Model(path, device="reference") as model:
        assert model.generate("a", max_tokens=2).tokens


@pytest.mark.parametrize("code", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_a_tensor_that_is_used_is_named(tmp_path, code):
    path, name = tmp_path / "m.gguf", "blk.0.ffn_up.weight"
    path.write_bytes(tiny_model(types={name: code}, data={name: content(code, 64 * 32)}))
    assert not describe.describe(path)["runnable"]
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight") as caught:
        Model(path, device="reference")
    assert caught.value.name == "UNSUPPORTED_WEIGHT_TYPE"
