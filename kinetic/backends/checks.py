"""What every backend asks of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import KineticError
from kinetic.types import Batch


def check_given(width: int, batch: Batch, given: NDArray[np.float32] | None) -> None:
    """Raises KineticError unless ``given`` is what a model needs: [T, ``width``], or None with a width of 0."""
    found = (0, 0) if given is None else given.shape
    if found != ((len(batch.tokens), width) if width else (0, 0)):
        message = f"this model takes {width} numbers beside each of {len(batch.tokens)} tokens, and was given {found}"
        raise KineticError(message, name="WRONG_ROWS_GIVEN")
