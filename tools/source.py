"""What the checkers share: which files to read, and how to report what they find."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("kinetic", "conformance", "receipts", "ktc")


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule. ``path`` is relative to the project's root."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Module:
    """One Python file: ``name`` is its path relative to the root, with forward slashes."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def modules(root: Path, places: Iterable[str]) -> Iterator[Module]:
    """Every Python file at or below ``places`` (``kinetic/layers`` or ``kinetic/bits.py``), sorted by path."""
    for place in places:
        start = root / place
        files = [start] if start.suffix == ".py" else sorted(start.rglob("*.py"))
        for path in files:
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                yield Module(path.relative_to(root).as_posix(), text, ast.parse(text, str(path)))


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for a chain of names and attributes, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: ``{"np": "numpy", "exp": "math.exp"}``."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def run(title: str, check: Callable[[Path], Iterable[Finding]]) -> int:
    """Print what ``check`` finds in the project and return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    findings = sorted(check(root))
    for finding in findings:
        print(finding)
    print(f"{title}: {len(findings)} findings" if findings else f"{title}: ok")
    return 1 if findings else 0
