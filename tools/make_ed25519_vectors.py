"""Outcomes of Ed25519 verification: ``python -m tools.make_ed25519_vectors`` makes conformance/vectors/v1/ed25519 anew.

RFC 8032 lets verifiers differ on keys and on R values that are not canonical or
not of prime order, and on signatures that only hold after a multiplication by
the cofactor. Here every combination of them is made on purpose, with exact
integers and nothing but the standard library, and judged by the strict rule of
FORMAT.md ("Signatures"), so that the vectors owe nothing to the library they test.

The curve is -x^2 + y^2 = 1 + d x^2 y^2 over the integers modulo p = 2^255 - 19
(RFC 8032 section 5.1), its group of order 8 L. Points are in extended
coordinates (X, Y, Z, T): x = X/Z, y = Y/Z, x y = T/Z (Hisil and others, 2008).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha512
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "vectors" / "v1" / "ed25519"

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]
IDENTITY: Point = (0, 1, 1, 0)

# --- the curve ---------------------------------------------------------------


def add(a: Point, b: Point) -> Point:
    """Sum of two points; the formula has no exceptions on this curve."""
    e = (a[1] - a[0]) * (b[1] - b[0]) % P
    f = (a[1] + a[0]) * (b[1] + b[0]) % P
    g = 2 * D * a[3] * b[3] % P
    h = 2 * a[2] * b[2] % P
    x, y, z, t = f - e, h + g, h - g, f + e
    return x * z % P, t * y % P, z * y % P, x * t % P


def times(scalar: int, point: Point) -> Point:
    """[scalar] point."""
    total = IDENTITY
    for bit in bin(scalar)[2:]:
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total


def is_same(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 == (a[1] * b[2] - b[1] * a[2]) % P


def encode(point: Point) -> bytes:
    """The canonical encoding: y in 255 bits, then the lowest bit of x."""
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point | None:
    """The point of an encoding, canonical or not; None if no x fits its y."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number % 2**255 % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * ROOT_OF_MINUS_1 % P
    if x * x % P != square:
        return None
    x = (P - x) % P if x & 1 != sign else x
    return x, y, 1, x * y % P


def encodings(point: Point) -> list[bytes]:
    """All encodings of a point, the canonical one first: y may have room for p, and the x of 0 for a sign."""
    canonical = int.from_bytes(encode(point), "little")
    found = [canonical]
    if canonical % 2**255 < 19:
        found.append(canonical + P)
    if is_same(point, (-point[0] % P, point[1], point[2], -point[3] % P)):  # x = 0
        found += [number ^ 1 << 255 for number in found]
    return [number.to_bytes(32, "little") for number in found]


def _base() -> Point:
    point = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    assert point is not None
    return point


def _torsion() -> list[Point]:
    """The eight points whose order divides 8: multiples of one of order 8, the first that a rising y gives."""
    for y in range(2, 100):
        point = decode(y.to_bytes(32, "little"))
        eighth = times(L, point) if point else IDENTITY
        if not is_same(times(4, eighth), IDENTITY):
            return [times(index, eighth) for index in range(8)]
    raise AssertionError("no point of order 8")


BASE = _base()
TORSION = _torsion()

# --- the strict rule ---------------------------------------------------------


@cache
def is_strict(data: bytes) -> bool:
    """Whether it is the canonical encoding of a point of order L."""
    point = decode(data)
    if point is None or encode(point) != data or is_same(point, IDENTITY):
        return False
    return is_same(times(L, point), IDENTITY)


def hash_scalar(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little") % L


def holds(key: bytes, message: bytes, signature: bytes, *, cofactor: int = 1) -> bool:
    """RFC 8032's equation for a key and R that are points; both sides times the cofactor, 1 or 8."""
    a, r = decode(key), decode(signature[:32])
    if a is None or r is None:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    right = add(r, times(hash_scalar(signature[:32], key, message), a))
    return is_same(times(cofactor * scalar, BASE), times(cofactor, right))


def outcome(key: bytes, message: bytes, signature: bytes) -> str:
    """``accept``, or the name of the refusal."""
    if len(key) != 32 or not is_strict(key):
        return "BAD_KEY"
    if len(signature) != 64 or int.from_bytes(signature[32:], "little") >= L:
        return "BAD_SIGNATURE"
    if not is_strict(signature[:32]) or not holds(key, message, signature):
        return "BAD_SIGNATURE"
    return "accept"


# --- keys and signatures whose every part is known ---------------------------


class Half(NamedTuple):
    """A key or an R: [scalar] BASE + TORSION[torsion], and one of its encodings."""

    scalar: int
    torsion: int
    data: bytes

    @property
    def canonical(self) -> bytes:
        return _mixed(self.scalar, self.torsion)


@cache
def _mixed(scalar: int, torsion: int) -> bytes:
    return encode(add(times(scalar, BASE), TORSION[torsion]))


def half(label: str, torsion: int = 0) -> Half:
    """A point of order L, or with a torsion one of mixed order, whose scalar comes from a label."""
    scalar = hash_scalar(b"kinetic ed25519 vectors ", label.encode())
    return Half(scalar, torsion, _mixed(scalar, torsion))


def solve(key: Half, r: Half, message: bytes, *, is_reencoded: bool = False) -> tuple[bytes, bool]:
    """The signature with this R, and whether a residue of small order remains: R + [k] A - [S] B.

    With ``is_reencoded`` k is hashed from the canonical encodings instead of those that are shown.
    """
    k = hash_scalar(*((r.canonical, key.canonical) if is_reencoded else (r.data, key.data)), message)
    scalar = (r.scalar + k * key.scalar) % L
    return r.data + scalar.to_bytes(32, "little"), (r.torsion + k * key.torsion) % 8 != 0


def flags_of(half: Half, what: str) -> list[str]:
    kind = "small_order" if half.scalar == 0 else "mixed_order" if half.torsion else ""
    flags = [f"{kind}_{what}"] if kind else []
    return flags + [f"non_canonical_{what}"] * (half.data != half.canonical)


# --- the vectors -------------------------------------------------------------

FLAGS = {
    "small_order_key": "the key is one of the eight points whose order divides 8",
    "small_order_R": "R is one of them",
    "mixed_order_key": "the key is the sum of a point of order L and one of small order, and neither is the identity",
    "mixed_order_R": "R is such a sum",
    "non_canonical_key": "the key is not the canonical encoding of its point",
    "non_canonical_R": "R is not the canonical encoding of its point",
    "residue": "the equation holds only after both sides are multiplied by the cofactor 8",
    "reencoded": "k, and so the residue, comes from the canonical encodings, not from those that are shown",
    "no_point": "the key, or R, encodes no point of the curve",
    "large_S": "S is not below the group order L",
    "length": "the key or the signature is too short or too long",
    "changed": "a good signature, changed or computed by a wrong rule",
}

Vector = tuple[bytes, bytes, bytes, list[str]]
"""Key, message, signature, flags."""


def point_vectors() -> Iterator[Vector]:
    """Every kind of key with every kind of R, with a residue and without, k hashed from either encoding."""
    small = [Half(0, index, data) for index, point in enumerate(TORSION) for data in encodings(point)]
    keys = small + [half("key", index) for index in range(8)]
    rs = small + [half("R", index) for index in range(8)]
    for key, r, is_reencoded, wanted in product(keys, rs, (False, True), (False, True)):
        flags = flags_of(key, "key") + flags_of(r, "R") + ["residue"] * wanted + ["reencoded"] * is_reencoded
        if is_reencoded and (key.data, r.data) == (key.canonical, r.canonical):
            continue
        for number in range(64):
            message = b"%d again" % number if is_reencoded else b"%d" % number
            solved = signature, has_residue = solve(key, r, message, is_reencoded=is_reencoded)
            # A vector with another k must tell verifiers apart by it.
            if has_residue == wanted and not (is_reencoded and solved == solve(key, r, message)):
                yield key.data, message, signature, flags
                break


def plain_vectors() -> Iterator[Vector]:
    """Good signatures on messages of several lengths, by keys of order L with either sign."""
    for number, length in enumerate((0, 1, 2, 31, 32, 33, 63, 64, 65, 111, 112, 127, 128, 129, 255, 1023)):
        key, message = half(f"plain key {number}"), bytes((7 * i + length) % 256 for i in range(length))
        yield key.data, message, solve(key, half(f"plain R {number}"), message)[0], []


def scalar_vectors() -> Iterator[Vector]:
    """The same S modulo L, written as a larger number; and L itself."""
    key, r, message = half("scalar key"), half("scalar R"), b"scalar"
    signature, _ = solve(key, r, message)
    scalar = int.from_bytes(signature[32:], "little")
    yield key.data, message, signature, []
    larger = [scalar + multiple * L for multiple in range(1, 16) if scalar + multiple * L < 2**256]
    larger += [scalar | 1 << bit for bit in (253, 254, 255)] + [L, L + 1, 2**252 | 2**253, 2**256 - 1]
    for number in larger:
        yield key.data, message, r.data + number.to_bytes(32, "little"), ["large_S"]
    for number in (0, 1, L - 1):
        yield key.data, message, r.data + number.to_bytes(32, "little"), ["changed"]


def length_vectors() -> Iterator[Vector]:
    key, message = half("length key"), b"length"
    signature, _ = solve(key, half("length R"), message)
    for length in (0, 1, 31, 32, 33, 48, 63):
        yield key.data, message, signature[:length], ["length"]
    for more in (bytes(1), signature[-1:], bytes(32), signature):
        yield key.data, message, signature + more, ["length"]
    for data in (b"", key.data[:1], key.data[:31], key.data + bytes(1), key.data * 2):
        yield data, message, signature, ["length"]


def encoding_vectors() -> Iterator[Vector]:
    """Encodings that no good key or R has: y from p to 2^255 - 1, and the first y without an x, both signs."""
    key, r, message = half("encoding key"), half("encoding R"), b"encoding"
    signature, _ = solve(key, r, message)
    without_x = [y for y in range(40) if decode(y.to_bytes(32, "little")) is None]
    for y, sign in product([*range(P, 2**255), *without_x[:8]], (0, 1)):
        data = (y | sign << 255).to_bytes(32, "little")
        kind = "no_point" if decode(data) is None else "non_canonical"
        flags = [kind] if kind == "no_point" else []
        yield data, message, signature, flags or ["non_canonical_key"]
        yield key.data, message, data + signature[32:], flags or ["non_canonical_R"]


def changed_vectors() -> Iterator[Vector]:
    """A bit flipped in each part, parts exchanged, and k or S by rules that are not Ed25519's."""
    key, r, other, message = half("changed key"), half("changed R"), half("changed other"), b"changed"
    signature, _ = solve(key, r, message)
    shown, s = signature[:32], signature[32:]

    def wrong(k: int, sign: int = 1) -> bytes:
        return r.data + ((r.scalar + sign * k * key.scalar) % L).to_bytes(32, "little")

    k = hash_scalar(r.data, key.data, message)
    for bit in (0, 7, 100, 254, 255):
        for part in ((_flip(key.data, bit), signature), (key.data, _flip(shown, bit) + s)):
            yield part[0], message, part[1], ["changed"]
    for bit in (0, 7, 100, 251):
        yield key.data, message, shown + _flip(s, bit), ["changed"]
    variants = [s + shown, shown + s[::-1], shown[::-1] + s, shown + shown, bytes(64), b"\xff" * 64]
    variants += [wrong(k, -1), wrong(0), wrong(hash_scalar(r.data, message)), wrong(hash_scalar(key.data, message))]
    variants += [wrong(hash_scalar(key.data, r.data, message)), wrong(hash_scalar(r.data, key.data))]
    variants += [wrong(hash_scalar(r.data, key.data, sha512(message).digest())), solve(key, other, b"Changed")[0]]
    for prefix in (b"SigEd25519 no Ed25519 collisions\0\0", b"SigEd25519 no Ed25519 collisions\1\0"):  # ctx and ph
        variants.append(wrong(hash_scalar(prefix, r.data, key.data, message)))
    for variant in variants:
        yield key.data, message, variant, ["changed"]
    for changed in (b"", b"change", b"changed\0", b"Changed"):
        yield key.data, changed, signature, ["changed"]
    yield other.data, message, signature, ["changed"]


def _flip(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")


FILES = {
    "plain": ("good signatures", plain_vectors),
    "points": ("every kind of key with every kind of R", point_vectors),
    "encodings": ("keys and R values that are no canonical encoding of a point", encoding_vectors),
    "scalars": ("S as large as the group order or larger", scalar_vectors),
    "lengths": ("keys and signatures of other lengths", length_vectors),
    "changed": ("signatures that were good before they were changed", changed_vectors),
}


def render() -> dict[str, str]:
    """Content of each file by its name; a vector is a line."""
    return {f"{name}.json": _render(about, list(make())) for name, (about, make) in FILES.items()}


def _render(about: str, vectors: list[Vector]) -> str:
    rows = [[*(part.hex() for part in vector[:3]), vector[3], outcome(*vector[:3])] for vector in vectors]
    used = {flag for vector in vectors for flag in vector[3]}
    head: dict[str, Any] = {
        "about": f"Ed25519: {about}",
        "flags": {flag: text for flag, text in FLAGS.items() if flag in used},
        "fields": ["public_key", "message", "signature", "flags", "outcome"],
    }
    lines = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "vectors": [\n  {lines}\n ]\n}}\n'


def main() -> int:
    """Write what changed; 1 if a file that was there did."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    after = render()
    for name in before.keys() - after.keys():
        (FOLDER / name).unlink()
    for name, text in after.items():
        if before.get(name) != text:
            (FOLDER / name).write_text(text, encoding="utf-8")
    changed = sorted(name for name, text in before.items() if after.get(name) != text)
    for name in changed:
        print(f"{name} changed")
    print(f"ed25519 vectors: {len(after)} files, {len(changed)} changed, {len(after.keys() - before.keys())} new")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
