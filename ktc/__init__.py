"""Ground floor: the primitives that bundles and receipts share.

Needs the standard library, blake3, cbor2 and PyNaCl, and nothing of the
engine, so that an auditor can check files without one.
"""
