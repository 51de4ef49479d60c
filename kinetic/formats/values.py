"""What the integers of a quantised matrix stand for, in float32: the ``decode`` that all quantised formats share."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.formats import Integers


def decoded(integers: Callable[[NDArray[np.uint8]], Integers], raw: NDArray[np.uint8]) -> F32:
    """raw uint8 [..., bytes], rows that ``integers`` can read -> float32 [..., values]."""
    parts = integers(raw.reshape(-1, raw.shape[-1]))
    return values(parts).reshape(*raw.shape[:-1], parts.q.shape[1])


def values(parts: Integers) -> F32:
    """float32 [N, K]: ``(scale * sub) * q``, then ``+ minimum * sub_minimum``, each operation rounded once."""
    found = parts.q.astype(np.float32)
    factor = _times(parts.scale, parts.sub)
    by_factor = _split(found, factor)
    by_factor *= factor[..., None]
    if parts.minimum is not None:
        minimum = _times(parts.minimum, parts.sub_minimum)
        by_minimum = _split(found, minimum)
        by_minimum += minimum[..., None]
    return found


def _times(scale: F32, sub: NDArray[np.int8] | None) -> F32:
    """A scale for each 32 or 16 values as it is; with factors, the products for each 16."""
    return scale if sub is None else np.repeat(scale, 2, axis=-1) * sub.astype(np.float32)


def _split(rows: F32, scale: F32) -> F32:
    """A view of rows [N, K] as [N, parts, values of a part], one part for each scale."""
    count = scale.shape[1]
    return rows.reshape(len(rows), count, rows.shape[1] // count)
