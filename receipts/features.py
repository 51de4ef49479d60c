"""Which parts of an engine a receipt needs beyond plain decoding, and which arithmetic.

An engine lists what it has proven. A receipt that needs more is not written by
it (``require_features`` before writing) and not judged by it (``verify``).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from ktc.errors import Unverifiable
from receipts.schema import PLAIN_OVERRIDES, PLAIN_SAMPLING, Record, sampling_values

_SAMPLERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "dry": lambda values: values["dry_multiplier"] != 0,
    "dynatemp": lambda values: values["dynatemp_range"] != 0,
    "mirostat": lambda values: values["mirostat"] != 0,
    "sampler_order": lambda values: values["samplers"] != PLAIN_SAMPLING["samplers"],
    "top_n_sigma": lambda values: values["top_n_sigma"] != 0,
    "typ_p": lambda values: values["typ_p"] != 1,
    "xtc": lambda values: values["xtc_probability"] != 0,
}

_ROPE = tuple(name for name in PLAIN_OVERRIDES if name.startswith(("rope_", "yarn_")))

FEATURES = frozenset(_SAMPLERS) | {"adapters", "context_size", "grammar", "kv_f32", "kv_q8_0", "rope"}
"""Every feature a receipt can need."""


def used_features(record: Record) -> frozenset[str]:
    """Names of what this receipt's question makes use of; empty for plain decoding with a float16 cache."""
    values, overrides = sampling_values(record), record["overrides"]
    used = {name for name, is_on in _SAMPLERS.items() if is_on(values)}
    used |= {f"kv_{kind}" for kind in (overrides["cache_type_k"], overrides["cache_type_v"]) if kind != "f16"}
    if any(overrides[name] != PLAIN_OVERRIDES[name] for name in _ROPE):
        used.add("rope")
    if overrides["context"] and record["stop"]["reason"] != "context":
        used.add("context_size")
    used |= {name for name in ("adapters", "grammar") if record[name]}
    return frozenset(used)


def require_features(record: Record, proven: Set[str]) -> None:
    """Raise Unverifiable if the receipt needs something that is not among the ``proven``."""
    if missing := sorted(used_features(record) - proven):
        raise Unverifiable(f"this engine cannot rerun {', '.join(missing)}", name="FEATURE")


def require_profile(record: Record, profile: str) -> None:
    """Raise Unverifiable unless the receipt was made under the arithmetic that this engine computes."""
    theirs = record["profile"]
    if theirs == profile:
        return
    message = f"the receipt was made under {theirs}, this engine computes {profile}"
    if "-draft." in theirs:  # no two drafts need have had the same bits
        message += "; a draft is rerun only by the version that made it, so ask the question again"
    raise Unverifiable(message, name="PROFILE")
