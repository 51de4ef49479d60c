"""What a file of Gemma 4 says of its layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kinetic.backends.base import Attention, Rope, Routing, Weights
from kinetic.formats import by_type
from kinetic.models.context_settings import stretching
from kinetic.models.experts import expert_width, read_mixture
from kinetic.models.family import expect_shapes, refuse, rope_divisors, rotary
from kinetic.models.layer_sizes import Sizes, read_sizes
from kinetic.models.settings import Dense, optional_setting, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "gemma4"


class Layer(NamedTuple):
    """``stores``: it has keys and values of its own; ``spec.layer`` names the layer whose it reads."""

    spec: Attention
    stores: bool
    rope: Rope
    ffn: int
    routing: Routing | None
    output_scale: float | None


class Settings(NamedTuple):
    """Letters as in ``backends.base``. ``softcap`` and ``per_layer_width`` are 0 where the model has none."""

    width: int
    vocab_size: int
    context_length: int
    eps: float
    softcap: float
    per_layer_width: int
    experts: int
    expert_ffn: int
    layers: tuple[Layer, ...]


def read(gguf: Gguf, weights: Weights) -> Settings:
    """Raises UnsupportedModel with what is wrong, or with what this build can't do."""
    d = read_dense(gguf, NAME, varied=True)
    softcap = gguf.get(f"{NAME}.final_logit_softcapping", "float", 0.0)
    if not (math.isfinite(softcap) and softcap >= 0):
        raise refuse("BAD_SETTING", f"'{NAME}.final_logit_softcapping' is {softcap}; it must not be negative")
    kind, factor = stretching(gguf, NAME)
    if kind not in ("none", "linear") or factor != 1.0:
        raise refuse(
            "UNSUPPORTED_ROPE", f"stretched positions ({kind}, {factor:g} times) are not supported for '{NAME}'"
        )
    count = gguf.get(f"{NAME}.expert_count", "int", 0)
    mixture = read_mixture(gguf, NAME, expert_width(gguf, NAME, d)) if count else None
    extra = optional_setting(gguf, f"{NAME}.embedding_length_per_layer_input", 0)
    sizes = read_sizes(gguf, NAME, d)
    specs, ropes = _attention(gguf, d, sizes), _ropes(gguf, weights, d)
    layers = []
    for i, spec in enumerate(specs):
        routing = mixture.routing if mixture and f"blk.{i}.ffn_gate_inp.weight" in weights else None
        scale = _number(weights, f"blk.{i}.layer_output_scale.weight")
        layers.append(Layer(spec, spec.layer == i, ropes[spec.window > 0], sizes[i].ffn, routing, scale))
    experts = (mixture.count, mixture.ffn) if mixture else (0, 0)
    return Settings(d.width, d.vocab_size, d.context_length, d.eps, softcap, extra, *experts, tuple(layers))


def _attention(gguf: Gguf, d: Dense, sizes: tuple[Sizes, ...]) -> list[Attention]:
    """Layers with a window have heads of their own width. The last ones of all may read what an earlier one stored:
    the last of the same kind that stores anything."""
    local = _local(gguf, d)
    window = optional_setting(gguf, f"{NAME}.attention.sliding_window", 0)
    if any(local) and not window:
        raise refuse("BAD_SETTING", f"'{NAME}.attention.sliding_window' is missing, and some layers have a window")
    widths = {False: d.head_dim, True: _swa_width(gguf, d)}
    first_shared = d.layers - gguf.get(f"{NAME}.attention.shared_kv_layers", "int", 0)
    if not 1 <= first_shared <= d.layers:
        raise refuse("BAD_SETTING", f"'{NAME}.attention.shared_kv_layers' must leave one of the {d.layers} layers")
    specs: list[Attention] = []
    for i in range(d.layers):
        spec = Attention(i, sizes[i].heads, sizes[i].kv_heads, widths[local[i]], 1.0, window if local[i] else 0)
        specs.append(spec if i < first_shared else _reading(spec, specs[:first_shared]))
    return specs


def _reading(spec: Attention, stored: list[Attention]) -> Attention:
    for source in reversed(stored):
        if source.window == spec.window:
            if source.kv_heads != spec.kv_heads:
                message = f"layer {spec.layer} shares keys of {source.kv_heads} heads, where it has {spec.kv_heads}"
                raise refuse("BAD_HEAD_COUNT", message)
            return Attention(source.layer, spec.heads, spec.kv_heads, spec.head_dim, spec.scale, spec.window)
    raise refuse("UNSUPPORTED_LAYERS", f"layer {spec.layer} shares keys, and no layer of its kind stores any")


def _local(gguf: Gguf, d: Dense) -> list[bool]:
    """Which layers have a window."""
    key = f"{NAME}.attention.sliding_window_pattern"
    listed = gguf.metadata.get(key)
    if listed is None or isinstance(listed, (int, float, str)) or len(listed) < d.layers:
        raise refuse("BAD_SETTING", f"'{key}' must say of each of the {d.layers} layers whether it has a window")
    return [bool(item) for item in list(listed)[: d.layers]]


def _swa_width(gguf: Gguf, d: Dense) -> int:
    width = optional_setting(gguf, f"{NAME}.attention.key_length_swa", d.head_dim)
    values = optional_setting(gguf, f"{NAME}.attention.value_length_swa", width)
    if values != width:
        raise refuse("UNSUPPORTED_HEADS", f"value heads of width {values} beside key heads of {width}")
    return width


def _ropes(gguf: Gguf, weights: Weights, d: Dense) -> dict[bool, Rope]:
    """Rotations of layers with a window, and of those without."""
    if (factors := weights.get("rope_freqs.weight")) is not None:
        expect_shapes(weights, {factors.name: (d.head_dim // 2,)})
    width = _swa_width(gguf, d)
    rotated = optional_setting(gguf, f"{NAME}.rope.dimension_count_swa", min(d.rope_width, width))
    if rotated > width or rotated % 2:
        raise refuse("BAD_ROPE_WIDTH", f"{NAME}.rope.dimension_count_swa {rotated} does not fit heads of {width}")
    base = gguf.get(f"{NAME}.rope.freq_base_swa", "float", d.rope_base)
    if not (math.isfinite(base) and base > 1.0):
        raise refuse("BAD_SETTING", f"'{NAME}.rope.freq_base_swa' is {base}; it must be a number above 1")
    return {
        True: rotary(base, rotated, d.context_length, interleaved=False),
        False: rotary(d.rope_base, d.rope_width, d.context_length, interleaved=False, divisors=rope_divisors(weights)),
    }


def _number(weights: Weights, name: str) -> float | None:
    """The one value of a tensor, if the file has it."""
    weight = weights.get(name)
    if weight is None:
        return None
    expect_shapes(weights, {name: (1,)})
    value = float(by_type(weight.ggml_type, name).decode(weight.data).reshape(-1)[0])
    if not math.isfinite(value):
        raise refuse("BAD_SETTING", f"tensor '{name}' holds {value}; it must be a finite number")
    return value
