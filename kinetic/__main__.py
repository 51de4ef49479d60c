"""``python -m kinetic``: the command line."""

import sys

from kinetic.cli import main

if __name__ == "__main__":
    sys.exit(main())
