"""The ``kinetic`` command: one file per sub-command, each a thin layer over ``kinetic.api``."""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130  # kinetic.errors has it too, but nothing may be loaded before the ``try`` below


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; Ctrl-C is understood from the first import on."""
    try:
        from kinetic.cli.command import main as run_command

        return run_command(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
