"""No thread reads the program table behind the last barrier of a pass: there it may be that of the next one.

The first thread to come out of that barrier goes back to Python, which writes the table of the next pass; the others
may still be on their way out.
"""

from __future__ import annotations

import ast
from pathlib import Path

from kinetic.backends import cpu

SOURCE = (Path(cpu.__file__).parent / "core.py").read_text(encoding="utf-8")


def reads_behind_the_last_barrier(source: str, function: str = "run_tape", table: str = "p") -> set[int]:
    """Lines of ``function`` in which ``table`` is read and behind which some way to its end has no barrier."""
    (body,) = [
        node.body for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return flow(body, set(), table)


def flow(statements: list[ast.stmt], read: set[int], table: str) -> set[int]:
    """Lines of reads since the last barrier, behind ``statements``, given those before them."""
    for statement in statements:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            head = statement.iter if isinstance(statement, ast.For) else statement.test
            read = read | names(head, table)
            others = flow(statement.orelse, read, table)
            read = flow(statement.body, read, table) | others
        elif is_barrier(statement):
            read = set()  # its own arguments are read before it waits
        else:
            read = read | names(statement, table)
    return read


def names(node: ast.AST, table: str) -> set[int]:
    return {part.lineno for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == table}


def is_barrier(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "barrier"


def test_nothing_is_read_behind_the_last_barrier():
    assert reads_behind_the_last_barrier(SOURCE) == set()


def test_what_was_read_there_once_is_found():
    """``chooses`` was looked up where it is needed now."""
    begun = SOURCE.index("def run_tape")
    changed = SOURCE[:begun] + SOURCE[begun:].replace("if chooses:", "if field(p, tape.CHOOSE) != 0:", 1)
    assert changed != SOURCE
    assert len(reads_behind_the_last_barrier(changed)) == 1


def test_a_barrier_on_one_way_only_is_not_enough():
    text = "def run_tape(p, q):\n    if q:\n        barrier(p)\n    else:\n        read(p)\n"
    text += "    for n in q:\n        barrier(q)\n"
    assert reads_behind_the_last_barrier(text) == {5}
    assert reads_behind_the_last_barrier(text + "    barrier(p)\n    done(q)\n") == set()
    assert reads_behind_the_last_barrier(text + "    barrier(p)\n    done(p)\n") == {9}
