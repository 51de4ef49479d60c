"""Sound bundles of every kind, and step B6: which sections there are, and what a reader must understand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from tools.bundle_vectors.build import (
    BASES,
    DERIVATION,
    OK,
    PROFILE,
    Case,
    Expect,
    entry,
    extra,
    field,
    malformed,
    named_file,
    put,
)
from tools.bundle_vectors.forge import (
    ARCHITECTURE,
    KEYS,
    LEAF,
    OTHER_SEED,
    SEED,
    THIRD_SEED,
    Part,
    forge,
    gguf,
    manifest_of,
    parts,
    public_key,
)

SECTIONS, UNKNOWN = malformed("SECTIONS", "B6"), malformed("UNKNOWN_SECTION", "B6")


def cases() -> Iterator[Case]:
    yield from _sound()
    yield from _sizes()
    yield from _kinds()
    yield from _unknown()


def _facts(data: bytes, *seeds: bytes) -> dict[str, Any]:
    """What every verifier must say of it."""
    digest = blake3(b"kinetic manifest v1\0" + manifest_of(data)).hexdigest()
    signers = [blake3(public_key(seed)).hexdigest() for seed in seeds]
    word = "unknown" if seeds else "unsigned"
    return {"manifest_digest": digest, "signers": signers, "signature": word}


def _sound() -> Iterator[Case]:
    files = [named_file("tiny-00001-of-00002.gguf"), named_file("tiny-00002-of-00002.gguf", size=2)]
    profiles = [PROFILE, PROFILE | {"device": "opencl", "isa": "any"}]
    bare = gguf([ARCHITECTURE])
    whole = field(sources=files, profiles=profiles, derivation=[DERIVATION], ext={"note": "a\nb", "z": ""})
    small = parts()[:3]
    rows: list[tuple[str, str, bytes, tuple[bytes, ...]]] = [
        ("plain", "A model file, tokenizer, template and leaves. Unsigned.", BASES["plain"], ()),
        ("signed", "The same, signed.", BASES["signed"], (SEED,)),
        ("two-signers", "The same, signed by two.", forge(seeds=[OTHER_SEED, SEED]), (OTHER_SEED, SEED)),
        ("three-signers", "The same, signed by three.", _three(), (THIRD_SEED, SEED, OTHER_SEED)),
        ("no-leaves", "Without leaves.", forge(small), ()),
        ("large", "A model of three leaves.", BASES["leaves"], ()),
        ("model-alone", "A model without tokenizer and template.", forge([Part("gguf", bare)]), ()),
        ("no-template", "A model without a template.", forge(_no_template()), ()),
        ("sources", "A model that was joined from two files.", forge(manifest=field(sources=files)), ()),
        ("profiles", "With profiles.", forge(manifest=field(profiles=profiles)), ()),
        ("derivation", "With a derivation.", forge(manifest=field(derivation=[DERIVATION])), ()),
        ("extension", "With an extension that nobody must know.", forge(manifest=field(ext={"a": "b"})), ()),
        ("everything", "All of that, signed.", forge(manifest=whole, seeds=[SEED]), (SEED,)),
        ("order", "Sections in another order.", forge(list(reversed(parts()))), ()),
        ("names", "Sections of other names.", forge(manifest=_renamed), ()),
        ("release-0", "Release 0.", forge(manifest=field(release=0)), ()),
        ("release-largest", "Release 2^53 - 1.", forge(manifest=field(release=2**53 - 1)), ()),
        ("name-longest", "A name of 64 characters.", forge(manifest=field(name="a" * 64)), ()),
    ]
    for name, what, data, seeds in rows:
        options = {"sha256": True}
        base = "leaves" if name == "large" else "signed" if seeds else "plain"
        yield Case(f"sound-{name}", [70], what, data, OK, options, _facts(data, *seeds), base)


def _three() -> bytes:
    return forge(seeds=[THIRD_SEED, SEED, OTHER_SEED])


def _no_template() -> list[Part]:
    model = gguf([key for key in KEYS if b"chat_template" not in key])
    chosen = parts(model)
    return [chosen[0], chosen[1], chosen[3]]


def _renamed(table: dict[str, Any]) -> None:
    for number, section in enumerate(table["sections"]):
        section["name"] = f"{number}-part"


def _sizes() -> Iterator[Case]:
    """Sections that end on a boundary, or just beside it: there is no padding, or nearly a boundary's worth."""
    head = len(gguf([ARCHITECTURE], b""))
    for name, size in [("boundary", 4096), ("boundary-less", 4095), ("boundary-more", 4097)]:
        model = gguf([ARCHITECTURE], bytes(size - head))
        yield Case(f"sound-size-{name}", [58], f"A model file of {size} bytes.", forge([Part("gguf", model)]), OK)
    for name, size in [("leaf", LEAF), ("leaf-more", LEAF + 1), ("two-leaves", 2 * LEAF)]:
        model = gguf([ARCHITECTURE], bytes(size - head))
        data = forge([Part("gguf", model), parts(model)[3]])
        yield Case(f"sound-size-{name}", [64], f"A model file of {size} bytes, with leaves.", data, OK)
    for name, more in [("full", 0), ("over", 1)]:
        text = "x" * (4096 * 3 - 64 - len(manifest_of(forge(manifest=field(ext={"a": "x" * 12000})))) + 12000 + more)
        data = forge(manifest=field(ext={"a": text}))
        what = f"A manifest that ends {'on a boundary' if not more else 'a byte behind a boundary'}."
        yield Case(f"sound-manifest-{name}", [58], what, data, OK, unit=b"x")


def _kinds() -> Iterator[Case]:
    """Kinds that are missing, or there twice."""
    chosen = parts()
    bare = gguf([ARCHITECTURE])
    rows: list[tuple[str, str, bytes, Expect]] = [
        ("no-model", "No model file.", forge(chosen[1:], seeds=[SEED]), SECTIONS),
        ("two-models", "Two model files.",
         forge([*chosen, chosen[0]], manifest=entry(4, name="again"), seeds=[SEED]), SECTIONS),
        ("two-tokenizers", "Two tokenizers.",
         forge([*chosen, chosen[1]], manifest=entry(4, name="again"), seeds=[SEED]), SECTIONS),
        ("two-templates", "Two templates.",
         forge([*chosen, chosen[2]], manifest=entry(4, name="again"), seeds=[SEED]), SECTIONS),
        ("two-leaves", "Two lists of leaves.",
         forge([*chosen, chosen[3]], manifest=entry(4, name="again"), seeds=[SEED]), SECTIONS),
        ("one-name", "Two sections of one name.", forge(manifest=entry(1, name="gguf"), seeds=[SEED]), SECTIONS),
        ("one-name-unknown", "Two sections of one name that are passed over.",
         forge([*chosen, extra(), extra()], seeds=[SEED]), SECTIONS),
        ("model-uncritical", "A model file that is not critical.",
         forge([chosen[0]._replace(critical=False), *chosen[1:]], seeds=[SEED]), SECTIONS),
        ("leaves-uncritical", "Leaves that are not critical.",
         forge([*chosen[:3], chosen[3]._replace(critical=False)], seeds=[SEED]), SECTIONS),
        ("leaves-alone", "A list of leaves, and no model file.", forge(chosen[3:], seeds=[SEED]), SECTIONS),
        ("model-and-leaves", "A model file and its leaves.",
         forge([Part("gguf", bare), parts(bare)[3]], seeds=[SEED]), OK),
    ]  # fmt: skip
    for name, what, data, expect in rows:
        yield Case(f"kinds-{name}", [70], what, data, expect, base="signed")


def _unknown() -> Iterator[Case]:
    """70: what this version does not know."""
    critical, passed = extra(critical=True), {"passed_over": ["licence"]}
    chosen = parts()
    crit: Expect = (13, "CRITICAL", "B6")
    rows: list[tuple[str, str, bytes, Expect, dict[str, Any]]] = [
        ("critical", "A critical section of an unknown kind.", forge([*chosen, critical], seeds=[SEED]), UNKNOWN, {}),
        ("critical-minor", "The same, of a newer minor version.",
         forge([*chosen, critical], header={"minor": 3}, seeds=[SEED]), UNKNOWN, {}),
        ("section", "A section of an unknown kind that is not critical.",
         forge([*chosen, extra()], seeds=[SEED]), OK, passed),
        ("section-minor", "The same, of a newer minor version.",
         forge([*chosen, extra()], header={"minor": 3}, seeds=[SEED]), OK, passed),
        ("section-first", "The same, before all others.",
         forge([extra(), *chosen], seeds=[SEED]), OK, passed),
        ("section-damaged", "A byte of a section that is passed over.",
         forge([*chosen, extra()], content=put(20480, b"X"), seeds=[SEED]), malformed("SECTION_DIGEST", "B11"), {}),
        ("section-sha256", "A section that is passed over, with a SHA-256.",
         forge([*chosen, extra()], manifest=entry(4, sha256=bytes(32)), seeds=[SEED]), SECTIONS, {}),
        ("two-of-a-kind", "Two sections of one unknown kind.",
         forge([*chosen, extra(), extra()], manifest=entry(5, name="other"), seeds=[SEED]), OK,
         {"passed_over": ["licence", "other"]}),
        ("crit", "An extension that must be understood, and is not.",
         forge(manifest=field(ext={"a": "b"}, crit=["a"]), seeds=[SEED]), crit, {}),
        ("crit-missing", "An extension that must be understood, and is not there.",
         forge(manifest=field(crit=["a"]), seeds=[SEED]), malformed("CRITICAL", "B6"), {}),
        ("crit-and-missing", "One that is not understood, and one that is not there.",
         forge(manifest=field(ext={"a": ""}, crit=["a", "b"]), seeds=[SEED]), malformed("CRITICAL", "B6"), {}),
        ("critical-and-crit", "A section and an extension that are not known.",
         forge([*chosen, critical], manifest=field(ext={"a": "b"}, crit=["a"]), seeds=[SEED]), UNKNOWN, {}),
        ("manifest-version", "A manifest of version 2.",
         forge(manifest=field(version=2), seeds=[SEED]), (13, "VERSION", "B5"), {}),
        ("manifest-version-fields", "A manifest of version 2, with fields that no one knows.",
         forge(manifest=field(version=2, more=1), seeds=[SEED]), (13, "VERSION", "B5"), {}),
    ]  # fmt: skip
    for name, what, data, expect, more in rows:
        yield Case(f"unknown-{name}", [70], what, data, expect, more=more, base="signed")
