"""Model files with smaller weights: `kinetic quantize` from Python, and any tensor's bytes under a recipe.

quantize("model-F16.gguf", "model-Q4_K_M.gguf", "Q4_K_M")
for name, type, data in tensors("model-F16.gguf", Recipe(file_type("Q4_K_M")), ["output.weight"]): ...
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import store
from kinetic.attest import foreign_errors
from kinetic.errors import FileProblem, UsageError
from kinetic.loader import open_model_file
from kinetic.quantize.recipe import Recipe, parse_tensor_type
from kinetic.quantize.types import file_type
from kinetic.quantize.write import padded

if TYPE_CHECKING:
    from kinetic.quantize.importance import Importance
    from kinetic.quantize.plan import Part, Plan, Substitution, Unweighted

__all__ = [
    "Quantised",
    "Recipe",
    "default_target",
    "file_type",
    "parse_tensor_type",
    "planned",
    "quantize",
    "read_importance",
    "read_tensor_types",
    "summary",
    "target_paths",
    "tensors",
]

Name = str | os.PathLike[str]
News = Callable[[str], None]

MOST_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was written. Sizes are bytes of tensor data."""

    paths: tuple[Path, ...]
    size_before: int
    size: int
    values: int
    """Weights in all tensors."""
    substitutions: list[Substitution]
    unweighted: Unweighted | None
    """Tensors of which the importance matrix says nothing; None if there is no matrix."""


def quantize(
    source: Name,
    target: Name,
    type: str | Recipe,
    *,
    importance: Importance | None = None,
    threads: int = 0,
    progress: store.Progress | None = None,
    news: News | None = None,
    **settings: Any,
) -> Quantised:
    """Write ``source`` with smaller weights to ``target``, which must not exist.

    ``type`` is a name such as Q4_K_M, to which ``settings`` may add those of kinetic.quantize.recipe.Recipe, or a
    recipe; ``importance`` comes from ``read_importance``. ``threads`` 0 is one for each core. ``progress`` is told
    (bytes read, in all), ``news`` of kernels that must be compiled first. Raises UsageError, FileProblem,
    UnsupportedModel or Malformed, and then leaves nothing.
    """
    from kinetic.backends.cpu.system import available_cores

    recipe = type if isinstance(type, Recipe) else Recipe(file_type(type), **settings)
    _require_other(source, target)
    with planned(source, recipe, importance) as plan:
        paths = target_paths(target, plan)
        _write(plan, paths, threads or available_cores(), progress, news)
        return summary(plan, paths)


def tensors(
    source: Name,
    recipe: Recipe,
    names: Iterable[str] | None = None,
    *,
    importance: Importance | None = None,
    threads: int = 0,
    news: News | None = None,
) -> Iterator[tuple[str, str, bytes]]:
    """Name, type and bytes of each tensor (or of those in ``names``) as ``quantize`` would write them, in its order.

    Nothing is written. Raises as ``quantize`` does, and UsageError for a name that the result won't have.
    """
    from kinetic.backends.cpu.system import available_cores
    from kinetic.quantize.convert import Converter

    with planned(source, recipe, importance) as plan:
        steps = plan.steps
        if names is not None:
            wanted = set(names)
            steps = [step for step in steps if step.name in wanted]
            if missing := sorted(wanted - {step.name for step in steps}):
                raise UsageError(f"there will be no tensor {missing[0]!r}: check its name", name="MISSING_TENSOR")
        converter = Converter(plan, threads or available_cores(), news)
        for step in steps:
            data = b"".join(bytes(piece) for _, piece in converter.pieces([step]))
            yield step.name, step.choice.tensor_type, data


@contextmanager
def planned(
    source: Name, recipe: Recipe, importance: Importance | None = None, *, check: bool = True
) -> Iterator[Plan]:
    """What quantising would come to. The source is open meanwhile. Raises for what couldn't be done, if ``check``."""
    from kinetic.quantize.plan import make_plan

    with open_model_file(store.resolve(source)) as file:
        plan = make_plan(file.gguf, recipe, importance)
        if check:
            plan.check()
        yield plan
        file.check_unchanged()


def read_importance(path: Name | None, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> Importance | None:
    """An importance matrix, without the tensors that shall go without. Raises FileProblem, Malformed, UsageError."""
    include, exclude = tuple(include), tuple(exclude)
    if include and exclude:
        raise UsageError("--include-weights and --exclude-weights exclude each other", name="BAD_ARGUMENTS")
    if path is None:
        return None
    from kinetic.quantize import importance

    if not os.path.isfile(path):
        raise FileProblem(f"{os.fspath(path)} is not there, or no regular file: check the path", name="FILE_NOT_FOUND")
    return importance.read(path).only(include, exclude)


def read_tensor_types(path: Name) -> list[tuple[str, str]]:
    """Patterns and tensor types from a text file of words NAME=TYPE. Raises FileProblem, LimitExceeded, UsageError."""
    with foreign_errors():
        from ktc.files import read_bounded

        text = read_bounded(path, MOST_TEXT_BYTES).decode("utf-8", "surrogateescape")
    return [parse_tensor_type(word) for word in text.split()]


def summary(plan: Plan, paths: Iterable[Path] = ()) -> Quantised:
    steps = plan.steps
    return Quantised(
        tuple(paths),
        sum(step.source.nbytes for step in steps),
        sum(step.nbytes for step in steps),
        sum(math.prod(step.source.shape) for step in steps),
        plan.substitutions(),
        plan.unweighted(),
    )


# -- files


def default_target(source: Name, name: str, keep_split: bool = False) -> Path:
    """Where llama-quantize writes if it is told no name: beside the source, or here for a name of `kinetic models`."""
    folder = Path(source).expanduser().parent if os.path.lexists(os.path.expanduser(source)) else Path()
    return folder / (f"ggml-model-{name}" + ("" if keep_split else ".gguf"))


def target_paths(target: Name, plan: Plan) -> list[Path]:
    """One file, or with keep_split a file for each part of the source, named as such."""
    path = Path(target)
    if not plan.recipe.keep_split:
        return [path]
    stem, count = re.sub(r"\.gguf$", "", path.name), len(plan.parts)
    return [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def _require_other(source: Name, target: Name) -> None:
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise UsageError(f"{os.fspath(target)} is the source itself: give another name", name="SAME_FILE")


def _write(plan: Plan, paths: list[Path], threads: int, progress: store.Progress | None, news: News | None) -> None:
    """All files or none: each has a temporary name until the last is whole."""
    from kinetic.quantize.convert import Converter
    from ktc.newfile import NewFile

    with foreign_errors(), ExitStack() as stack:
        files = [stack.enter_context(NewFile(path)) for path in paths]
        converter = Converter(plan, threads, news)
        done, total = 0, sum(step.source.nbytes for step in plan.steps)
        for part, file in zip(plan.parts, files, strict=True):
            for count in _write_part(part, file, converter):
                done += count
                if progress:
                    progress(done, total)
        plan.source.check_unchanged()
        for file in files:
            file.keep()


def _write_part(part: Part, file: Any, converter: Any) -> Iterator[int]:
    """Yields how many bytes of the source each piece took."""
    file.write(part.header())
    written = 0
    for step, piece in converter.pieces(part.steps):
        file.write(piece.data)
        written += piece.nbytes
        yield piece.nbytes * step.source.nbytes // max(1, step.nbytes)
        if written == step.nbytes:
            file.write(bytes(padded(written) - written))
            written = 0
