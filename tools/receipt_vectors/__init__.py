"""The cases of conformance/vectors/v1, a module for each part of the format. See ``tools.make_receipt_vectors``."""
