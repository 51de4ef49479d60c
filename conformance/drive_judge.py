"""Whether an engine's answer is what a vector expects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import op_vectors
from conformance.case import DoesNotHold, Skipped, require
from conformance.drive_requests import Asked

TRUSTED = "trusted"


def judge(asked: Asked, line: bytes) -> str:
    """What was compared, in words. Raises DoesNotHold, or Skipped where the engine says it can't."""
    answer = _read(asked, line)
    if "unsupported" in answer:
        raise Skipped(f"the engine says it does not support this: {str(answer['unsupported'])[:200] or 'no reason'}")
    code, wanted = answer.get("code"), asked.expect["exit_code"]
    require(type(code) is int, "the answer has no code, or one that is no whole number")
    said = " ".join(str(answer[name]) for name in ("code", "name") if name in answer)[:80]
    expected = " ".join(str(asked.expect[name]) for name in ("exit_code", "name") if name in asked.expect)
    require(code == wanted, f"the engine gives {said}, and the vector has {expected}")
    if asked.kind == "operation":
        return _outputs(asked.expect["outputs"], answer)
    compared = [name for name in asked.expect if name in answer]
    for name in compared:
        same = type(answer[name]) is type(asked.expect[name]) and answer[name] == asked.expect[name]
        shown = f"{answer[name]!r}"[:120]
        require(same, f"{name} is {shown}, and the vector has {asked.expect[name]!r}"[:400])
    if answer.get("signature") == TRUSTED:
        require(asked.expect.get("signature") == TRUSTED, "a signature is called valid that nobody trusts")
    return ", ".join(["code", *compared])


def _read(asked: Asked, line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise DoesNotHold(f"the answer is no JSON object: {line[:80]!r}")
    require(answer.get("id") == asked.id, f"the answer is to {str(answer.get('id'))[:80]!r}, not to this vector")
    return answer


def _outputs(vector: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Bit for bit, but that any NaN is as good as another."""
    given = answer.get("outputs")
    require(isinstance(given, dict), "the answer has no outputs")
    try:
        found = op_vectors.arrays(given)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DoesNotHold(f"the outputs are no arrays of dtype, shape and hex: {error}") from error
    count = 0
    for name, expected in _wanted(vector, found).items():
        require(name in found, f"the output {name} is missing")
        got = found[name]
        require(
            (got.dtype, got.shape) == (expected.dtype, expected.shape),
            f"{name} is {got.dtype} {[*got.shape]}, and the vector has {expected.dtype} {[*expected.shape]}",
        )
        differ = ~op_vectors.same(got, expected)
        if differ.any():
            first = [int(i) for i in np.argwhere(differ)[0]]
            raise DoesNotHold(f"{np.count_nonzero(differ)} of {got.size} values of {name} differ, the first at {first}")
        count += got.size
    return f"{count:,} values"


def _wanted(vector: Mapping[str, Any], found: Mapping[str, Any]) -> op_vectors.Arrays:
    """The outputs as the vector has them; of ``quantise`` also what a product shows of them, ``y``."""
    whole = op_vectors.arrays(vector.get("outputs", {}))
    return whole if whole and whole.keys() <= found.keys() else op_vectors.wanted(vector)
