"""Golden bundles: ``python -m tools.make_golden_bundles`` writes conformance/golden/bundles anew.

Each is a tiny model made from a counter, packed as `kinetic pack` does it. What was written once must be written again
the same, and every later reader must accept the files: one that changes means that the format of bundles changed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from conformance.recipes.model import Model, Sizes, layer, matrix, norm, settings, write
from conformance.recipes.tokenizers import byte_level
from kinetic.api.bundle import pack
from ktc.signature import key_pair
from tools.vector_files import renew

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "golden" / "bundles"
SEED, OTHER_SEED = bytes(range(32)), bytes(range(32, 64))
"""The secret keys that sign; ``key.pub`` of the golden receipts is the first one's public key."""

TEMPLATE = "tokenizer.chat_template"
SIZES = Sizes(layers=1, width=64, heads=2, kv_heads=1, head_dim=32, ffn=96)
FILE = "tiny.gguf"

PROFILES = [
    {"device": "cpu", "isa": "avx2", "cores": 4, "threads": 3, "prompt_rows": 128},
    {"device": "opencl", "isa": "any", "cores": 4, "threads": 1, "prompt_rows": 512},
]
SOURCE = {"name": "source.gguf", "size": 123_456, "blake3": "ab" * 32, "sha256": "cd" * 32}
DERIVATION = {"tool": "kinetic quantize", "tool_version": "0.1.0", "settings": "Q8_0 --pure", "files": [SOURCE]}


class Golden(NamedTuple):
    """One bundle: ``{name}.ktc``."""

    name: str
    has_template: bool = True
    options: Mapping[str, Any] = MappingProxyType({})
    """Of ``kinetic.api.bundle.pack``."""


CASES = (
    Golden("plain", has_template=False),
    Golden("template"),
    Golden("leaves", options={"leaves": True, "release": 2}),
    Golden(
        "signed",
        options={
            "leaves": True,
            "release": 3,
            "profiles": PROFILES,
            "derivation": DERIVATION,
            "ext": {"note": "for a test"},
            "sign": [key_pair(SEED), key_pair(OTHER_SEED)],
        },
    ),
)


def main() -> int:
    """Write what changed; 1 if a file that was there did."""
    return renew(dict(files()), FOLDER.glob("*"), FOLDER)


def files() -> Iterator[tuple[Path, bytes]]:
    """(path, content) of every bundle."""
    with tempfile.TemporaryDirectory() as scratch:
        for golden in CASES:
            folder = Path(scratch) / golden.name
            folder.mkdir()
            gguf, target = write(model(golden.has_template), folder / FILE), folder / f"{golden.name}.ktc"
            pack(gguf, target, name=f"golden-{golden.name}", **golden.options)
            yield FOLDER / target.name, target.read_bytes()


def model(has_template: bool) -> Model:
    """A model of one layer, with or without a chat template; what it says means nothing."""
    keys = settings("llama", SIZES) | byte_level()
    if not has_template:
        del keys[TEMPLATE]
    count = len(keys["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, SIZES.width, math.sqrt(SIZES.width)), norm("output_norm", SIZES.width)]
    return Model(keys, [*tensors, *layer(0, SIZES, ("attn_norm", "ffn_norm"))], {"": "Q8_0"}, seed=21)


if __name__ == "__main__":
    sys.exit(main())
