"""Model files whose structure lies: lengths, counts, offsets, types, names, parts of split models.

``CASES`` are the bytes of one file each and the name of the refusal; ``cut`` and ``split``
ones need several files. A refusal must come before anything of the claimed size is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.attacks.attack import MIB, Attack
from conformance.attacks.gguf_writer import CODES, GgufWriter, array, string

F32, Q4_0 = 0, 2
ARRAY, STRING, BOOL, UINT8, UINT64 = (CODES[kind][0] for kind in ("ARRAY", "STRING", "BOOL", "UINT8", "UINT64"))
WORD = struct.pack("<4f", 0, 1, 2, 3)
REMOVED = (4, 5, 31, 32, 33, 36, 37, 38)
"""Ids of tensor types that were taken out of the format."""

DESCRIBE = ("conformance.attacks.use", "describe", "m.gguf")
OPEN = ("conformance.attacks.use", "open", "m.gguf")
LITTLE = 64 * MIB
"""Memory for files of a few hundred bytes; most of it is the interpreter's own."""

Write = Callable[[Path], None]


def attacks() -> Iterator[Attack]:
    for title, data, reason in CASES:
        yield _attack(title, data, DESCRIBE, f"MalformedGguf {reason}:")
    yield from _commands()
    yield from _cut()
    yield from _odd_but_harmless()
    yield from _removed_types()
    for title, write, reason in SPLITS:
        name, what = f"gguf-split-{_slug(title)}", f"A part of a split model: {title}."
        arguments = ("conformance.attacks.use", "each", "part.txt")
        yield Attack(name, [32], what, arguments, write, 11, f"MalformedGguf {reason}:", memory=LITTLE)


def _slug(title: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def _attack(title: str, data: bytes, arguments: tuple[str, ...], reason: str, code: int = 11) -> Attack:
    """``title`` begins with its number."""
    number, _, what = title.partition(" ")

    def write(at: Path) -> None:
        (at / "m.gguf").write_bytes(data)

    return Attack(
        f"gguf-{_slug(title)}", [int(number)], f"A model file: {what}.", arguments, write, code, reason, memory=LITTLE
    )


def _commands() -> Iterator[Attack]:
    """A few by every command that opens a model file: the exit code is the program's, not the library's alone."""
    by_title = {title: data for title, data, _ in CASES}
    for title in ("4 2^64-1", "22 bytes wrap", "28 by 2^40"):
        for command in (("info",), ("run", "--device", "reference"), ("pack", "-o", "out.ktc", "-q")):
            attack = _attack(title, by_title[title], ("kinetic", command[0], "m.gguf", *command[1:]), "m.gguf")
            yield attack._replace(name=f"{attack.name}-{command[0]}", memory=4 * LITTLE)


def _cut() -> Iterator[Attack]:
    def write(at: Path) -> None:
        data = tiny().to_bytes(final_padding=False)
        for size in range(len(data)):
            (at / f"{size:03}.gguf").write_bytes(data[:size])
        (at / "all.txt").write_text("\n".join(f"{size:03}.gguf" for size in range(len(data))))

    what = "A small valid model file cut short at every byte, which every reader must notice."
    yield Attack("gguf-cut-everywhere", [1], what, ("conformance.attacks.use", "each", "all.txt"), write, 11,
                 "OUT_OF_FILE", memory=LITTLE)  # fmt: skip


def _odd_but_harmless() -> Iterator[Attack]:
    """Accepted, with a word of warning."""
    tail = two(("a", 0), ("b", 32), tail=b"\0" * 48)
    yield _attack("30 zeros after the last", tail, DESCRIBE, "32 unused zero bytes", 0)
    doubtful = GgufWriter().key("general.file_type", 2).raw_tensor("t", (32,), 8, b"\0" * 34).to_bytes()
    yield _attack("33 another type than declared", doubtful, DESCRIBE, "says mostly Q4_0", 0)
    yield _attack("33 no quantization version", doubtful, DESCRIBE, "quantization_version is missing", 0)


def _removed_types() -> Iterator[Attack]:
    """Shown, and refused as soon as such a tensor is used."""
    from conformance.attacks.tiny_model import tiny_model

    for code in (*REMOVED, 43, -1):
        listed = GgufWriter().raw_tensor("t", (7, 5), code, b"\xaa" * 64).to_bytes()
        yield _attack(f"26 removed type {code % 2**32} shown", listed, DESCRIBE, "cannot be used by this build", 0)
    data = tiny_model(types={"blk.0.ffn_up.weight": 4})
    yield _attack("26 removed type used", data, OPEN, "UnsupportedModel UNSUPPORTED_WEIGHT_TYPE:")


# --- one file each ---


def tiny() -> GgufWriter:
    """A valid file with every kind of value, a padded tensor and a full one."""
    writer = GgufWriter()
    writer.keys({"general.architecture": "tiny", "a.count": 7, "a.below": -7, "a.rate": 0.5, "a.flag": True})
    writer.key("a.long", 2**40, "UINT64")
    writer.key("tokenizer.ggml.tokens", ["a", "é", ""]).key("a.scores", [1.0, -2.0]).key("a.flags", [True, False])
    writer.raw_tensor("one.weight", (3,), F32, struct.pack("<3f", 0, 1, 2))
    return writer.raw_tensor("two.weight", (2, 4), F32, struct.pack("<8f", *[1.0] * 8))


def keyed(name: str | bytes, code: int, payload: bytes) -> bytes:
    return GgufWriter().raw_key(name, code, payload).to_bytes()


def shaped(shape: tuple[int, ...], ggml_type: int = F32, **extra: int) -> bytes:
    return GgufWriter().raw_tensor("t", shape, ggml_type, b"\1" * 64, **extra).to_bytes()


def header(version: bytes = b"\3\0\0\0", tensors: int = 0, keys: int = 0, rest: int = 1024) -> bytes:
    return b"GGUF" + version + struct.pack("<QQ", tensors, keys) + b"\0" * rest


def two(first: tuple[str, int], second: tuple[str, int], between: bytes = b"", tail: bytes = b"") -> bytes:
    """Two 16-byte tensors with the given names and offsets; the first is followed by 16 bytes of padding."""
    writer = GgufWriter()
    writer.raw_tensor(first[0], (4,), F32, b"\1" * 16 + (between or b"\0" * 16), first[1])
    writer.raw_tensor(second[0], (4,), F32, b"\1" * 16, second[1])
    return writer.to_bytes(final_padding=False) + tail


def many(count: int, elements: int) -> bytes:
    writer = GgufWriter()
    for index in range(count):
        writer.raw_tensor(f"t{index}", (elements,), F32, b"", index * elements * 4)
    return writer.to_bytes()


def big_endian() -> bytes:
    """What a big-endian writer makes: every number of the header swapped."""
    return b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + struct.pack(">Q", 1) + b"a" + struct.pack(">II", 4, 7) + b"\0" * 64


CASES: list[tuple[str, bytes, str]] = [
    ("1 empty", b"", "EMPTY_FILE"),
    *[(f"1 {size} bytes", tiny().to_bytes()[:size], "TRUNCATED") for size in (1, 3, 4, 8, 23)],
    ("2 wrong magic", b"GGML" + tiny().to_bytes()[4:], "BAD_MAGIC"),
    ("2 swapped magic", b"FUGG" + tiny().to_bytes()[4:], "BAD_MAGIC"),
    ("2 byte order mark", b"\xef\xbb\xbf" + tiny().to_bytes(), "BAD_MAGIC"),
    ("2 web page", b"<!DOCTYPE html>", "BAD_MAGIC"),
    ("2 short", b"G\n", "BAD_MAGIC"),
    ("3 version 0", header(b"\0\0\0\0"), "BAD_VERSION"),
    ("3 version 1", header(b"\1\0\0\0"), "BAD_VERSION"),
    ("3 version 4", header(b"\4\0\0\0"), "BAD_VERSION"),
    ("3 big-endian", header(b"\0\0\0\3"), "BIG_ENDIAN"),
    ("3 big-endian file", big_endian(), "BIG_ENDIAN"),
    ("4 2^63", header(tensors=2**63), "BAD_TENSOR_COUNT"),
    ("4 2^64-1", header(tensors=2**64 - 1), "BAD_TENSOR_COUNT"),
    ("4 product wraps", header(tensors=2**64 // 33 + 1), "BAD_TENSOR_COUNT"),
    ("5 2^63", header(keys=2**63), "BAD_KEY_COUNT"),
    ("5 2^64-1", header(keys=2**64 - 1), "BAD_KEY_COUNT"),
    ("5 product wraps", header(keys=2**64 // 14 + 1), "BAD_KEY_COUNT"),
    ("6 one tensor too many", header(tensors=1024 // 33 + 1), "BAD_TENSOR_COUNT"),
    ("6 one key too many", header(keys=1024 // 14 + 1), "BAD_KEY_COUNT"),
    ("7 length + 1 wraps", keyed("a", STRING, string(b"x", 2**64 - 1)), "BAD_STRING"),
    ("7 one past the end", GgufWriter().raw_key("a", STRING, string(b"x" * 7, 8)).header(), "BAD_STRING"),
    ("7 key name", header(keys=1)[:24] + string(b"key", 2**64 - 8) + b"\0" * 64, "BAD_STRING"),
    ("7 in an array", keyed("a", ARRAY, struct.pack("<IQ", STRING, 2) + string(b"x" * 9, 2**64 - 8)), "BAD_STRING"),
    ("7 last of an array", GgufWriter().raw_key("a", ARRAY, array("STRING", ["b"])[:-1]).header(), "BAD_STRING"),
    ("9 two templates", GgufWriter().key("t", "a").key("t", "b").to_bytes(), "DUPLICATE_KEY"),
    ("9 two alignments", GgufWriter(3, 32).key("general.alignment", 64).to_bytes(), "DUPLICATE_KEY"),
    *[(f"10 value type {code}", keyed("a", code, b"\0" * 32), "BAD_VALUE_TYPE") for code in (13, 255, 2**32 - 1)],
    ("10 element type", keyed("a", ARRAY, struct.pack("<IQ", 13, 0)), "BAD_VALUE_TYPE"),
    ("11 array of arrays", keyed("a", ARRAY, struct.pack("<IQ", ARRAY, 0)), "NESTED_ARRAY"),
    ("11 10,000 deep", keyed("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000), "NESTED_ARRAY"),
    ("12 bytes wrap", keyed("a", ARRAY, struct.pack("<IQ", UINT64, 2**61 + 1)), "BAD_ARRAY"),
    ("12 2^30 items", keyed("a", ARRAY, struct.pack("<IQ", UINT8, 2**30) + b"\0" * 1024), "BAD_ARRAY"),
    ("12 2^30 strings", keyed("a", ARRAY, struct.pack("<IQ", STRING, 2**30) + b"\0" * 1024), "BAD_ARRAY"),
    *[(f"13 bool {byte}", keyed("a", BOOL, bytes([byte])), "BAD_BOOL") for byte in (2, 255)],
    ("13 in an array", keyed("a", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\0\1\2"), "BAD_BOOL"),
    ("14 key not UTF-8", GgufWriter().key(b"a\xff", 1).to_bytes(), "BAD_UTF8"),
    ("14 key with NUL", GgufWriter().key(b"a\0b", 1).to_bytes(), "BAD_KEY"),
    ("14 empty key", GgufWriter().key("", 1).to_bytes(), "BAD_KEY"),
    ("14 long key", GgufWriter().key("k" * 65536, 1).to_bytes(), "BAD_KEY"),
    ("14 value not UTF-8", keyed("general.architecture", STRING, string(b"ll\xe9ma")), "BAD_UTF8"),
    ("14 lone surrogate", keyed("general.architecture", STRING, string(b"\xed\xa0\x80")), "BAD_UTF8"),
    ("14 value with NUL", keyed("general.architecture", STRING, string(b"llama\0")), "BAD_STRING"),
    *[
        (f"15 alignment {value}", GgufWriter().key("general.alignment", value, "UINT32").to_bytes(), "BAD_ALIGNMENT")
        for value in (0, 1, 3, 24, 2**31)
    ],
    ("15 as int32", GgufWriter().key("general.alignment", 32, "INT32").to_bytes(), "BAD_ALIGNMENT"),
    ("15 as string", GgufWriter().key("general.alignment", "32").to_bytes(), "BAD_ALIGNMENT"),
    ("15 as array", GgufWriter().key("general.alignment", [32], "UINT32").to_bytes(), "BAD_ALIGNMENT"),
    ("17 64 bytes", GgufWriter().raw_tensor("t" * 64, (4,), F32, WORD).to_bytes(), "BAD_TENSOR_NAME"),
    ("17 empty", GgufWriter().raw_tensor("", (4,), F32, WORD).to_bytes(), "BAD_TENSOR_NAME"),
    ("17 NUL", two(("t\0a", 0), ("t\0b", 32)), "BAD_TENSOR_NAME"),
    ("17 not UTF-8", GgufWriter().raw_tensor(b"t\xff", (4,), F32, WORD).to_bytes(), "BAD_UTF8"),
    ("18 same name", two(("t", 0), ("t", 32)), "DUPLICATE_TENSOR"),
    *[(f"19 {count} dimensions", shaped((4,), dimensions=count), "BAD_DIMENSIONS") for count in (0, 5, 2**32 - 1)],
    *[
        (f"20 zero at {place}", shaped(tuple(0 if i == place else 2 for i in range(4))), "ZERO_DIMENSION")
        for place in range(4)
    ],
    ("20 only one", shaped((0,)), "ZERO_DIMENSION"),
    ("21 product wraps", shaped((2, 2**63 - 1)), "SIZE_OVERFLOW"),
    ("21 wraps to zero", shaped((2**32, 2**32)), "SIZE_OVERFLOW"),
    ("21 negative", shaped((-4,)), "SIZE_OVERFLOW"),
    ("21 of unknown type", shaped((2**62, 2), 99), "SIZE_OVERFLOW"),
    ("22 bytes wrap", shaped((2**62,)), "SIZE_OVERFLOW"),
    ("24 sum wraps", many(40, 2**59), "SIZE_OVERFLOW"),
    ("25 half a block", shaped((2, 48), Q4_0), "BAD_ROW_LENGTH"),
    ("25 whole blocks, cut rows", shaped((2, 16), Q4_0), "BAD_ROW_LENGTH"),
    ("27 not aligned", two(("a", 0), ("b", 16)), "BAD_OFFSET"),
    ("28 cut by 1", GgufWriter().raw_tensor("t", (4,), F32, WORD).to_bytes(final_padding=False)[:-1], "OUT_OF_FILE"),
    ("28 by 2^40", two(("a", 0), ("b", 2**40)), "OUT_OF_FILE"),
    ("28 sum wraps", two(("a", 0), ("b", 2**64 - 32)), "OUT_OF_FILE"),
    ("28 huge tensor", shaped((2**40,)), "OUT_OF_FILE"),
    ("30 hole before the first", GgufWriter().raw_tensor("t", (4,), F32, b"\0" * 64, 32).to_bytes(), "GAP"),
    ("30 hole", two(("a", 0), ("b", 64), b"\0" * 48), "GAP"),
    ("30 overlap", two(("a", 0), ("b", 0)), "OVERLAP"),
    ("30 padding not zero", two(("a", 0), ("b", 32), b"\0" * 15 + b"x"), "NONZERO_PADDING"),
    ("30 bytes after the last", two(("a", 0), ("b", 32), tail=b"\0" * 15 + b"x"), "TRAILING_DATA"),
    ("30 far after the last", two(("a", 0), ("b", 32), tail=b"\0" * 512 + b"x"), "TRAILING_DATA"),
    ("30 a megabyte of nothing", two(("a", 0), ("b", 32), tail=b"\0" * (2**20 + 32)), "TRAILING_DATA"),
    ("30 without tensors", GgufWriter().key("a", 1).to_bytes() + b"x", "TRAILING_DATA"),
    ("31 swapped counts", header(tensors=1 << 56, keys=1 << 56), "BAD_TENSOR_COUNT"),
]


# --- parts of split models: the file that is opened is named in part.txt ---


def split_keys(number: int, count: int, total: int) -> GgufWriter:
    writer = GgufWriter().key("split.no", number, "UINT16").key("split.count", count, "UINT16")
    return writer.key("split.tensors.count", total, "INT32")


def part(number: int, count: int, total: int = 0, tensor: str = "", **keys: str) -> GgufWriter:
    """One file of a split model, which has one tensor if it is named."""
    writer = split_keys(number, count, total).keys({f"general.{key}": value for key, value in keys.items()})
    return writer.raw_tensor(tensor, (4,), F32, WORD) if tensor else writer


def _alone(writer: GgufWriter, name: str) -> Write:
    def write(at: Path) -> None:
        writer.write(at / name)
        (at / "part.txt").write_text(name)

    return write


def _three(changed: dict[int, GgufWriter | None], opened: int = 0) -> Write:
    """Three parts, of which some are others or missing."""

    def write(at: Path) -> None:
        names = [f"m-{number + 1:05d}-of-00003.gguf" for number in range(3)]
        for number, name in enumerate(names):
            writer = changed.get(number, part(number, 3, 3, f"t{number}", name="m"))
            if writer is not None:
                writer.write(at / name)
        (at / "part.txt").write_text(names[opened])

    return write


def _flags() -> GgufWriter:
    return GgufWriter().keys({"split.no": 0, "split.count": True, "split.tensors.count": 0})


def _joined(at: Path) -> None:
    whole = b"".join(part(number, 3, 3, f"t{number}").to_bytes() for number in range(3))
    (at / "m.gguf").write_bytes(whole)
    (at / "part.txt").write_text("m.gguf")


SPLITS: list[tuple[str, Write, str]] = [
    ("number is the count", _alone(part(2, 2), "m-00003-of-00002.gguf"), "SPLIT_NUMBER"),
    ("number of none", _alone(part(0, 0), "m.gguf"), "SPLIT_NUMBER"),
    ("65,535 parts", _alone(part(0, 65535), "m-00001-of-65535.gguf"), "SPLIT_MISSING"),
    ("one of one, called one of two", _alone(part(0, 1, 1, "t"), "m-00001-of-00002.gguf"), "SPLIT_NAME"),
    ("tensors missing", _alone(part(0, 1, 2, "t"), "m.gguf"), "SPLIT_TENSOR_COUNT"),
    ("only a count", _alone(GgufWriter().key("split.count", 2), "m.gguf"), "SPLIT_KEYS"),
    ("a flag as the count", _alone(_flags(), "m.gguf"), "SPLIT_KEYS"),
    ("renamed", _alone(part(1, 3, 3), "best-of-breed.gguf"), "SPLIT_NAME"),
    ("a name that is a pattern", _alone(part(1, 3, 3), "[m]*-00001-of-00003.gguf"), "SPLIT_NAME"),
    ("missing sibling", _three({1: None}), "SPLIT_MISSING"),
    ("sibling of another model", _three({1: part(1, 3, 4, "t1")}), "SPLIT_MISMATCH"),
    ("sibling of another name", _three({1: part(1, 3, 3, "t1", name="other")}, 2), "SPLIT_MISMATCH"),
    ("sibling without keys", _three({1: GgufWriter().raw_tensor("t1", (4,), F32, WORD)}), "SPLIT_MISMATCH"),
    ("siblings swapped", _three({1: part(2, 3, 3, "t2"), 2: part(1, 3, 3, "t1")}), "SPLIT_MISMATCH"),
    ("same tensor twice", _three({1: part(1, 3, 3, "t0", name="m")}), "DUPLICATE_TENSOR"),
    ("joined end to end", _joined, "SPLIT_JOINED"),
]
