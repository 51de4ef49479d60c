"""What names of models say: the files of a split one, a repository on a hub, a quantisation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from kinetic.errors import UsageError

SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

REPO = r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
REVISION = r"[A-Za-z0-9][\w./-]*"
HUB_NAME = re.compile(
    rf"(?:hf:)?{REPO}(?:@(?P<revision>{REVISION}))?(?::(?P<choice>[\w][\w.+/() -]*))?(?:@(?P<late>{REVISION}))?",
    re.ASCII,
)

LABEL = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:(?:I?Q[1-8]|TQ[12]|MXFP4|NVFP4)[A-Za-z0-9_]*|BF16|FP?16|FP?32)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
"""How makers of GGUF files write the quantisation into their names: Q4_K_M, UD-Q4_K_XL, IQ2_XXS, BF16."""

DEFAULTS = ("Q4_K_M", "Q8_0")
"""What is taken of a repository when nothing is said: first the one, else the other, else the only model there is."""

NO_MODELS = ("mmproj", "imatrix")
"""GGUF files that can't answer: projectors of pictures, statistics for quantising."""


class HubName(NamedTuple):
    """``hf:OWNER/REPO[@REVISION][:CHOICE]``; revision and choice are "" where they aren't given."""

    repo: str
    revision: str
    choice: str

    def __str__(self) -> str:
        return f"hf:{self.repo}{self.revision and f'@{self.revision}'}{self.choice and f':{self.choice}'}"


def hub_name(text: str) -> HubName | None:
    """What a text names on a hub, or None; without ``hf:`` it must have a choice, to be told from a path.

    Raises UsageError for a text that begins with ``hf:`` and goes on with no such name.
    """
    match = HUB_NAME.fullmatch(text)
    is_marked = text.startswith("hf:")
    repo = match["repo"] if match else ""
    # A hub allows neither of the two; the second also keeps OWNER--REPO unambiguous.
    if match and ".." not in text and "--" not in repo and not (match["revision"] and match["late"]):
        if is_marked or match["choice"]:
            return HubName(repo, match["revision"] or match["late"] or "", match["choice"] or "")
        return None
    if is_marked:
        raise UsageError(
            f"{text} is not of the form hf:OWNER/REPO, hf:OWNER/REPO:QUANT or hf:OWNER/REPO@REVISION:QUANT",
            name="BAD_HUB_NAME",
        )
    return None


def shards(path: Path) -> list[Path]:
    """The files of the model that this file belongs to, in order; they need not be there."""
    split = SPLIT_NAME.fullmatch(path.name)
    if not split or not 1 <= int(split[2]) <= int(split[3]):
        return [path]
    return [path.with_name(f"{split[1]}-{number:05}-of-{split[3]}.gguf") for number in range(1, int(split[3]) + 1)]


def is_first(name: str) -> bool:
    """Whether a file stands for its model: false for the second and later files of a split one."""
    split = SPLIT_NAME.fullmatch(name)
    return not split or int(split[2]) == 1


def models_among(files: Iterable[str]) -> list[str]:
    """Of paths, the first file of each model that can answer, sorted."""
    named = ((file, file.rpartition("/")[2]) for file in files)
    return sorted(
        file
        for file, name in named
        if name.endswith(".gguf") and is_first(name) and not any(word in name.lower() for word in NO_MODELS)
    )


def label(file: str) -> str:
    """The quantisation that a path names, in capitals; of its folders only if the file's own name has none. Or ""."""
    for part in reversed(file.removesuffix(".gguf").split("/")):
        if found := LABEL.findall(part):
            return str(found[-1]).upper()
    return ""


def choose(models: Iterable[str], choice: str) -> list[str]:
    """The models that a choice means: a file, a quantisation, or else a part of a name; all of them if it can't tell.

    Without a choice: what DEFAULTS says.
    """
    models = list(models)
    if not choice:
        named = ([model for model in models if label(model) == wanted] for wanted in DEFAULTS)
        return next(filter(None, named), models)
    wanted = choice.lower()
    part = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])")
    tests: tuple[Callable[[str], bool], ...] = (
        lambda model: wanted in (model, model.removesuffix(".gguf")),
        lambda model: wanted in (model.rpartition("/")[2], model.rpartition("/")[2].removesuffix(".gguf")),
        lambda model: wanted == label(model).lower(),
        lambda model: part.search(model) is not None,
    )
    fitting = ([model for model in models if test(model.lower())] for test in tests)
    return next(filter(None, fitting), [])


def short_names(models: Iterable[str]) -> dict[str, str]:
    """The shortest choice that means each model alone: its quantisation if no other has it, else its path."""
    models = list(models)
    labels = [label(model) for model in models]
    return {model: its if its and labels.count(its) == 1 else model for model, its in zip(models, labels, strict=True)}
