"""Every limit on what a file may ask for, in one table (FORMAT.md repeats it).

A limit is checked before the memory it protects is allocated. Crossing one is
``LimitExceeded``, exit code 14.
"""

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Bytes of a receipt file, JSON or CBOR."""

MAX_DEPTH = 8
"""Containers inside containers; a receipt needs five."""

MAX_CONTAINERS = 262_144
"""Arrays and maps in one file: an empty array costs one byte on disk and 60 in memory."""

MAX_INTEGER = 2**53 - 1
"""Largest magnitude of an integer: what every JSON reader holds exactly."""

MAX_TOKEN = 2**31 - 1
"""Largest token id."""

MAX_TOKENS = 2_097_152
"""Entries of one token array."""

MAX_FILES = 1_024
"""Files of one model."""

MAX_ADAPTERS = 64
MAX_BIASES = 65_536
"""Tokens with a logit bias."""

MAX_STRINGS = 64
"""Stop strings, and DRY sequence breakers."""

MAX_STRING_BYTES = 1_024
"""UTF-8 bytes of one stop string, sequence breaker, claim or name."""

MAX_DECIMAL_CHARS = 64
"""Characters of one decimal number."""

MAX_COMMITMENTS = 64
MAX_PROOF = 64
"""Digests of a batch proof: a tree of 2^64 leaves."""

MAX_EXTENSIONS = 64
MAX_EXTENSION_BYTES = 65_536
MAX_SIGNATURES = 64
MAX_SIGNATURE_BYTES = 1_024
"""Bytes of one key or signature, before its length is checked against Ed25519's."""

MAX_KEY_FILE_BYTES = 16_384
"""Bytes of a key file: room for a long RSA key, which is then refused by its kind."""

MAX_TRUST_FILE_BYTES = 65_536
MAX_TRUST_KEYS = 256
MAX_REVOKED = 512
MAX_TRUST_DOTS = 2_048
"""Dots in a trust file: TOML's reader takes time with the square of the length of ``a.b.c``."""

MAX_KEY_NAME_BYTES = 128
"""UTF-8 bytes of a key's name in a trust file."""

MAX_MANIFEST_BYTES = 8 * 1024 * 1024
"""Bytes of a bundle's manifest."""

MAX_SECTIONS = 64
MAX_PROFILES = 64
MAX_SOURCES = 1_024
"""Files that a bundle was joined from; files that its weights were derived from."""
