"""A tiny bundle, and broken ones on purpose: the writer that makes the vectors, under a shorter name.

path.write_bytes(forge())                                          # a sound bundle
path.write_bytes(forge(manifest=lambda table: table.update(x=1)))  # signed all the same
"""

from tools.bundle_vectors.forge import (
    KEYS,
    LEAF,
    MODEL,
    OTHER_SEED,
    SEED,
    SLOT,
    TEMPLATE,
    TOKENIZER,
    TOKENS,
    Part,
    cbor2,
    forge,
    gguf,
    leaf_list,
    number_record,
    parts,
    repacked,
    string,
    text_record,
    texts_record,
)

__all__ = [
    "KEYS",
    "LEAF",
    "MODEL",
    "OTHER_SEED",
    "SEED",
    "SLOT",
    "TEMPLATE",
    "TOKENIZER",
    "TOKENS",
    "Part",
    "cbor2",
    "forge",
    "gguf",
    "leaf_list",
    "number_record",
    "parts",
    "repacked",
    "string",
    "text_record",
    "texts_record",
]
