"""What quantising a file comes to, settled before anything is read or written: each tensor's type, size and place.

plan = make_plan(source, recipe, importance)
plan.size, plan.steps, plan.substitutions()
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kinetic.errors import Malformed, UnsupportedModel, UsageError
from kinetic.gguf import Gguf, Tensor
from kinetic.gguf_types import PLAIN_TYPES, type_name
from kinetic.quantize.choice import Asked, Choice, choose
from kinetic.quantize.facts import facts
from kinetic.quantize.importance import Importance
from kinetic.quantize.metadata import Keys, add_split, quantised_keys
from kinetic.quantize.prune import renamed
from kinetic.quantize.recipe import Recipe
from kinetic.quantize.tensors import EMBEDDINGS, OUTPUT, order
from kinetic.quantize.types import TYPE_IDS, row_bytes
from kinetic.quantize.write import header, padded

if TYPE_CHECKING:
    from kinetic.bits import F32

FLOATS = ("F32", "F16", "BF16")
"""Types that are converted value by value."""

_NEED_IMPORTANCE = ("IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S")
"""What these make of a layer's weights without importance is of no use, so llama-quantize refuses it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tensor of the result. Shapes are row-major."""

    source: Tensor
    name: str
    """In the result, where a pruned model's layers have other numbers."""
    choice: Choice
    importance: F32 | None
    """float32 [experts * K], for each matrix of the tensor its own."""
    nbytes: int
    """In the result."""

    @property
    def type_id(self) -> int:
        return TYPE_IDS[self.choice.tensor_type] if self.changes else self.source.ggml_type

    @property
    def changes(self) -> bool:
        """Whether the bytes become others."""
        return self.choice.tensor_type != type_name(self.source.ggml_type)


class Part(NamedTuple):
    """One file of the result."""

    keys: Keys
    steps: list[Step]

    def header(self) -> bytes:
        """All bytes before the data."""
        return header(self.keys.values(), [(s.name, s.source.shape, s.type_id, s.nbytes) for s in self.steps])

    def size(self) -> int:
        return len(self.header()) + sum(padded(step.nbytes) for step in self.steps)


class Substitution(NamedTuple):
    """Tensors that get another type than their recipe asks for, since their rows don't divide into its blocks."""

    wanted: str
    instead: str
    tensors: int
    nbytes: int
    """In the result."""
    example: str


class Unweighted(NamedTuple):
    """Tensors that are quantised without importance, though there is a matrix."""

    tensors: int
    of: int
    """Of all that are quantised."""
    example: str
    """The first; "" if there is none."""


@dataclass(frozen=True, slots=True)
class Plan:
    source: Gguf
    recipe: Recipe
    importance: Importance | None
    parts: list[Part]

    @property
    def steps(self) -> list[Step]:
        return [step for part in self.parts for step in part.steps]

    @property
    def kernels(self) -> frozenset[int]:
        """ggml type ids that rows will be quantised to."""
        made = {step.choice.tensor_type for step in self.steps if step.changes}
        return frozenset(TYPE_IDS[name] for name in made - set(FLOATS))

    def unweighted(self) -> Unweighted | None:
        """None without a matrix, or where nothing is quantised."""
        made = [step for step in self.steps if step.changes and step.choice.tensor_type not in FLOATS]
        if self.importance is None or not made:
            return None
        without = [step.name for step in made if step.importance is None]
        return Unweighted(len(without), len(made), without[0] if without else "")

    def check(self) -> None:
        """Raises UsageError and UnsupportedModel for whatever could not be done to the end."""
        steps = self.steps
        for step in steps:
            _check_importance(step, self.recipe, self.importance)
        for step in steps:
            if step.changes:
                _check_source(step, self.recipe)
                _check_kernel(step)
            if self.recipe.no_fallback:
                _check_substitution(step)

    def substitutions(self) -> list[Substitution]:
        """By how many bytes they concern, most first."""
        found: Counter[tuple[str, str]] = Counter()
        tensors: Counter[tuple[str, str]] = Counter()
        example: dict[tuple[str, str], str] = {}
        for step in self.steps:
            key = (step.choice.wanted, step.choice.tensor_type)
            if key[0] != key[1]:
                found[key] += step.nbytes
                tensors[key] += 1
                example.setdefault(key, step.name)
        return [Substitution(*key, tensors[key], nbytes, example[key]) for key, nbytes in found.most_common()]


def make_plan(source: Gguf, recipe: Recipe, importance: Importance | None = None) -> Plan:
    """Raises UsageError, UnsupportedModel and Malformed where a tensor's type can't be told; then ``check``."""
    if importance is not None and not importance.entries:
        importance = None
    shape = facts(source.metadata, recipe.overrides)
    if not shape.architecture:
        raise source.shards[0].bad("MISSING_KEY", "key 'general.architecture' is missing, or no text")
    names, layers_left = renamed(sorted(source.tensors, key=order), recipe.prune)
    if recipe.keep_split:
        places = source.tensors
        names = dict(sorted(names.items(), key=lambda pair: (places[pair[0]].shard, places[pair[0]].offset)))
    asked = [_asked(source.tensors[old], new) for old, new in names.items()]
    choices = choose(asked, recipe, shape, importance is not None)
    steps = [
        _step(source.tensors[old], new, choice, importance)
        for (old, new), choice in zip(names.items(), choices, strict=True)
    ]
    keys = quantised_keys(source, recipe, importance)
    if recipe.prune:
        keys.put(f"{shape.architecture}.block_count", "UINT32", layers_left)
    return Plan(source, recipe, importance, list(_parts(steps, keys, len(source.shards) if recipe.keep_split else 1)))


def _asked(tensor: Tensor, name: str) -> Asked:
    if tensor.nbytes < 0:
        problem = f"tensor {tensor.name!r} is stored as {type_name(tensor.ggml_type)}, whose size is not known"
        raise UnsupportedModel(f"{problem}: use a file with other weights or a newer build", name="UNKNOWN_TENSOR_TYPE")
    return Asked(name, tensor.shape, type_name(tensor.ggml_type))


def _step(tensor: Tensor, name: str, choice: Choice, importance: Importance | None) -> Step:
    changes = choice.tensor_type != type_name(tensor.ggml_type)
    values = importance.entries.get(tensor.name) if importance is not None and changes else None
    expected = tensor.shape[-1] * (tensor.shape[-3] if len(tensor.shape) > 2 else 1)
    if values is not None and values.size != expected:
        if name not in EMBEDDINGS:  # Theirs never fits: rows are looked up there, not multiplied.
            problem = f"the importance of tensor {tensor.name!r} has {values.size} values, but {expected} are needed"
            raise Malformed(f"{problem}: make one from this very model", name="IMATRIX_MISMATCH")
        values = None
    size = math.prod(tensor.shape[:-1]) * row_bytes(choice.tensor_type, tensor.shape[-1]) if changes else tensor.nbytes
    return Step(tensor, name, choice, values, size)


def _parts(steps: list[Step], keys: Keys, count: int) -> Iterator[Part]:
    if count == 1:
        yield Part(keys, steps)
        return
    for number in range(count):
        own = add_split(keys if number == 0 else Keys(), number, count, len(steps))
        yield Part(own, [step for step in steps if step.source.shard == number])


# -- what can't be done


def needs_importance(step: Step, recipe: Recipe) -> bool:
    """As llama-quantize has it: few bits, or Q2_K in a file of Q2_K_S, but never embeddings or output."""
    chosen = step.choice.tensor_type
    is_q2_k_s = chosen == "Q2_K" and recipe.file_type.name == "Q2_K_S"
    return step.name not in (*EMBEDDINGS, OUTPUT) and (chosen in _NEED_IMPORTANCE or is_q2_k_s)


def _check_importance(step: Step, recipe: Recipe, importance: Importance | None) -> None:
    if not (step.choice.may_change and step.importance is None and needs_importance(step, recipe)):
        return
    chosen = step.choice.tensor_type
    if importance is None:
        problem = f"tensor {step.name!r} would become {chosen}, which is of no use without an importance matrix"
        raise UsageError(f"{problem}: give one with --imatrix", name="IMATRIX_NEEDED")
    if step.changes:
        problem = f"{importance.path} says nothing of tensor {step.name!r}, which would become {chosen}"
        raise UsageError(f"{problem} and is of no use so: make a matrix from this very model", name="IMATRIX_NEEDED")


def _check_source(step: Step, recipe: Recipe) -> None:
    stored, name = type_name(step.source.ggml_type), step.source.name
    if stored in FLOATS:
        return
    if stored in PLAIN_TYPES:
        problem = f"tensor {name!r} is stored as {stored}, which can't be converted to {step.choice.tensor_type}"
        raise UnsupportedModel(f"{problem}: use a file with other weights", name="UNSUPPORTED_SOURCE")
    if not recipe.allow_requantize:
        problem = f"tensor {name!r} is quantised to {stored} already, and to quantise it again loses more"
        raise UsageError(f"{problem}: start from an F16 file, or say --allow-requantize", name="REQUANTIZE")
    from kinetic.formats import RUNNABLE

    if step.source.ggml_type not in RUNNABLE:
        problem = f"tensor {name!r} is stored as {stored}, which this build can't decode"
        raise UnsupportedModel(f"{problem}: start from an F16 file", name="UNSUPPORTED_SOURCE")


def _check_kernel(step: Step) -> None:
    from kinetic.backends.cpu.quantise import NEEDS_IMATRIX, QUANTISABLE

    chosen = step.choice.tensor_type
    if chosen in FLOATS:
        return
    if step.type_id not in QUANTISABLE:
        problem = f"tensor {step.name!r} would become {chosen}, which this build can't quantise to"
        raise UsageError(f"{problem}: ask for another type", name="UNSUPPORTED_TYPE")
    if step.type_id in NEEDS_IMATRIX and step.importance is None:
        problem = f"tensor {step.name!r} can't become {chosen} without its importance"
        raise UsageError(f"{problem}: give a matrix that names it, or ask for another type", name="IMATRIX_NEEDED")


def _check_substitution(step: Step) -> None:
    wanted, chosen = step.choice.wanted, step.choice.tensor_type
    if wanted != chosen:
        row = step.source.shape[-1]
        problem = f"tensor {step.name!r} would become {chosen} instead of {wanted}, since its rows of {row} values"
        raise UsageError(f"{problem} don't divide into {wanted}'s blocks: leave out --no-fallback", name="FALLBACK")
