"""The writer of model files, valid and broken ones, under the name that tests know it by."""

from conformance.attacks.gguf_writer import CODES, GgufWriter, array, kind_of, scalar, string, write_split

__all__ = ["CODES", "GgufWriter", "array", "kind_of", "scalar", "string", "write_split"]
