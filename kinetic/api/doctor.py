"""Is this machine fit to run models, and with what? The examination of ``kinetic doctor``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic import store
from kinetic.api import machine
from kinetic.api.machine import Gpu, Machine
from kinetic.errors import KineticError

DIFFERS, FAULT, MEMORY, FOLDER = 10, 1, 5, 3
"""Exit codes, the gravest first: other bits than the reference's, kernels that can't be had, no memory, a folder."""

SHARE = 1.3
"""Memory that running a model takes, to the size of its file."""

RECORDS = "bench"
"""A folder of its own beside the models (kinetic.api.bench)."""


class Finding(NamedTuple):
    """One thing that was looked at. ``exit_code`` 0: nothing is wrong with it."""

    topic: str
    text: str
    exit_code: int = 0


class Diagnosis(NamedTuple):
    """All that was found out."""

    machine: Machine
    gpus: tuple[Gpu, ...]
    devices: dict[str, str]
    """Names of OpenCL and CUDA devices by what `--device` calls them."""
    bandwidth: dict[int, float | None]
    """Bytes a second that so many threads read together; empty where it wasn't measured."""
    isa: str
    """Instruction set of the kernels, "" if there are none for this processor."""
    threads: int
    findings: list[Finding]

    @property
    def exit_code(self) -> int:
        """0, or that of the gravest finding."""
        codes = {finding.exit_code for finding in self.findings}
        return next((code for code in (DIFFERS, FAULT, MEMORY, FOLDER) if code in codes), 0)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self._asdict(),
            "machine": self.machine.plain(),
            "gpus": [gpu._asdict() for gpu in self.gpus],
            "findings": [finding._asdict() for finding in self.findings],
            "healthy": self.exit_code == 0,
        }


def diagnose(
    models: Sequence[Mapping[str, Any]],
    *,
    quick: bool = False,
    progress: store.Progress | None = None,
    news: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Examine this machine. ``models`` are rows of name, size in bytes, and path, "" of what isn't here.

    ``quick`` measures and compiles nothing. ``progress`` is told how far the self-test is, ``news`` what takes time.
    """
    facts = machine.describe()
    isa, threads, chosen = _backend()
    findings = [chosen, *_folders(), _memory(models, facts)]
    bandwidth: dict[int, float | None] = {}
    if not quick:
        bandwidth = _bandwidth(facts, threads)
        findings += [_kernels(threads, progress, news)] if isa else []
    return Diagnosis(facts, machine.gpus(), _devices(), bandwidth, isa, threads, findings)


# --- what computes ---


def _backend() -> tuple[str, int, Finding]:
    """Instruction set and threads that a model would run with, and why."""
    from kinetic.backends.cpu import target
    from kinetic.backends.cpu.dots import LANES
    from kinetic.backends.cpu.system import available_cores

    threads = available_cores()
    try:
        isa = target.choose()
    except KineticError as error:
        return "", threads, Finding("backend", str(error), FAULT)
    lacking = [name for name in LANES if name not in target.available()]
    why = f"the best of {', '.join(target.available())}, which this processor offers"
    if os.environ.get(target.ENVIRONMENT):
        why = f"{target.ENVIRONMENT} names it"
    elif lacking:
        why += f" (not {', '.join(lacking)})"
    counted = f"{threads} thread{'' if threads == 1 else 's'}, one for each core that may be used"
    return isa, threads, Finding("backend", f"cpu with its {isa} kernels, {why}; {counted}")


def _devices() -> dict[str, str]:
    """Names of devices by what `--device` calls them, where pyopencl or CuPy is installed."""
    from kinetic.backends.gpu import choose

    return {name: device.strip() for name, device in choose.listed()}


def _bandwidth(facts: Machine, threads: int) -> dict[int, float | None]:
    """Of one thread and of all. A quarter of what is free at most."""
    room = machine.PIECE if facts.free is None else min(machine.PIECE, facts.free // 4)
    return {count: machine.read_bandwidth(count, room) for count in sorted({1, threads})} if room >= 1 << 20 else {}


def _kernels(threads: int, progress: store.Progress | None, news: Callable[[str], None] | None) -> Finding:
    """The self-test in one sentence."""
    from kinetic.api import self_test

    if not os.environ.get("KINETIC_KERNELS"):
        os.environ["KINETIC_KERNELS"] = str(store.folder("kernels"))
    try:
        outcomes = list(self_test.run(threads, progress, news))
    except KineticError as error:
        return Finding("kernels", str(error), FAULT)
    wrong = [outcome for outcome in outcomes if outcome.different]
    if wrong:
        named = ", ".join(f"{one.name} ({one.different:,} of {one.compared:,})" for one in wrong)
        return Finding(
            "kernels",
            f"values that are not the reference's: {named}; use --device reference, and report this",
            DIFFERS,
        )
    compared = sum(outcome.compared for outcome in outcomes)
    formats = f"{len(outcomes) - 1} weight formats and a whole model"
    return Finding("kernels", f"{formats}: all {compared:,} values bit for bit those of the reference")


# --- folders and memory ---


def _folders() -> Iterator[Finding]:
    """State folders that can't be written, or a word that all can. Looking creates nothing."""
    kinds = [*dict.fromkeys([*store.FOLDERS, RECORDS])]
    places = {kind: store.folder(kind) if kind in store.FOLDERS else _records() for kind in kinds}
    shut = [kind for kind, place in places.items() if not _is_writable(place)]
    for kind in shut:
        yield Finding("folders", f"{places[kind]} can't be written: {kind} can't be kept", FOLDER)
    if not shut:
        parents = sorted({str(place.parent) for place in places.values()})
        yield Finding("folders", f"{', '.join(kinds)} can be written, in {' and '.join(parents)}")


def _records() -> Any:
    from kinetic.api import bench

    return bench.folder()


def _is_writable(place: Any) -> bool:
    """Whether a folder is there and can be written, or could be made."""
    while not os.path.lexists(place):
        place = place.parent
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def fits(size: int, facts: Machine) -> str:
    """ "yes", "not now" where other programs hold the memory, or "no", for a model file of so many bytes."""
    need = int(size * SHARE)
    if facts.memory is not None and need > facts.memory:
        return "no"
    return "not now" if facts.free is not None and need > facts.free else "yes"


def _memory(models: Sequence[Mapping[str, Any]], facts: Machine) -> Finding:
    """Which models fit."""
    found: dict[str, list[str]] = {"yes": [], "not now": [], "no": []}
    for model in models:
        found[fits(model["size"], facts)].append(str(model["name"]))
    words = {"yes": "fit", "not now": "fit once memory is free", "no": "too large"}
    parts = [f"{words[answer]}: {', '.join(names)}" for answer, names in found.items() if names]
    if models and not found["yes"]:
        return Finding("models", "; ".join(["there is no memory for any", *parts]), MEMORY)
    return Finding("models", "; ".join(parts) or "none is known")
