"""Finds the cases and runs them, one after the other.

with opened(level="quick") as setting:
    for result in run(setting, select(setting, "rows/*")):
        print(result.id, result.outcome)
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from conformance.case import Case, DoesNotHold, Skipped
from conformance.setting import Setting
from kinetic.errors import KineticError, UsageError
from ktc.errors import KtcError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

DIFFERS, UNVERIFIABLE = 10, 13
"""Exit codes: a case failed; a case was skipped and none may be, or nothing was tried at all."""


class Chosen(NamedTuple):
    """A case of a property."""

    id: str
    property: str
    case: Case


class Result(NamedTuple):
    """What became of a case."""

    id: str
    property: str
    outcome: str
    text: str
    """What was compared, where it differs, or why it was skipped."""
    digest: str = ""
    seconds: float = 0.0


@contextlib.contextmanager
def opened(**options: Any) -> Iterator[Setting]:
    """A setting with a scratch folder of its own, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kinetic-conformance-") as folder:
        setting = Setting(Path(folder), **options)
        try:
            yield setting
        finally:
            setting.close()


def select(setting: Setting, only: Sequence[str] = ()) -> list[Chosen]:
    """The cases of a setting, in the order of their files; ``only`` names cases, properties, or patterns of them.

    Raises UsageError for a name that is no case's.
    """
    found = list(_all(setting))
    for pattern in only:
        if not any(_matches(one.id, pattern) for one in found):
            raise UsageError(f"no case is called {pattern!r}: `--list` lists them", name="NO_CASE")
    return [one for one in found if not only or any(_matches(one.id, pattern) for pattern in only)]


def _all(setting: Setting) -> Iterator[Chosen]:
    from conformance.cases import PROPERTIES

    for name, module in PROPERTIES.items():
        if module.OF_MODELS or not setting.models:
            for case in module.cases(setting):
                yield Chosen(f"{name}/{case.name}", module.PROPERTY, case)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/")


def run(
    setting: Setting, chosen: Sequence[Chosen], progress: Callable[[int, int], None] | None = None
) -> Iterator[Result]:
    """The results, as they come. ``progress`` is told (cases done, in all)."""
    for number, one in enumerate(chosen):
        if progress:
            progress(number, len(chosen))
        started = time.perf_counter()
        outcome, text, digest = _try(one.case)
        yield Result(one.id, one.property, outcome, text, digest, time.perf_counter() - started)
    if progress:
        progress(len(chosen), len(chosen))


def _try(case: Case) -> tuple[str, str, str]:
    """Whatever a case stumbles over, it has not passed."""
    try:
        evidence = case.run()
    except Skipped as why:
        return SKIPPED, str(why), ""
    except DoesNotHold as fault:
        return FAILED, str(fault), ""
    except (KineticError, KtcError) as error:
        return FAILED, f"stopped by an error: {error}", ""
    except Exception as error:  # a fault of a program under test is a finding like any other
        return FAILED, f"stopped by a fault: {type(error).__name__}: {error}", ""
    return PASSED, evidence.text, evidence.digest


def counts(results: Sequence[Result]) -> dict[str, int]:
    table = dict.fromkeys((PASSED, FAILED, SKIPPED), 0)
    for result in results:
        table[result.outcome] += 1
    return table


def exit_code(results: Sequence[Result], strict: bool = False) -> int:
    """0 only if cases passed and none failed; under ``strict``, if none was skipped either."""
    table = counts(results)
    if table[FAILED]:
        return DIFFERS
    return UNVERIFIABLE if not table[PASSED] or (strict and table[SKIPPED]) else 0
