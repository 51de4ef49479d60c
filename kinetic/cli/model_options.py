"""Flags that change what a model computes, under llama.cpp's names: adapters, and settings of rotary positions."""

from __future__ import annotations

import os
from argparse import Action, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from kinetic.cli.parser import Parser

ROPE_FLAGS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "rope_scale": (float, "X", "stretch positions so many times"),
    "rope_freq_base": (float, "X", "base of the frequencies"),
    "rope_freq_scale": (float, "X", "the same as --rope-scale, as 1/X"),
    "yarn_orig_ctx": (int, "N", "YaRN: the context before it was stretched"),
    "yarn_ext_factor": (float, "X", "YaRN: how much of it there is, 0 to 1"),
    "yarn_attn_factor": (float, "X", "what cosines and sines are multiplied by, without YaRN"),
    "yarn_beta_slow": (float, "X", "YaRN: turns below which a pair is stretched whole"),
    "yarn_beta_fast": (float, "X", "YaRN: turns above which a pair is left alone"),
}
"""Setting, as kinetic.types.RopeOverrides has it: type, name of the value, meaning."""


def add_changes(parser: Parser) -> None:
    group = parser.add_argument_group(
        "changes of the model", "A receipt names them, for they change the answer. The file's settings hold by default."
    )
    group.add_argument("--lora", action=_Adapters, type=_plain, default=[], metavar="FILE",
                       help="add this adapter, a GGUF file (repeatable)")  # fmt: skip
    parser.take_pairs("--lora-scaled")
    group.add_argument("--lora-scaled", dest="lora", action=_Adapters, type=_scaled, default=[],
                       metavar="FILE:X", help="add X times this adapter; X may be a word of its own")  # fmt: skip
    group.add_argument("--rope-scaling", choices=("none", "linear", "yarn"), metavar="KIND",
                       help="how positions are stretched: none, linear, yarn")  # fmt: skip
    for name, (kind, metavar, meaning) in ROPE_FLAGS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=meaning)


def changes(options: Namespace) -> dict[str, Any]:
    """What the flags say, as arguments of ``kinetic.api.Model``."""
    given = {name: getattr(options, name) for name in ("rope_scaling", *ROPE_FLAGS)}
    return {"adapters": options.lora, "rope": {name: value for name, value in given.items() if value is not None}}


class _Adapters(Action):
    """Both flags add to one list, so that adapters stay in the order in which they were named."""

    def __call__(self, parser: Any, options: Namespace, values: Any, flag: str | None = None) -> None:
        setattr(options, self.dest, [*getattr(options, self.dest), *values])


def _plain(text: str) -> list[Any]:
    return [(name, 1.0) for name in _names(text)]


def _scaled(text: str) -> list[Any]:
    out = []
    for item in _names(text):
        name, _, scale = item.rpartition(":")
        try:
            out.append((name or _fail(item), float(scale)))
        except ValueError:
            _fail(item)
    return out


def _fail(text: str) -> str:
    raise ArgumentTypeError(f"{text!r} is not of the form FILE:X, X being a number")


def _names(text: str) -> list[str]:
    """One, or several with commas between, unless there is a file of the whole name."""
    return [text] if os.path.exists(text) else [name for name in text.split(",") if name]
