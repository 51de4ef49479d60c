"""A quantisation as one line of text, as a bundle records it: ``Q4_K_M --output-tensor-type Q6_K --imatrix im.gguf``.

FORMAT.md (Manifest) has the grammar. ``read`` takes options in any order, words quoted as a shell has them, and names
in small letters; ``write`` gives the one form that is recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kinetic.errors import UsageError
from kinetic.quantize.recipe import Override, Recipe, is_utf8, parse_layers, parse_override, parse_tensor_type
from kinetic.quantize.types import file_type, tensor_type

FLAG, ONCE, REPEATED = "flag", "once", "repeated"

OPTIONS: Final = {
    "--pure": FLAG,
    "--leave-output-tensor": FLAG,
    "--output-tensor-type": ONCE,
    "--token-embedding-type": ONCE,
    "--tensor-type": REPEATED,
    "--allow-requantize": FLAG,
    "--no-fallback": FLAG,
    "--imatrix": ONCE,
    "--include-weights": REPEATED,
    "--exclude-weights": REPEATED,
    "--override-kv": REPEATED,
    "--prune-layers": ONCE,
}
"""Those of `kinetic quantize` that decide a byte, in the order in which they are written."""

_KINDS: Final = {"UINT32": "int", "FLOAT32": "float", "BOOL": "bool", "STRING": "str"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the files. The matrix is used for names with a part in ``include``, or none in ``exclude``."""

    recipe: Recipe
    matrix: str = ""
    """The name that the importance matrix goes by in the quantised file; "" if there is none."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def read(text: str) -> Settings:
    """Raises UsageError."""
    if not is_utf8(text):
        raise _bad(f"the settings {text!r} are not UTF-8")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _bad(f"{text!r} can't be read as words: {error}") from None
    if not words:
        raise _bad("the type is missing, as in 'Q4_K_M --pure'")
    given = _options(words[1:])
    once = {name: values[0] for name, values in given.items()}
    matrix, include, exclude = _matrix(given)
    recipe = Recipe(
        file_type(words[0]),
        output_type=tensor_type(once["--output-tensor-type"]) if "--output-tensor-type" in once else "",
        embedding_type=tensor_type(once["--token-embedding-type"]) if "--token-embedding-type" in once else "",
        tensor_types=tuple(map(parse_tensor_type, given.get("--tensor-type", ()))),
        pure="--pure" in once,
        leave_output="--leave-output-tensor" in once,
        allow_requantize="--allow-requantize" in once,
        no_fallback="--no-fallback" in once,
        prune=parse_layers(once["--prune-layers"]) if "--prune-layers" in once else frozenset(),
        overrides=tuple(map(parse_override, given.get("--override-kv", ()))),
    )
    return Settings(recipe, matrix, include, exclude)


def _options(words: Iterable[str]) -> dict[str, list[str]]:
    """Each option and its values; a flag's is ""."""
    given: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        kind = OPTIONS.get(name)
        if kind is None or (kind == FLAG and equals):
            known = ", ".join(OPTIONS)
            raise _bad(f"{word!r} is no setting of one quantised file: after the type come {known}")
        if kind != FLAG and not equals:
            value = next(rest, "")
        if kind != FLAG and not value:
            raise _bad(f"{name} needs a value")
        if kind == ONCE and name in given:
            raise _bad(f"{name} is given twice")
        given.setdefault(name, []).append(value)
    return given


def _matrix(given: dict[str, list[str]]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    include, exclude = (tuple(sorted(set(given.get(f"--{word}-weights", ())))) for word in ("include", "exclude"))
    if include and exclude:
        raise _bad("--include-weights and --exclude-weights exclude each other")
    return given.get("--imatrix", [""])[0], include, exclude


def _bad(problem: str) -> UsageError:
    return UsageError(problem, name="BAD_SETTINGS")


def write(settings: Settings) -> str:
    """The one line that ``read`` makes the same of. What is as it is by default isn't in it."""
    given = _given(settings)
    words = [settings.recipe.file_type.mixture]
    for name, kind in OPTIONS.items():
        for value in given[name]:
            words += [name] if kind == FLAG else [name, value]
    return shlex.join(words)


def _given(settings: Settings) -> dict[str, list[str]]:
    """The values of each option; of a flag that is set one, which is not written."""
    recipe = settings.recipe
    return {
        "--pure": [""] * recipe.pure,
        "--leave-output-tensor": [""] * recipe.leave_output,
        "--output-tensor-type": [recipe.output_type] * bool(recipe.output_type),
        "--token-embedding-type": [recipe.embedding_type] * bool(recipe.embedding_type),
        "--tensor-type": [f"{pattern}={name}" for pattern, name in recipe.tensor_types],
        "--allow-requantize": [""] * recipe.allow_requantize,
        "--no-fallback": [""] * recipe.no_fallback,
        "--imatrix": [settings.matrix] * bool(settings.matrix),
        "--include-weights": list(settings.include),
        "--exclude-weights": list(settings.exclude),
        "--override-kv": list(map(_override, recipe.overrides)),
        "--prune-layers": [",".join(map(str, sorted(recipe.prune)))] * bool(recipe.prune),
    }


def _override(override: Override) -> str:
    value = override.value
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return f"{override.key}={_KINDS[override.kind]}:{text.lower() if isinstance(value, bool) else text}"
