"""What a model's metadata says that decides types: its shape as far as the mixtures look at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kinetic.gguf_types import Array
from kinetic.quantize.recipe import Override

_LAYERS_OF_70B = {"llama": 80, "llama-embed": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""llama.cpp b11434 knows a model of 70 billion parameters by its architecture and number of layers."""


class Facts(NamedTuple):
    """Numbers of one model. ``queries_per_key`` is that of layer 0, 0 where there are no heads."""

    architecture: str
    layers: int
    experts: int = 0
    queries_per_key: int = 1
    is_70b: bool = False


def facts(metadata: Mapping[str, Any], overrides: tuple[Override, ...] = ()) -> Facts:
    """From the keys of the first part; an override counts where the key holds a single number."""
    keys = _Keys(metadata, overrides)
    layers, nextn = keys.number("block_count"), keys.number("nextn_predict_layers")
    heads = keys.first("attention.head_count")
    kv_heads = keys.first("attention.head_count_kv", heads)
    experts = keys.number("expert_count")
    is_70b = layers - nextn == _LAYERS_OF_70B.get(keys.architecture)
    if keys.architecture.startswith("llama"):
        is_70b = is_70b and heads != kv_heads and experts != 8
    return Facts(keys.architecture, _all_layers(keys, layers), experts, heads // kv_heads if kv_heads else 0, is_70b)


def _all_layers(keys: _Keys, layers: int) -> int:
    """Two families run more layers than they store, and are counted so."""
    loops = keys.number("num_loops", 1)
    if keys.architecture == "nanbeige" and loops > 1:
        return (layers - keys.number("nextn_predict_layers")) * loops
    return layers + 1 if keys.architecture == "graniteswitch" else layers


class _Keys:
    def __init__(self, metadata: Mapping[str, Any], overrides: tuple[Override, ...]) -> None:
        self.metadata = metadata
        self.overrides: dict[str, Override] = {}
        for override in overrides:
            self.overrides.setdefault(override.key, override)
        named = self.overrides.get("general.architecture")
        text = metadata.get("general.architecture", "")
        if named is not None and isinstance(named.value, bytes):
            text = named.value.decode("utf-8", "replace")
        self.architecture = text if isinstance(text, str) else ""

    def number(self, name: str, default: int = 0) -> int:
        key = f"{self.architecture}.{name}"
        override = self.overrides.get(key)
        if override is not None and override.kind == "UINT32":
            return int(override.value)
        value = self.metadata.get(key, default)
        return value if type(value) is int else default

    def first(self, name: str, default: int = 0) -> int:
        """Of a key that holds a number for each layer, or one for all."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, Array):
            return int(value[0]) if len(value) else default
        return self.number(name, default) if value is not None else default
