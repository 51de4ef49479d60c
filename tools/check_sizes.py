"""Budgets that keep every file readable in one sitting: ``python -m tools.check_sizes``.

Lines are counted as they stand, docstrings and blank lines included. A name in
tools/size_exceptions.toml may be longer, up to the lines given there, for the
reason given there; an exception nobody needs any more is a finding too.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.source import PACKAGES, Finding, Module, modules, run

PLACES = (*PACKAGES, "tools", "tests", "benchmarks")
EXCEPTIONS = "tools/size_exceptions.toml"

MODULE, FUNCTION, COMMAND, FAMILY, FORMAT, DIALECT = 400, 50, 60, 150, 120, 250
SHARED_SERVER_FILES = ("__init__.py", "app.py", "sse.py", "errors.py")


@dataclass(frozen=True)
class Measure:
    """A thing that has a budget. ``key`` names it in the list of exceptions: a path, or path::function."""

    key: str
    path: str
    line: int
    kind: str
    lines: int
    budget: int


def check(root: Path) -> Iterator[Finding]:
    exceptions, broken = _exceptions(root / EXCEPTIONS)
    yield from broken
    for measure in measures(root):
        allowed = exceptions.pop(measure.key, 0) if measure.lines > measure.budget else measure.budget
        if measure.lines > allowed:
            limit = max(allowed, measure.budget)
            yield Finding(
                measure.path, measure.line, f"{measure.kind} has {measure.lines} lines, {limit} allowed ({measure.key})"
            )
    for key in exceptions:
        yield Finding(EXCEPTIONS, 1, f"{key} needs no exception")


def measures(root: Path) -> Iterator[Measure]:
    for module in modules(root, PLACES):
        kind, budget = _file_budget(module.name)
        yield Measure(module.name, module.name, 1, kind, len(module.lines), budget)
        yield from _functions(module, module.tree, "")


def _file_budget(name: str) -> tuple[str, int]:
    folder, _, file = name.rpartition("/")
    if folder == "kinetic/models" and file != "__init__.py":
        return "model family", FAMILY
    if folder == "kinetic/formats" and file != "__init__.py":
        return "weight format", FORMAT
    if folder == "kinetic/server" and file not in SHARED_SERVER_FILES:
        return "dialect", DIALECT
    return "module", MODULE


def _functions(module: Module, node: ast.AST, prefix: str) -> Iterator[Measure]:
    """Every function below ``node``, its decorators not counted; a nested one counts for its parent too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{prefix}{child.name}"
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            in_cli = module.name.startswith("kinetic/cli/")
            kind, budget = ("command", COMMAND) if in_cli else ("function", FUNCTION)
            yield Measure(f"{module.name}::{name}", module.name, child.lineno, f"{kind} {name}", lines, budget)
            yield from _functions(module, child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(module, child, f"{prefix}{child.name}.")
        else:
            yield from _functions(module, child, prefix)


def _exceptions(path: Path) -> tuple[dict[str, int], list[Finding]]:
    """Lines allowed by key, and what is wrong with the list itself."""
    entries: list[dict[str, Any]] = []
    if path.is_file():
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("exception", [])
    unreasoned = [entry["key"] for entry in entries if not str(entry.get("reason", "")).strip()]
    broken = [Finding(EXCEPTIONS, 1, f"{key} gives no reason") for key in unreasoned]
    return {entry["key"]: int(entry["lines"]) for entry in entries}, broken


if __name__ == "__main__":
    raise SystemExit(run("sizes", check))
