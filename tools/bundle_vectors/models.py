"""Steps B11 and B13: the model file, its leaves, and the parts that were copied from it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from tools.bundle_vectors.build import BASES, LARGE, OK, Case, Expect, entry, field, large_model, malformed
from tools.bundle_vectors.forge import (
    ARCHITECTURE,
    KEYS,
    LEAF,
    MODEL,
    SEED,
    SLOT,
    TEMPLATE,
    TOKENIZER,
    TOKENS,
    Part,
    array_record,
    forge,
    gguf,
    leaf_digest,
    leaf_list,
    number_record,
    parts,
    string,
    text_record,
    texts_record,
    value_record,
)

SECTION, COUNT, LEAF_WRONG = (malformed(name, "B11") for name in ("SECTION_DIGEST", "LEAF_COUNT", "LEAF_DIGEST"))
GGUF, TOKENIZER_WRONG, TEMPLATE_WRONG, ARCHITECTURE_WRONG = (
    malformed(name, "B13") for name in ("BAD_GGUF", "TOKENIZER_MISMATCH", "TEMPLATE_MISMATCH", "ARCHITECTURE")
)


def cases() -> Iterator[Case]:
    yield from _leaf_lists()
    yield from _leaves_moved()
    yield from _exchanged()
    yield from _tokenizers()
    yield from _templates()
    yield from _gguf_heads()
    yield from _gguf_values()
    yield from _architectures()


def _with(listed: bytes, model: bytes = LARGE) -> bytes:
    """A bundle with this list of leaves, and a digest that is that list's."""
    return forge([*parts(model)[:3], Part("leaves", listed)])


def _blake3_lists() -> Iterator[tuple[str, str, bytes]]:
    """Lists of digests that are right in their way, and not the way of the format."""
    pieces = [LARGE[at : at + LEAF] for at in range(0, len(LARGE), LEAF)]
    plain = b"".join(blake3(piece).digest() for piece in pieces)
    yield "no-domain", "Leaf digests without domain and index.", plain
    one = b"".join(leaf_digest(index + 1, piece) for index, piece in enumerate(pieces))
    yield "from-one", "Leaves that are counted from 1.", one
    big = b"".join(blake3(b"kinetic leaf v1\0" + struct.pack(">Q", i) + p).digest() for i, p in enumerate(pieces))
    yield "big-endian", "Leaves whose index is big-endian.", big


def _leaf_lists() -> Iterator[Case]:
    """64: the list of leaves, and the digest of the whole."""
    listed = leaf_list(LARGE)
    first, second, third = listed[:32], listed[32:64], listed[64:]
    for name, what, wrong, leaf in [
        ("zero", "A list of zeros.", bytes(96), 0),
        ("swapped", "Two digests that have traded places.", second + first + third, 0),
        ("last", "A wrong digest of the last leaf.", first + second + bytes(32), 2),
        ("first-thrice", "One digest for all leaves.", first * 3, 1),
        *((name, what, wrong, 0) for name, what, wrong in _blake3_lists()),
    ]:
        at = 1 if name == "big-endian" else leaf  # index 0 is the same in both
        yield Case(f"leaves-{name}", [64], what, _with(wrong), LEAF_WRONG, more={"leaf": at}, base="leaves")
    for name, what, wrong in [
        ("less", "A list without the last leaf.", listed[:-32]),
        ("more", "A list with a leaf more.", listed + first),
        ("part", "A list that breaks off inside a digest.", listed[:-1]),
        ("byte", "A list of one byte.", b"\0"),
        ("of-512-kib", "Leaves of half the size.", _sized(LEAF // 2)),
        ("of-2-mib", "Leaves of twice the size.", _sized(2 * LEAF)),
        ("of-the-whole", "One leaf for the whole.", _sized(len(LARGE))),
        ("of-64-kib", "Leaves of 64 KiB.", _sized(65536)),
    ]:
        yield Case(f"leaves-{name}", [64], what, _with(wrong), COUNT, base="leaves")
    flat = forge(parts(LARGE), manifest=entry(0, blake3=bytes(32)))
    yield Case(
        "leaves-right-whole-wrong", [64], "All leaves are right, and the whole is not.", flat, SECTION, base="leaves"
    )
    for name, size in [("0", 0), ("1", 1), ("odd", 1000)]:
        sizes = field(leaf_size=size)
        what = f"A manifest that says how large leaves are: {size}."
        yield Case(f"leaves-size-{name}", [64], what, forge(manifest=sizes), malformed("UNKNOWN_FIELD", "B5"))
    yield Case("leaves-empty-list", [64], "No leaves where there are some.", forge(manifest=entry(3, length=0)),
               malformed("OUT_OF_RANGE", "B5"))  # fmt: skip


def _sized(size: int) -> bytes:
    pieces = [LARGE[at : at + size] for at in range(0, len(LARGE), size)]
    return b"".join(leaf_digest(index, piece) for index, piece in enumerate(pieces))


def _leaves_moved() -> Iterator[Case]:
    """64: a model that is not the one that was listed."""
    sound = BASES["leaves"]
    model = slice(4096, 4096 + len(LARGE))
    wrong: list[tuple[str, str, bytes, int]] = [
        ("traded", "Two leaves have traded places.", LARGE[LEAF : 2 * LEAF] + LARGE[:LEAF] + LARGE[2 * LEAF :], 0),
        ("first-bit", "A bit of the first leaf.", b"F" + LARGE[1:], 0),
        ("second-bit", "A bit of the second leaf.", LARGE[: LEAF + 500] + b"\1" + LARGE[LEAF + 501 :], 1),
        ("last-bit", "The last byte of the model.", LARGE[:-1] + b"\1", 2),
        ("other-marks", "A model of other weights, of the same size.", large_model(marks=(0, LEAF, 9)), 0),
    ]
    for name, what, other, leaf in wrong:
        data = sound[: model.start] + other + sound[model.stop :]
        yield Case(f"leaves-{name}", [64, 66], what, data, LEAF_WRONG, more={"leaf": leaf}, base="leaves")
    cut = sound[: model.stop - 1] + b"\1" + sound[model.stop :]
    damaged = bytearray(cut)
    at = sound.rindex(leaf_list(LARGE))
    damaged[at] ^= 1
    what = "The model is wrong, and so is the list of leaves."
    yield Case("leaves-both-wrong", [64], what, bytes(damaged), SECTION, base="leaves")


def _exchanged() -> Iterator[Case]:
    """66: parts of different models."""
    other = gguf(data=b"another!" * 9)
    for name, sound in [("plain", BASES["plain"]), ("signed", BASES["signed"])]:
        data = sound[:4096] + other + sound[4096 + len(other) :]
        what = f"The weights of another model of the same size in a bundle that is {name}."
        yield Case(f"weights-{name}", [66], what, data, LEAF_WRONG, more={"leaf": 0}, base=name)
    without = forge(parts()[:3])
    data = without[:4096] + other + without[4096 + len(other) :]
    yield Case("weights-no-leaves", [66], "The same where there is no list of leaves.", data, SECTION)
    for index, kind in enumerate(["tokenizer", "template", "leaves"], 1):
        data = forge(content=_flip(4096 + 4096 * index), seeds=[SEED])
        yield Case(f"damaged-{kind}", [66], f"A bit of the section of kind {kind}.", data, SECTION, base="signed")
    three = forge([parts()[index] for index in (0, 1, 2)], seeds=[SEED])
    whole = BASES["signed"]
    data = whole[:-SLOT] + three[-SLOT:]
    what = "The slot of a bundle without leaves on one with leaves."
    yield Case("slot-of-three", [66, 68], what, data, malformed("MANIFEST_DIGEST", "B4"), base="signed")


def _flip(at: int) -> Any:
    def change(out: bytearray) -> None:
        out[at] ^= 1

    return change


def _chosen(name: str, attacks: list[int], what: str, sections: list[Part], expect: Expect) -> Case:
    """A bundle of these sections, each with its right digest."""
    return Case(name, attacks, what, forge(sections, seeds=[SEED]), expect, base="signed")


def _tokenizers() -> Iterator[Case]:
    model, _, template, leaves = parts()
    other = MODEL + texts_record("tokenizer.ggml.tokens", ["<end>", " red", " BLU"])
    longer = MODEL + texts_record("tokenizer.ggml.tokens", ["<end>", " red", " blue", " green"])
    for name, what, data in [
        ("other", "A tokenizer of another model, of the same length.", other),
        ("longer", "A tokenizer with a token more.", longer),
        ("less", "A tokenizer without one of its keys.", MODEL),
        ("order", "A tokenizer whose keys are in the order of the model file.", TOKENS + MODEL),
        ("twice", "A tokenizer with a key twice.", MODEL + TOKENS + TOKENS),
        ("byte-more", "A byte behind the tokenizer.", TOKENIZER + b"\0"),
        ("byte-less", "A tokenizer without its last byte.", TOKENIZER[:-1]),
        ("template-in-it", "A tokenizer that holds the template.", TEMPLATE + TOKENIZER),
        ("zeros", "A tokenizer of zeros.", bytes(len(TOKENIZER))),
        ("model-file", "The whole model file as tokenizer.", model.data),
    ]:
        sections = [model, Part("tokenizer", data), template, leaves]
        yield _chosen(f"tokenizer-{name}", [66], what, sections, TOKENIZER_WRONG)
    yield _chosen("tokenizer-missing", [66], "No tokenizer.", [model, template, leaves], TOKENIZER_WRONG)
    bare = gguf([ARCHITECTURE])
    unasked = [Part("gguf", bare), Part("tokenizer", TOKENIZER)]
    yield _chosen("tokenizer-unasked", [66], "A tokenizer where the model has none.", unasked, TOKENIZER_WRONG)


def _templates() -> Iterator[Case]:
    """54."""
    model, tokenizer, _, leaves = parts()
    tools = text_record("tokenizer.chat_template.tool_use", "{{ tools }}")
    for name, what, data in [
        ("other", "Another template.", text_record("tokenizer.chat_template", "{{ messagez }}")),
        ("shorter", "A shorter template.", text_record("tokenizer.chat_template", "{{ }}")),
        ("more", "A template more than the model has.", TEMPLATE + tools),
        ("text", "The template's text without its key.", b"{{ messages }}"),
        ("byte-more", "A byte behind the template.", TEMPLATE + b"\n"),
    ]:
        sections = [model, tokenizer, Part("template", data), leaves]
        yield _chosen(f"template-{name}", [54], what, sections, TEMPLATE_WRONG)
    yield _chosen("template-missing", [54], "No template.", [model, tokenizer, leaves], TEMPLATE_WRONG)
    bare = gguf([key for key in KEYS if key != TEMPLATE])
    what = "A template where the model has none."
    yield _chosen("template-unasked", [54], what, [Part("gguf", bare), *parts()[1:3]], TEMPLATE_WRONG)
    two = Part("gguf", gguf([*KEYS, tools]))
    what = "A model of two templates, of which one is there."
    yield _chosen("template-of-two", [54], what, [two, tokenizer, Part("template", TEMPLATE)], TEMPLATE_WRONG)
    both = Part("template", TEMPLATE + tools)
    yield _chosen("template-two", [54], "A model of two templates.", [two, tokenizer, both], OK)


def _model(name: str, attacks: list[int], what: str, model: bytes, expect: Expect = GGUF) -> Case:
    """A bundle that lists this as its model file, with digests that are right."""
    data = forge(parts(model), seeds=[SEED])
    return Case(f"gguf-{name}", attacks, what, data, expect, base="signed", unit=b"x")


def _gguf_heads() -> Iterator[Case]:
    sound = gguf()
    for length in (1, 4, 8, 23, 24, 40, 70):
        yield _model(f"cut-{length}", [1], f"A model file that ends after byte {length}.", sound[:length])
    for name, what, head in [
        ("magic", "A model file with another magic number.", b"GGML"),
        ("swapped", "A magic number backwards.", b"FUGG"),
        ("bom", "A byte order mark in front.", b"\xef\xbb\xbfG"),
    ]:
        yield _model(name, [2], what, head + sound[4:])
    for version in (0, 1, 4, 3 << 24):
        yield _model(f"version-{version}", [3], f"A model file of version {version}.", gguf(version=version))
    for name, count in [("twenty", 20), ("2-63", 2**63), ("largest", 2**64 - 1), ("wraps", 2**61)]:
        yield _model(f"keys-{name}", [5], f"A model file that claims {count} keys.", gguf(count=count))
    second = gguf(version=2)
    yield _model("version-2", [3], "A model file of version 2.", second, OK)
    for name, count in [("2-63", 2**63), ("largest", 2**64 - 1)]:
        what = f"A model file that claims {count} tensors, which no one counts here."
        yield _model(f"tensors-{name}", [4], what, gguf(tensors=count), OK)


def _gguf_values() -> Iterator[Case]:
    u64 = struct.pack
    rows: list[tuple[str, int, str, bytes]] = [
        ("string-one-past", 7, "A text that ends a byte behind the file.", value_record("x", 8, u64("<Q", 900))),
        ("string-largest", 7, "A text of 2^64 - 1 bytes.", value_record("x", 8, u64("<Q", 2**64 - 1))),
        ("name-largest", 7, "A key whose name has 2^64 - 1 bytes.", u64("<Q", 2**64 - 1) + b"x"),
        ("name-empty", 7, "A key without a name.", value_record("", 4, bytes(4))),
        ("name-long", 7, "A key whose name has 65,536 bytes.", value_record("x" * 65536, 4, bytes(4))),
        ("name-no-utf8", 14, "A key whose name is no UTF-8.", value_record(b"x\xff", 4, bytes(4))),
        ("name-surrogate", 14, "A key whose name has half a surrogate.", value_record(b"\xed\xa0\x80", 4, bytes(4))),
        ("key-twice", 9, "A key twice, with another value.", number_record("llama.block_count", 2)),
        ("key-twice-same", 9, "A key twice, with one value.", number_record("llama.block_count", 1)),
        ("template-twice", 9, "Two templates of one name.", text_record("tokenizer.chat_template", "{{ x }}")),
        ("type-13", 10, "A value of type 13.", value_record("x", 13, bytes(8))),
        ("type-255", 10, "A value of type 255.", value_record("x", 255, bytes(8))),
        ("type-largest", 10, "A value of type 2^32 - 1.", value_record("x", 2**32 - 1, bytes(8))),
        ("array-of-arrays", 11, "An array of arrays.", array_record("x", 9, 1, u64("<IQ", 4, 0))),
        ("array-of-arrays-none", 11, "An array of no arrays.", array_record("x", 9, 0)),
        ("array-deep", 11, "Arrays inside arrays.", array_record("x", 9, 1, u64("<IQ", 9, 1) * 500)),
        ("array-type", 11, "An array of a type that is none.", array_record("x", 13, 0)),
        ("array-wraps", 12, "An array whose bytes wrap to nothing.", array_record("x", 4, 2**62)),
        ("array-largest", 12, "An array of 2^64 - 1 bytes.", array_record("x", 0, 2**64 - 1)),
        ("array-2-30", 12, "An array of 2^30 numbers.", array_record("x", 10, 2**30)),
        ("texts-largest", 12, "An array of 2^64 - 1 texts.", array_record("x", 8, 2**64 - 1)),
        ("texts-cut", 12, "An array of texts, one of 2^63 bytes.", array_record("x", 8, 2, u64("<QQ", 2**63, 0))),
        ("bool-2", 13, "A boolean of 2.", value_record("x", 7, b"\2")),
        ("bools-2", 13, "A boolean of 255 in an array.", array_record("x", 7, 3, b"\0\1\xff")),
        ("split-two", 32, "One part of two.", value_record("split.count", 2, b"\2\0")),
        ("split-most", 32, "One part of 65,535.", value_record("split.count", 2, b"\xff\xff")),
        ("split-u64", 32, "One part of 2^32.", value_record("split.count", 10, u64("<Q", 2**32))),
    ]
    for name, attack, what, record in rows:
        yield _model(name, [attack], what, gguf([*KEYS, record]))
    sound: list[tuple[str, str, bytes]] = [
        ("bool", "A boolean.", value_record("x", 7, b"\1")),
        ("texts-none", "An array of no texts.", texts_record("x", [])),
        ("text-of-bytes", "A value that is no UTF-8 is taken.", value_record("x", 8, string(b"\xff"))),
        ("name-longest", "A key whose name has 65,535 bytes.", value_record("x" * 65535, 4, bytes(4))),
        ("split-one", "The one part of one.", value_record("split.count", 2, b"\1\0")),
        ("float64", "A number of 64 bits.", value_record("x", 12, bytes(8))),
    ]  # fmt: skip
    for name, what, record in sound:
        yield _model(name, [13], what, gguf([*KEYS, record]), OK)


def _architectures() -> Iterator[Case]:
    changed = forge(manifest=field(architecture="gemma3"), seeds=[SEED])
    what = "The manifest says another architecture than the model file."
    yield Case("architecture-other", [66], what, changed, ARCHITECTURE_WRONG, base="signed")
    rest = KEYS[1:]
    for name, what, key, expect in [
        ("none", "A model file without an architecture.", number_record("x", 1), GGUF),
        ("number", "An architecture that is a number.", number_record("general.architecture", 1), GGUF),
        ("empty", "An architecture of no letters.", text_record("general.architecture", ""), GGUF),
        ("nul", "An architecture with a NUL at its end.", text_record("general.architecture", "llama\0"), GGUF),
        ("longer", "An architecture that only begins so.", text_record("general.architecture", "llama4"),
         ARCHITECTURE_WRONG),
    ]:  # fmt: skip
        yield _model(f"architecture-{name}", [66], what, gguf([key, *rest]), expect)
