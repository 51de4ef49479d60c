"""Bundles that are no plain files, or change meanwhile; targets that must not be written to; disks that are full."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.attacks.attack import Attack
from conformance.attacks.from_vectors import public_pem
from conformance.attacks.receipts import PUBLIC, SEED, secret_pem
from conformance.bundle_vectors import base

VERIFY = ("ktc", "verify", "a.ktc")
INFO = ("ktc", "info", "a.ktc")
UNPACK = ("kinetic", "unpack", "a.ktc", "-o", "out.gguf", "-q")
PACK = ("kinetic", "pack", "m.gguf", "-o", "out.ktc", "-q")
SIGN = ("kinetic", "sign", "a.ktc", "--key", "k")
REPAIR = ("kinetic", "repair", "a.ktc", "--from", "b.ktc", "-o", "out.ktc")
MEANWHILE = "conformance.attacks.meanwhile"

MODEL_AT, MODEL_BYTES, SIGNATURE_AT = 4096, 424, -16384 + 100
"""In base/signed.json: where the model file begins, how long it is, and a byte of the signature."""

UNREADABLE, NO_FILE, CHANGED = "UNREADABLE", "NOT_A_FILE", "FILE_CHANGED"
TRUST = 'format = "kinetic-trust"\nversion = 1\nmode = "off"\nrevoked = []\nkeys = []\n'
HUGE = 10**14

Write = Callable[[Path], None]


def attacks() -> Iterator[Attack]:
    yield from _no_plain_files()
    yield from _sparse()
    yield from _changing()
    yield from _names()
    yield from _whom_to_trust()
    yield from _unpack_targets()
    yield from _unpack_sources()
    yield from _pack_sources()
    yield from _pack_targets()
    yield from _signing()
    yield from _repairing()


def _signed(at: Path) -> None:
    (at / "a.ktc").write_bytes(base("signed.json"))


def _model(at: Path) -> None:
    (at / "m.gguf").write_bytes(base("signed.json")[MODEL_AT : MODEL_AT + MODEL_BYTES])


def _all(*writes: Write) -> Write:
    def write(at: Path) -> None:
        for one in writes:
            one(at)

    return write


def _file(name: str, data: bytes = b"precious") -> Write:
    def write(at: Path) -> None:
        (at / name).write_bytes(data)

    return write


def _moved(name: str) -> Write:
    """The file is called "other", and there may be a link in its place."""

    def move(at: Path) -> None:
        (at / name).rename(at / "other")

    return move


def _link(name: str, to: str) -> Write:
    return lambda at: (at / name).symlink_to(to)


def _folder(name: str) -> Write:
    return lambda at: (at / name).mkdir()


def _fifo(name: str) -> Write:
    return lambda at: os.mkfifo(at / name)


def _mode(name: str, mode: int) -> Write:
    return lambda at: (at / name).chmod(mode)


def _no_plain_files() -> Iterator[Attack]:
    def nothing(_: Path) -> None:
        pass

    rows: list[tuple[str, list[int], str, Write, str]] = [
        ("missing", [57], "No file.", nothing, UNREADABLE),
        ("folder", [72], "A folder.", _folder("a.ktc"), NO_FILE),
        ("fifo", [72], "A FIFO that nobody writes to: it must not be waited for.", _fifo("a.ktc"), NO_FILE),
        ("link-to-nowhere", [77], "A link to nowhere.", _link("a.ktc", "b.ktc"), UNREADABLE),
        ("link-to-itself", [77], "A link to itself.", _link("a.ktc", "a.ktc"), UNREADABLE),
        ("link-to-device", [72], "A link to a device without an end.", _link("a.ktc", "/dev/zero"), NO_FILE),
        ("link-to-fifo", [72], "A link to a FIFO.", _all(_fifo("b"), _link("a.ktc", "b")), NO_FILE),
    ]
    for name, numbers, what, write, reason in rows:
        yield Attack(f"bundle-{name}", numbers, what, VERIFY, write, 3, reason)
        yield Attack(f"bundle-info-{name}", numbers, what, INFO, write, 3, reason)
        yield Attack(f"bundle-unpack-{name}", numbers, what, UNPACK, write, 3)
    closed = _all(_signed, _mode("a.ktc", 0))
    yield Attack("bundle-closed", [77], "A file that may not be read.", VERIFY, closed, 3, UNREADABLE, needs_user=True)
    link = _all(_file("b", base("signed.json")), _link("a.ktc", "b"))
    yield Attack("bundle-link", [77], "A link to a sound bundle is followed.", VERIFY, link, 0, "signer unknown")


def _truncate(path: Path, size: int) -> None:
    """As long as that, or as a file may be here."""
    while size > 1 << 30:
        try:
            os.truncate(path, size)
            return
        except OSError:
            size //= 8


def _sparse() -> Iterator[Attack]:
    """57: 100 TB that take no room."""

    def behind(at: Path) -> None:
        _signed(at)
        _truncate(at / "a.ktc", HUGE)

    def told(at: Path) -> None:
        behind(at)
        size = (at / "a.ktc").stat().st_size
        with (at / "a.ktc").open("r+b") as file:
            os.truncate(file.fileno(), size // 4096 * 4096)
            file.seek(16)
            file.write((size // 4096 * 4096).to_bytes(8, "little"))

    def model(at: Path) -> None:
        (at / "m.gguf").write_bytes(b"GGUF")
        _truncate(at / "m.gguf", HUGE)

    what = "A bundle with 100 TB of nothing behind it."
    yield Attack("bundle-sparse", [57], what, VERIFY, behind, 11, "FILE_LENGTH")
    what = "A bundle of 100 TB that says so."
    yield Attack("bundle-sparse-told", [57], what, VERIFY, told, 11, "MANIFEST_DIGEST")
    yield Attack("bundle-sparse-unpack", [57], "The same, unpacked.", UNPACK, told, 11)
    yield Attack("bundle-sparse-model", [57], "A model file of 100 TB.", PACK, model, 11)


def _meanwhile(change: str, file: str, command: tuple[str, ...]) -> tuple[str, ...]:
    return (MEANWHILE, change, file, *command)


def _changing() -> Iterator[Attack]:
    """75, 76: files that are written to while they are checked."""
    for change, what in [
        ("grow", "A bundle that grows while it is checked."),
        ("cut", "A bundle that is cut short while it is checked."),
        ("touch", "A bundle whose time of change alone is another."),
        ("rewrite", "A bundle that is written once more with the same bytes."),
        ("spoil", "A bundle of which a byte is changed while it is checked."),
    ]:
        number = 76 if change == "cut" else 75
        for name, command, reason in [("verify", VERIFY, CHANGED), ("unpack", UNPACK, "")]:
            arguments = _meanwhile(change, "a.ktc", command)
            yield Attack(f"bundle-{change}-{name}", [number], what, arguments, _signed, 3, reason, spoils=["a.ktc"])
    what = "A bundle that is cut short under the map that a model is used from: the process ends."
    arguments = (MEANWHILE, "map", "a.ktc")
    yield Attack("bundle-cut-map", [76], what, arguments, _signed, -signal.SIGBUS, spoils=["a.ktc"])


def _names() -> Iterator[Attack]:
    odd = "\x1b[2J\nintact.ktc"
    garbage = _file(odd, b"{")
    what = "A name that clears the screen."
    yield Attack("bundle-name-escapes", [62], what, ("ktc", "verify", odd), garbage, 11, "NOT_A_BUNDLE")
    several = _all(_signed, _file("b.ktc", b"{"), _file("c.ktc", _other_version()))
    arguments = (*VERIFY, "b.ktc", "c.ktc", "d.ktc")
    what = "A sound, a malformed and a missing file, and one of another version: the gravest counts."
    yield Attack("bundle-several", [70], what, arguments, several, 11, "INTACT")
    what = "A bundle in place of a receipt."
    yield Attack("bundle-as-receipt", [60], what, ("receipts", "check", "a.ktc"), _signed, 11)


def _other_version() -> bytes:
    return base("plain.json")[:8] + b"\2\0" + bytes(100)


def _whom_to_trust() -> Iterator[Attack]:
    """77: keys and trust files that others can exchange."""
    key, trust = (*VERIFY, "--key", "k.pub"), (*VERIFY, "--trust", "t.toml")
    good, other = public_pem(PUBLIC).encode("ascii"), TRUST.encode("ascii")
    weak = public_pem(b"\1" + bytes(31)).encode("ascii")
    rows: list[tuple[str, str, tuple[str, ...], Write, int, str]] = [
        ("key", "The right key.", key, _file("k.pub", good), 0, "valid signature"),
        ("key-link", "A link in place of a key.", key, _all(_file("l", good), _link("k.pub", "l")), 12, "SYMLINK"),
        ("key-fifo", "A FIFO in place of a key.", key, _fifo("k.pub"), 3, ""),
        ("key-folder", "A folder in place of a key.", key, _folder("k.pub"), 3, ""),
        ("key-missing", "No key.", key, lambda _: None, 3, ""),
        ("key-secret", "A secret key in place of a public one.", key, _file("k.pub", secret_pem().encode()), 12, ""),
        ("key-weak", "A key of small order.", key, _file("k.pub", weak), 12, "BAD_KEY"),
        ("trust", "A trust file that trusts nobody.", trust, _file("t.toml", other), 0, "signer unknown"),
        ("trust-link", "A link in place of a trust file.", trust, _all(_file("l", other), _link("t.toml", "l")), 12,
         "SYMLINK"),
        ("trust-fifo", "A FIFO in place of a trust file.", trust, _fifo("t.toml"), 3, ""),
        ("trust-missing", "No trust file.", trust, lambda _: None, 3, ""),
        ("trust-and-key", "A key and a trust file.", (*key, "--trust", "t.toml"), _file("k.pub", good), 2, ""),
    ]  # fmt: skip
    for name, what, arguments, write, code, reason in rows:
        yield Attack(f"bundle-{name}", [77], what, arguments, _all(_signed, write), code, reason)


TARGETS: list[tuple[str, str, Callable[[str], Write]]] = [
    ("exists", "A target that is there.", _file),
    ("link", "A target that is a link to another file.", lambda name: _all(_file("other"), _link(name, "other"))),
    ("link-to-nowhere", "A target that is a link to nowhere.", lambda name: _link(name, "other")),
    ("link-to-source", "A target that is a link to what is read.", lambda name: _link(name, "a.ktc")),
    ("fifo", "A target that is a FIFO.", _fifo),
    ("folder", "A target that is a folder.", _folder),
    ("device", "A target that is a link to a device.", lambda name: _link(name, "/dev/null")),
]


def _unpack_targets() -> Iterator[Attack]:
    """71: what is there is not touched, and nothing half is left."""
    for name, what, make in TARGETS:
        write = _all(_signed, make("out.gguf"))
        yield Attack(f"unpack-onto-{name}", [71], what, UNPACK, write, 3, "already there")
    to = (*UNPACK[:4], "a.ktc", "-q")
    yield Attack("unpack-onto-itself", [71], "A target that is the bundle itself.", to, _signed, 3, "already there")
    to = (*UNPACK[:4], "none/out.gguf", "-q")
    yield Attack("unpack-no-folder", [71], "A target in a folder that is not there.", to, _signed, 3)
    to = (*UNPACK[:4], "/dev/full", "-q")
    yield Attack("unpack-device", [71], "A target that is a device.", to, _signed, 3)
    for room in (0, 100, MODEL_BYTES - 1):
        full = _meanwhile(f"room:{room}", "a.ktc", UNPACK)
        what = f"A disk that is full after {room} bytes."
        yield Attack(f"unpack-full-{room}", [71], what, full, _signed, 3, "cannot write")
    closed = _all(_signed, _folder("in"), _mode("in", 0o555))
    to = (*UNPACK[:4], "in/out.gguf", "-q")
    what = "A folder that may not be written to."
    yield Attack("unpack-closed-folder", [71], what, to, closed, 3, needs_user=True)


def _unpack_sources() -> Iterator[Attack]:
    sound = base("signed.json")
    weights = _file("a.ktc", sound[:MODEL_AT] + b"F" + sound[MODEL_AT + 1 :])
    yield Attack("unpack-damaged", [64], "A model that was changed.", UNPACK, weights, 11, "leaf 0")
    yield Attack("unpack-cut", [57], "A bundle that is cut short.", UNPACK, _file("a.ktc", sound[:-1]), 11)
    slot = _file("a.ktc", sound[:-16384] + bytes(16384))
    yield Attack("unpack-no-slot", [68], "A bundle whose slot is zero.", UNPACK, slot, 11)
    flipped = bytearray(sound)
    flipped[SIGNATURE_AT] ^= 1
    what = "A bundle with a signature that does not hold."
    yield Attack("unpack-bad-signature", [68], what, UNPACK, _file("a.ktc", bytes(flipped)), 12)
    yield Attack("unpack-no-bundle", [60], "A text.", UNPACK, _file("a.ktc", b"hello\n"), 11)


def _pack_sources() -> Iterator[Attack]:
    """72: inputs that could be exchanged while they are read."""
    other = _all(_model, _moved("m.gguf"))
    hard = _all(_model, lambda at: os.link(at / "m.gguf", at / "other"))
    rows: list[tuple[str, str, Write, int, str]] = [
        ("link", "A model that is a link.", _all(other, _link("m.gguf", "other")), 3, "symbolic link"),
        ("link-to-device", "A link to a device without an end.", _link("m.gguf", "/dev/zero"), 3, ""),
        ("hard-link", "A model with a second name.", hard, 3, "hard link"),
        ("fifo", "A FIFO in place of a model.", _fifo("m.gguf"), 3, ""),
        ("folder", "A folder in place of a model.", _folder("m.gguf"), 3, ""),
        ("missing", "No model.", lambda _: None, 3, ""),
        ("empty", "An empty model.", _file("m.gguf", b""), 11, ""),
        ("garbage", "A model that is none.", _file("m.gguf", b"\0" * 5000), 11, ""),
        ("bundle", "A bundle under a model's name.", _file("m.gguf", base("signed.json")), 2, "is a bundle"),
    ]
    for name, what, write, code, reason in rows:
        yield Attack(f"pack-{name}", [72], what, PACK, write, code, reason)
    for change in ("grow", "cut", "touch", "spoil"):
        arguments = _meanwhile(change, "m.gguf", PACK)
        what = f"A model that changes while it is packed: {change}."
        write = _large_model if change == "cut" else _model
        yield Attack(f"pack-{change}", [72, 73], what, arguments, write, 3, spoils=["m.gguf"])


def _large_model(at: Path) -> None:
    """One that does not fit into what is kept when it is cut."""
    _model(at)
    data = (at / "m.gguf").read_bytes()
    (at / "m.gguf").write_bytes(data + bytes(1 << 20))


def _pack_targets() -> Iterator[Attack]:
    for name, what, make in TARGETS:
        if name != "link-to-source":
            yield Attack(f"pack-onto-{name}", [71], what, PACK, _all(_model, make("out.ktc")), 3, "already there")
    for room in (0, 5000, 32767):
        full = _meanwhile(f"room:{room}", "m.gguf", PACK)
        yield Attack(
            f"pack-full-{room}", [71], f"A disk that is full after {room} bytes.", full, _model, 3, "cannot write"
        )
    wrong = (*PACK, "--release", "-1")
    yield Attack("pack-release", [67], "A release below 0.", wrong, _model, 2)
    wrong = (*PACK, "--name", "../x")
    yield Attack("pack-name", [62], "A name that is a path.", wrong, _model, 2)


def _signing() -> Iterator[Attack]:
    """77: secret keys that others may have read; bundles that must not be signed."""

    def secret(mode: int, seed: bytes = bytes(32)) -> Write:
        return _all(_file("k", secret_pem(seed).encode("ascii")), _mode("k", mode))

    for mode in (0o640, 0o604, 0o666):
        what = f"A secret key with mode {mode:04o}."
        yield Attack(f"sign-{mode:04o}", [77], what, SIGN, _all(_signed, secret(mode)), 12, "secret key")
    link = _all(_signed, secret(0o600), _moved("k"), _link("k", "other"))
    yield Attack("sign-key-link", [77], "A link in place of a secret key.", SIGN, link, 12, "symbolic link")
    again = _all(_signed, secret(0o600, SEED))
    yield Attack("sign-again", [68], "A key that has signed already.", SIGN, again, 12, "signed the bundle already")
    fifo = _all(_fifo("a.ktc"), secret(0o600))
    yield Attack("sign-fifo", [72], "A FIFO in place of a bundle.", SIGN, fifo, 3)
    bad = bytearray(base("signed.json"))
    bad[SIGNATURE_AT] ^= 1
    broken = _all(_file("a.ktc", bytes(bad)), secret(0o600))
    yield Attack("sign-broken", [68], "A bundle with a signature that does not hold.", SIGN, broken, 12)
    closed = _all(_signed, secret(0o600), _mode("a.ktc", 0o444))
    what = "A bundle that may not be written to."
    yield Attack("sign-closed", [71], what, SIGN, closed, 3, needs_user=True)


def _repairing() -> Iterator[Attack]:
    """A damaged bundle and another copy, which may be as bad."""
    sound = base("signed.json")
    damaged = sound[:MODEL_AT] + b"F" + sound[MODEL_AT + 1 :]
    bad = _file("a.ktc", damaged)
    both = _all(bad, _file("b.ktc", sound))
    rows: list[tuple[str, int, str, Write, int, str]] = [
        ("same-damage", 66, "A copy with the same damage.", _all(bad, _file("b.ktc", damaged)), 11, "leaf 0"),
        ("fifo", 72, "A FIFO in place of the copy.", _all(bad, _fifo("b.ktc")), 3, ""),
        ("missing", 72, "No copy.", bad, 3, ""),
        ("exists", 71, "A target that is there.", _all(both, _file("out.ktc")), 3, "already there"),
        ("link", 71, "A target that is a link.", _all(both, _link("out.ktc", "b.ktc")), 3, "already there"),
        ("no-manifest", 56, "A bundle whose manifest is damaged.",
         _all(_file("a.ktc", damaged[:70] + b"x" + damaged[71:]), _file("b.ktc", sound)), 11, ""),
    ]  # fmt: skip
    for name, number, what, write, code, reason in rows:
        yield Attack(f"repair-{name}", [number], what, REPAIR, write, code, reason)
    full = _meanwhile("room:9000", "a.ktc", REPAIR)
    yield Attack("repair-full", [71], "A disk that is full.", full, both, 3, "cannot write")
