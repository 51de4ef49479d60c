"""argparse with our manners: one-sentence errors, nothing abbreviated, nothing glued."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from kinetic.errors import UsageError

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)

NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


NO_PACK_CACHE = "keep no packed weights for the next start, and use none"


def add_pack_cache(group: Any) -> None:
    """``--no-pack-cache``, of every command that runs a model."""
    group.add_argument("--no-pack-cache", dest="pack_cache", action="store_false", help=NO_PACK_CACHE)


DEVICE = "cpu (the default), cuda[:N], opencl[:N], auto (a GPU, else the CPU), or reference (slow, defines every bit)"
GPU_LAYERS = "layers on the device, the last ones: a number, all, or auto (the default: as many as fit)"


def add_device(group: Any, *, only_for: str = "") -> None:
    """``--device`` and ``--gpu-layers``, of every command that runs a model. ``only_for`` is the format that a command
    takes them for: then nothing is the default, so that a flag that was given can be told."""
    which, default = (f"{only_for}: ", None) if only_for else ("", "cpu")
    group.add_argument("--device", action=_Device, default=default, metavar="NAME", help=which + DEVICE)
    group.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", dest="gpu_layers", action=_Layers, type=_layers,
                       default=None if only_for else "auto", metavar="N", help=which + GPU_LAYERS)  # fmt: skip


def add_experts(group: Any) -> None:
    """``--n-cpu-moe`` and ``--cpu-moe``, of commands that may have a device for models with experts."""
    group.add_argument("-ncmoe", "--n-cpu-moe", dest="cpu_moe", type=_expert_layers, default="0", metavar="N",
                       help="layers, the first ones, of whose experts the device has only those in use: "
                       "a number, all, or auto (where not all fit)")  # fmt: skip
    group.add_argument("-cmoe", "--cpu-moe", dest="cpu_moe", action="store_const", const="all", help="--n-cpu-moe all")


def _expert_layers(text: str) -> str:
    """Raises UsageError."""
    from kinetic.backends import layer_count

    layer_count(text, "n-cpu-moe")
    return text


def _layers(text: str) -> str:
    """Raises UsageError."""
    from kinetic.backends import layer_count

    layer_count(text)
    return text


class _Device(argparse.Action):
    def __call__(self, parser: Any, options: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        options.device, options.names_device = value, True


class _Layers(argparse.Action):
    """Layers that are to be somewhere else than on the CPU ask for a device, if none is named."""

    def __call__(self, parser: Any, options: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        options.gpu_layers = value
        if not getattr(options, "names_device", False):
            options.device = "cpu" if value == "0" else "auto"


def placed(options: argparse.Namespace) -> dict[str, Any]:
    """Where a model is to run, as arguments of ``kinetic.api.Model`` and everything like it."""
    from kinetic.backends import known

    device, layers = options.device or "cpu", options.gpu_layers or "auto"
    # Without layers on it a device is left alone, and need not be there.
    device = "cpu" if layers == "0" and known(device) else device
    experts = {"cpu_moe": options.cpu_moe} if hasattr(options, "cpu_moe") else {}
    return {"device": device, "gpu_layers": layers, **experts}


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Writes ``-p, --prompt TEXT`` as Python 3.13 does, so that help is the same text under every version."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"


class Parser(argparse.ArgumentParser):
    """A parser of whole words: ``-ngl7`` is refused where argparse would read ``-n gl7``."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, formatter_class=Formatter, **options)
        self._paired: set[str] = set()

    def take_pairs(self, flag: str) -> None:
        """The value of this flag is NAME:NUMBER, and may be given as two words."""
        self._paired.add(flag)

    def join_pairs(self, words: Sequence[str]) -> list[str]:
        """``words`` with the two of such a value made one, up to ``--``."""
        out: list[str] = []
        for at, word in enumerate(words):
            if word == "--":
                return [*out, *words[at:]]
            if len(out) > 1 and out[-2] in self._paired and NUMBER.fullmatch(word) and not _is_pair(out[-1]):
                out[-1] += f":{word}"
            else:
                out.append(word)
        return out

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of printing the usage and leaving."""
        if message.startswith("unrecognized arguments: ") and " -" not in message:
            message += ": a prompt of several words goes in quotes"
        raise UsageError(f"{message} (`{self.prog} --help` lists what is possible)", name="BAD_ARGUMENTS")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own would hide that the help could not be written.
        (file or sys.stderr).write(message)

    def refuse_glued(self, words: Sequence[str]) -> None:
        """Raises UsageError for the first word like -n5, -ngl7 or -eq, up to ``--``."""
        for word in words:
            if word == "--":
                return
            flag = word.partition("=")[0]
            short = word.startswith("-") and not word.startswith("--") and len(flag) > 2 and " " not in word
            if short and flag not in self._option_string_actions and not NEGATIVE_NUMBER.fullmatch(word):
                raise UsageError(
                    f"{word} is no flag of `{self.prog}`: write a flag and its value apart, as in -n 5"
                    " (and a value that begins with a dash as --flag=VALUE)",
                    name="GLUED_FLAG",
                )


def _is_pair(word: str) -> bool:
    return NUMBER.fullmatch(word.rpartition(":")[2]) is not None and ":" in word


Subcommands: TypeAlias = "argparse._SubParsersAction[Parser]"


class VersionAction(argparse.Action):
    """``--version``: the program's version and the arithmetic it speaks."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and the numerics profile")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from kinetic._version import __version__
        from kinetic.types import PROFILE

        print(f"kinetic {__version__} ({PROFILE})")
        parser.exit()
