"""Adapters of models: GGUF files with pairs of narrow matrices (LoRA), opened and fitted to a model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic import store
from kinetic.bits import round_f32
from kinetic.errors import UnsupportedModel, UsageError
from kinetic.formats import by_type
from kinetic.gguf import Gguf
from kinetic.layers.adapted import TABLE, Lora, Pair
from kinetic.loader import LoadedFile
from kinetic.types import AdapterFile

if TYPE_CHECKING:
    from kinetic.backends.base import Weight, Weights

ENDS = (".lora_a", ".lora_b")
ALORA = "adapter.alora.invocation_tokens"
LARGEST = 2.0**127
"""Factors stay below it, far from what would overflow where they are rounded."""

MOST = 64
"""Adapters of one run: as many as a receipt may name."""


class Adapter(NamedTuple):
    """An open adapter, and how much of it is added. ``loaded`` is the caller's to close."""

    loaded: LoadedFile
    scale: float

    @property
    def name(self) -> str:
        return self.loaded.gguf.paths[0].name

    def identity(self, *, rehash: bool = False) -> AdapterFile:
        """What a receipt says of it; may hash the file. Raises FileProblem if it is no longer what was opened."""
        (file,) = self.loaded.identity(rehash=rehash).files
        return AdapterFile(file.name, file.size, file.blake3, file.sha256, self.scale)


Asked = str | os.PathLike[str] | tuple[str | os.PathLike[str], float] | Adapter
"""An adapter's file, alone or with its scale, or an open one."""


def open_adapters(asked: Iterable[Asked]) -> tuple[Adapter, ...]:
    """Those files, open, in this order. Raises UsageError, FileProblem, MalformedGguf or UnsupportedModel."""
    opened: list[Adapter] = []
    try:
        for item in asked:
            if isinstance(item, Adapter):
                opened.append(item)
            else:
                opened.append(open_adapter(*(item if isinstance(item, tuple) else (item, 1.0))))
        if len(opened) > MOST:
            raise UsageError(f"{len(opened)} adapters are more than the {MOST} that there may be", name="MANY_ADAPTERS")
    except BaseException:
        close_all(opened)
        raise
    return tuple(opened)


def open_adapter(path: str | os.PathLike[str], scale: float) -> Adapter:
    """One of them; its settings are checked, and of its tensors the names. Raises what ``open_adapters`` does."""
    scale = as_scale(path, scale)
    if store.is_bundle(path):
        message = f"{os.fspath(path)} is a bundle: an adapter is a GGUF file"
        raise UnsupportedModel(message, name="NOT_AN_ADAPTER")
    loaded = LoadedFile(Gguf.open(Path(path).expanduser()))
    try:
        _check_settings(loaded.gguf)
        _tensors(loaded.gguf)
    except BaseException:
        loaded.close()
        raise
    return Adapter(loaded, scale)


def as_scale(path: str | os.PathLike[str], scale: float) -> float:
    """A scale as it is computed with, rounded to binary32. Raises UsageError."""
    rounded = _binary32(scale)
    if not math.isfinite(rounded):
        raise UsageError(f"the scale of {os.fspath(path)} is {scale}, but must be a finite number", name="BAD_SCALE")
    return rounded + 0.0  # -0 is 0


def close_all(adapters: Iterable[Adapter]) -> None:
    for adapter in adapters:
        adapter.loaded.close()


def fit(adapters: Iterable[Adapter], model: Gguf, weights: Weights) -> tuple[Lora, ...]:
    """The adapters as those of this model. Those of scale 0 add nothing and are only checked.

    Raises UnsupportedModel where one is another model's, or adapts what this build does not.
    """
    architecture = model.get("general.architecture", "str")
    fitted = []
    for number, adapter in enumerate(adapters, 1):
        lora = _fit(adapter, number, architecture, weights)
        if adapter.scale:
            fitted.append(lora)
    return tuple(fitted)


def _check_settings(gguf: Gguf) -> None:
    name = gguf.paths[0].name
    kind, sort = gguf.get("general.type", "str", "model"), gguf.get("adapter.type", "str", "")
    if kind != "adapter":
        raise _refuse(f"{name} is no adapter: its 'general.type' is '{kind}'", "NOT_AN_ADAPTER")
    if sort != "lora":
        raise _refuse(f"{name} is an adapter of the type '{sort}', and this build knows only 'lora'", "ADAPTER_TYPE")
    if ALORA in gguf.metadata:
        message = f"{name} acts only after certain tokens ('{ALORA}'), which this build does not compute"
        raise _refuse(message, "UNSUPPORTED_ADAPTER")
    if len(gguf.shards) > 1:
        raise _refuse(f"{name} is one part of several: an adapter is one file", "SPLIT_ADAPTER")
    alpha = gguf.get("adapter.lora.alpha", "float", 0.0)
    if not math.isfinite(alpha):
        raise _refuse(f"{name}: 'adapter.lora.alpha' is {alpha}; it must be a finite number", "BAD_SETTING")


def _tensors(gguf: Gguf) -> tuple[str, ...]:
    """The tensors that a file adapts; each of its own is half of a pair."""
    name, found = gguf.paths[0].name, dict[str, set[str]]()
    for tensor in gguf.tensors:
        base, end = tensor[: -len(ENDS[0])], tensor[-len(ENDS[0]) :]
        if end not in ENDS or not base:
            message = f"{name} holds the tensor '{tensor}', which is no half of a pair (.lora_a, .lora_b)"
            raise _refuse(message, "ADAPTER_TENSOR")
        found.setdefault(base, set()).add(end)
    for base, ends in found.items():
        if len(ends) < len(ENDS):
            (missing,) = set(ENDS) - ends
            raise _refuse(f"{name} lacks '{base}{missing}'; the file is not a complete adapter", "MISSING_TENSOR")
    if not found:
        raise _refuse(f"{name} holds no tensors: there is nothing to add", "EMPTY_ADAPTER")
    return tuple(found)


def _fit(adapter: Adapter, number: int, architecture: str, weights: Weights) -> Lora:
    gguf, name = adapter.loaded.gguf, adapter.name
    made_for = gguf.get("general.architecture", "str")
    if made_for != architecture:
        message = f"{name} was made for a model of the architecture '{made_for}', and this one is '{architecture}'"
        raise _refuse(message, "ADAPTER_ARCHITECTURE")
    alpha = gguf.get("adapter.lora.alpha", "float", 0.0)
    pairs = {}
    for tensor in _tensors(gguf):
        a, b = (adapter.loaded.weights[f"{tensor}{end}"] for end in ENDS)
        rank = _rank(name, tensor, a, b, weights)
        a, b = (side._replace(name=f"adapter {number}, {side.name}") for side in (a, b))
        pairs[tensor] = Pair(a, b, _factor(name, adapter.scale, alpha, rank))
    return Lora(name, pairs)


def _rank(name: str, tensor: str, a: Weight, b: Weight, weights: Mapping[str, Weight]) -> int:
    """The width between both halves. Raises UnsupportedModel unless they fit the tensor and each other."""
    base = weights.get(tensor)
    if base is None:
        raise _refuse(f"{name} adapts the tensor '{tensor}', which this model has not", "ADAPTER_TENSOR")
    if len(base.shape) != 2:
        what = "experts" if len(base.shape) > 2 else "vectors"
        message = f"{name} adapts '{tensor}', and this build does not adapt {what}: use an adapter without it"
        raise _refuse(message, "UNSUPPORTED_ADAPTER")
    for factor in (f"{tensor.removesuffix('.weight')}.scale", *(["output.scale"] if tensor == TABLE else ())):
        if factor in weights and weights[factor].shape == (1,):  # what an adapter adds would be multiplied by it too
            message = f"{name} adapts '{tensor}', whose product this model multiplies by '{factor}'"
            raise _refuse(f"{message}: this build does not adapt such tensors", "UNSUPPORTED_ADAPTER")
    for side in (a, b):
        by_type(side.ggml_type, side.name)
    rows, width = base.shape
    rank = b.shape[-1]
    wanted = ((rows, rank), (width, rank)) if tensor == TABLE else ((rank, width), (rows, rank))
    if (a.shape, b.shape) != wanted or rank < 1:
        message = f"{name}: the pair of '{tensor}' has shapes {list(a.shape)} and {list(b.shape)}, which do not fit"
        raise _refuse(f"{message} its {rows} rows of {width}; it was made for another model", "WRONG_SHAPE")
    return rank


def _factor(name: str, scale: float, alpha: float, rank: int) -> float:
    """What a pair's product is multiplied by: scale * alpha / rank, each step binary32; scale where alpha is 0."""
    factor = _binary32(_binary32(scale * alpha) / rank) if alpha else scale
    if not math.isfinite(factor):
        raise _refuse(f"{name}: its scale {scale} times its alpha {alpha} is too large", "BAD_SCALE")
    return factor


def _binary32(value: float) -> float:
    """Rounded once; NaN where that is not finite."""
    return float(round_f32(value)) if abs(value) < LARGEST else math.nan


def _refuse(message: str, name: str) -> UnsupportedModel:
    return UnsupportedModel(message, name=name)
