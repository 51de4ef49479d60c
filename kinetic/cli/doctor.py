"""``kinetic doctor``: what this machine is, what would compute, and whether it computes exactly.

``kinetic`` without a command says the shortest part of it, and which models fit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news

if TYPE_CHECKING:
    from kinetic.api.doctor import Diagnosis
    from kinetic.api.machine import Cache, Gpu, Machine

HELP = "examine this machine: cores, memory, kernels, and whether they compute exactly"

EPILOG = """\
Compiles the kernels that are not there yet, and compares them with the reference bit for bit.

exit codes: 0 healthy; 10 values differ from the reference; 1 no kernels for this processor, or
they can't be compiled; 5 no memory for any model; 3 a state folder can't be written. Of several
the gravest: 10, 1, 5, 3

--attack-self examines no machine but this program: hostile models, templates, bundles, receipts,
keys and trust files are made in a temporary folder, and each must be refused with its own exit
code, within limits of time and memory. Exit code 1 if one is not.
"""

LISTED = 5
"""Models in each of the lists of ``welcome``."""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("doctor", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="measure and compile nothing")
    kind.add_argument("--attack-self", action="store_true", help="try hostile files on this program instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    if options.attack_self:
        from kinetic.cli.attack_self import attack_self

        return attack_self(options)
    from kinetic.api.doctor import diagnose
    from kinetic.cli.models import list_models

    with Progress("examining", quiet=options.quiet) as bar:
        told = None if options.quiet else news
        diagnosis = diagnose(list_models(), quick=options.quick, progress=bar, news=told)
    if options.json:
        import json

        print(json.dumps(_about_program() | diagnosis.plain(), ensure_ascii=False))
        return diagnosis.exit_code
    from receipts.terminal import printable

    rows = [*_rows(diagnosis)]
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(printable(f"{label:{width}}  {text}"))
    return diagnosis.exit_code


def _about_program() -> dict[str, Any]:
    import platform

    from kinetic._version import __version__
    from kinetic.types import PROFILE

    return {"kinetic": __version__, "profile": PROFILE, "python": platform.python_version()}


def _rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Label and text of each line; the verdict last."""
    facts, about = diagnosis.machine, _about_program()
    yield "program", f"kinetic {about['kinetic']} ({about['profile']}), Python {about['python']}, {facts.system}"
    yield "processor", _processor(facts)
    if facts.caches:
        yield "caches", ", ".join(map(_cache, facts.caches))
    yield "memory", _memory(facts)
    if diagnosis.bandwidth:
        yield "bandwidth", ", ".join(_bandwidth(*pair) for pair in diagnosis.bandwidth.items())
    if facts.load is not None:
        yield "load", f"{facts.load} in the last minute"
    yield "gpu", "; ".join(map(_gpu, diagnosis.gpus)) or "none found"
    if diagnosis.devices:
        yield "devices", ", ".join(f"{name}: {device}" for name, device in diagnosis.devices.items())
    for finding in diagnosis.findings:
        yield finding.topic, ("PROBLEM: " if finding.exit_code else "") + finding.text
    bad = sum(finding.exit_code != 0 for finding in diagnosis.findings)
    yield (
        "verdict",
        "healthy" if not bad else f"{bad} problem{'' if bad == 1 else 's'}, exit code {diagnosis.exit_code}",
    )


def _processor(facts: Machine) -> str:
    threads = f", {facts.cores} hardware threads" if facts.physical not in (None, facts.cores) else ""
    parts = [f"{facts.processor} ({facts.architecture}), {_cores(facts)}{threads}"]
    parts += [f"{facts.usable} of them for this process"] if facts.usable < facts.cores else []
    parts += [f"{facts.quota:g} by the container's quota"] if facts.quota else []
    return ", ".join([*parts, *facts.features])


def _cores(facts: Machine) -> str:
    count = facts.physical or facts.cores
    return f"{count} core{'' if count == 1 else 's'}"


def _cache(cache: Cache) -> str:
    size = f"{cache.size >> 20} MiB" if cache.size >= 1 << 20 else f"{cache.size >> 10} KiB"
    kind = "" if cache.kind == "unified" else f" {cache.kind}"
    return f"L{cache.level}{kind} {size}" + (f" x {cache.copies}" if cache.copies > 1 else "")


def _memory(facts: Machine) -> str:
    if facts.memory is None:
        return "unknown"
    whole = f"{facts.memory / 1e9:.1f} GB"
    return whole if facts.free is None else f"{facts.free / 1e9:.1f} of {whole} free"


def _bandwidth(threads: int, found: float | None) -> str:
    """``found`` is bytes a second."""
    counted = f"{threads} thread{'' if threads == 1 else 's'}"
    verb = "reads" if threads == 1 else "read"
    return f"{counted} can't be measured" if found is None else f"{counted} {verb} {found / 1e9:.1f} GB/s"


def _gpu(gpu: Gpu) -> str:
    parts = [gpu.name] + ([f"{gpu.memory / 1e9:.0f} GB"] if gpu.memory else [])
    return ", ".join([*parts, *([f"driver {gpu.driver}"] if gpu.driver else [])])


# --- kinetic, alone ---


def welcome() -> int:
    """This machine in a line, and models that fit, those that are here first. Loads nothing heavy."""
    from kinetic.api import machine
    from kinetic.cli.models import list_models
    from receipts.terminal import printable

    facts = machine.describe()
    for line in (_machine_line(facts), *_suggestions(facts, list_models())):
        print(printable(line))
    print("\n`kinetic doctor` examines this machine, `kinetic --help` lists the commands.")
    return 0


def _machine_line(facts: Machine) -> str:
    return f"{facts.processor}, {_cores(facts)}; {_memory(facts)} of memory".replace("free of memory", "of memory free")


def _suggestions(facts: Machine, models: list[dict[str, Any]]) -> Iterator[str]:
    import shlex

    from kinetic.api.doctor import fits

    fitting = [model for model in models if fits(model["size"], facts) == "yes"]
    for title, verb, rows in (
        ("Here, and fits:", "run", [model for model in fitting if model["path"]]),
        ("Fits, to be fetched first:", "pull", [model for model in fitting if not model["path"]]),
    ):
        if rows:
            yield from ("", title)
            names = [shlex.quote(row["name"]) for row in rows[:LISTED]]
            width = max(map(len, names))
            for row, name in zip(rows, names, strict=False):
                question = ' "Name three rivers."' if verb == "run" else ""
                licence = f", {row['license']}" if row["license"] else ""
                yield f"  kinetic {verb} {name:{width}}{question}  ({row['size'] / 1e6:,.0f} MB{licence})"
            if len(rows) > LISTED:
                yield f"  and {len(rows) - LISTED} more: kinetic models"
    if not fitting:
        yield from ("", "No model that is known fits into the memory that is free now.")
