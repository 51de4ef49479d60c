"""``python -m conformance``: the suite without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from conformance.command import EPILOG, HELP, add_flags, execute
from kinetic.errors import INTERRUPTED, KineticError
from receipts.terminal import printable


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m conformance",
        description=HELP.capitalize() + ".",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    options = parser.parse_args(arguments)
    try:
        return execute(options, news=None if options.quiet else _tell)
    except KineticError as error:
        print(printable(f"python -m conformance: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _tell(line: str) -> None:
    print(printable(f"python -m conformance: {line}"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
