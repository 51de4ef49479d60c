"""Imports that import-linter can't see: ``python -m tools.check_imports``.

A module found by a name made at run time escapes the contracts in
.importlinter, so ``importlib`` and ``__import__`` are allowed only where a file
is chosen by a name in the model: the ``__init__`` of models, formats and
backends, where a command line is run as ``python -m`` would run it, and where
the conformance suite finds its cases by their lying in a folder.
``importlib.resources`` and ``importlib.metadata`` load no code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.source import PACKAGES, Finding, Module, modules, run

ALLOWED = frozenset(
    (
        *(f"kinetic/{name}/__init__.py" for name in ("models", "formats", "backends")),
        "conformance/attacks/meanwhile.py",
        "conformance/attacks/worker.py",
        "conformance/found.py",
    )
)
HARMLESS = ("importlib.resources", "importlib.metadata")


def check(root: Path) -> Iterator[Finding]:
    for module in modules(root, PACKAGES):
        if module.name not in ALLOWED:
            yield from _dynamic_imports(module)


def _dynamic_imports(module: Module) -> Iterator[Finding]:
    for node in ast.walk(module.tree):
        for name in _names(node):
            loads_code = name.partition(".")[0] in ("importlib", "imp", "runpy", "__import__")
            if loads_code and not name.startswith(HARMLESS):
                yield Finding(module.name, getattr(node, "lineno", 1), f"{name} outside models, formats and backends")


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(source), level=0, names=names):
            return [f"{source}.{alias.name}" for alias in names]
        case ast.Name(id="__import__"):
            return ["__import__"]
    return []


if __name__ == "__main__":
    raise SystemExit(run("imports", check))
