"""Receipts, keys and trust files that are no plain files, or that others can read or change."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.attacks.attack import Attack
from conformance.attacks.from_vectors import public_pem
from conformance.vector_files import base

SEED = bytes(range(32))
"""The secret key that signed base/signed.json; known to everybody."""
PUBLIC = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")

CHECK = ("receipts", "check", "a.json")
SIGN = ("kinetic", "receipt", "sign", "a.json", "--key", "k", "-o", "signed.json")
TRUST = 'format = "kinetic-trust"\nversion = 1\nmode = "off"\nrevoked = []\nkeys = []\n'

Write = Callable[[Path], None]


def attacks() -> Iterator[Attack]:
    yield from _no_plain_files()
    yield from _large()
    yield from _names()
    yield from _public_keys()
    yield from _trust_files()
    yield from _secret_keys()


def secret_pem(seed: bytes = SEED) -> str:
    der = bytes.fromhex("302e020100300506032b657004220420") + seed
    return f"-----BEGIN PRIVATE KEY-----\n{base64.b64encode(der).decode('ascii')}\n-----END PRIVATE KEY-----\n"


def _signed(folder: Path) -> None:
    (folder / "a.json").write_bytes(base("signed.json"))


def _plain(folder: Path) -> None:
    (folder / "a.json").write_bytes(base("plain.json"))


def _no_plain_files() -> Iterator[Attack]:
    def folder(at: Path) -> None:
        (at / "a.json").mkdir()

    def fifo(at: Path) -> None:
        os.mkfifo(at / "a.json")

    def nowhere(at: Path) -> None:
        (at / "a.json").symlink_to("b.json")

    def loop(at: Path) -> None:
        (at / "a.json").symlink_to("a.json")

    def closed(at: Path) -> None:
        _signed(at)
        (at / "a.json").chmod(0)

    unreadable = "UNREADABLE"
    yield Attack("missing", [83], "No file.", CHECK, lambda _: None, 3, unreadable)
    yield Attack("folder", [83], "A folder.", CHECK, folder, 3, unreadable)
    yield Attack("fifo", [83], "A FIFO that nobody writes to: it must not be waited for.", CHECK, fifo, 3, unreadable)
    yield Attack("link-to-nowhere", [77], "A link to nowhere.", CHECK, nowhere, 3, unreadable)
    yield Attack("link-to-itself", [77], "A link to itself.", CHECK, loop, 3, unreadable)
    yield Attack("closed", [77], "A file that may not be read.", CHECK, closed, 3, unreadable, needs_user=True)


def _large() -> Iterator[Attack]:
    def sparse(at: Path) -> None:
        with (at / "a.json").open("wb") as file:
            file.truncate(1 << 30)

    def bomb(at: Path) -> None:
        _plain(at)
        with (at / "a.json").open("ab") as file:
            file.truncate(1 << 30)

    too_large = "FILE_TOO_LARGE"
    yield Attack("sparse-gigabyte", [83], "A gigabyte of nothing.", CHECK, sparse, 14, too_large)
    yield Attack(
        "receipt-and-gigabyte", [83], "A receipt with a gigabyte of nothing behind it.", CHECK, bomb, 14, too_large
    )
    arguments = ("receipts", "check", "/dev/zero")
    yield Attack("endless", [83], "A device without an end.", arguments, lambda _: None, 3, "UNREADABLE")


def _names() -> Iterator[Attack]:
    """Names that steer a terminal, or look like options."""
    odd = "\x1b[2J\nconsistent.json"

    def write(at: Path) -> None:
        (at / odd).write_bytes(b"{")

    yield Attack(
        "name-escapes", [110], "A name that clears the screen.", ("receipts", "check", odd), write, 11, "BAD_JSON"
    )

    def several(at: Path) -> None:
        _signed(at)
        (at / "b.json").write_bytes(b"{")
        (at / "c.json").write_bytes(b"[" * 10_000)

    arguments = ("receipts", "check", "a.json", "b.json", "c.json", "d.json")
    what = "A good, a malformed, a deep and a missing file: the gravest counts."
    yield Attack("several", [110], what, arguments, several, 11, "TOO_DEEP")


RSA = bytes.fromhex("302406092a864886f70d01010105000313000000000000000000000000000000000000")[:40]


def _public_keys() -> Iterator[Attack]:
    checked = (*CHECK, "--key", "k.pub")

    def with_key(text: str) -> Write:
        def write(at: Path) -> None:
            _signed(at)
            (at / "k.pub").write_text(text)

        return write

    good = public_pem(PUBLIC)
    yield Attack("key", [99], "The right key.", checked, with_key(good), 0, "valid signature")
    for name, numbers, what, text, reason in [
        ("key-secret", [77], "A secret key in place of a public one.", secret_pem(), "secret"),
        ("key-empty", [101], "An empty key file.", "", "key"),
        ("key-raw", [101], "A key in hex.", PUBLIC.hex(), "key"),
        ("key-rsa", [101], "An RSA key.", _pem("PUBLIC KEY", RSA), "RSA"),
        ("key-rsa-pkcs1", [101], "An RSA key in its own format.", _pem("RSA PUBLIC KEY", bytes(64)), "RSA"),
        ("key-ec", [101], "A key of another curve.", _pem("EC PRIVATE KEY", bytes(64)), "ECDSA"),
        ("key-two", [101], "Two keys in one file.", good * 2, "PEM"),
        ("key-text-in-front", [101], "A text in front of the key.", "# trusted\n" + good, "PEM"),
        ("key-weak", [106], "A key of small order.", public_pem(b"\1" + bytes(31)), "prime-order"),
        ("key-zero", [106], "A key of zeros.", public_pem(bytes(32)), "prime-order"),
        ("key-spare-bits", [107], "Base64 with spare bits.", good.replace("=\n", "A\n", 1), "key"),
        ("key-nul", [101], "A NUL character in the key.", good.replace("MC", "M\0C", 1), "PEM"),
    ]:
        yield Attack(name, numbers, what, checked, with_key(text), 12, reason)
    yield Attack("key-large", [83], "A key file of a megabyte.", checked, with_key(good + " " * (1 << 20)), 14)
    yield Attack("key-missing", [77], "No key file.", checked, _signed, 3)
    yield from _key_places(checked)


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode('ascii')}\n-----END {label}-----\n"


def _key_places(checked: tuple[str, ...]) -> Iterator[Attack]:
    def link(at: Path) -> None:
        _signed(at)
        (at / "other.pub").write_text(public_pem(PUBLIC))
        (at / "k.pub").symlink_to("other.pub")

    def fifo(at: Path) -> None:
        _signed(at)
        os.mkfifo(at / "k.pub")

    def folder(at: Path) -> None:
        _signed(at)
        (at / "k.pub").mkdir()

    yield Attack("key-link", [77], "A link in place of a key file.", checked, link, 12, "symbolic link")
    yield Attack("key-fifo", [77], "A FIFO in place of a key file.", checked, fifo, 3)
    yield Attack("key-folder", [77], "A folder in place of a key file.", checked, folder, 3)


def _trust_files() -> Iterator[Attack]:
    checked = (*CHECK, "--trust", "t.toml")

    def file(at: Path) -> None:
        _signed(at)
        (at / "t.toml").write_text(TRUST)

    def link(at: Path) -> None:
        _signed(at)
        (at / "u.toml").write_text(TRUST)
        (at / "t.toml").symlink_to("u.toml")

    def fifo(at: Path) -> None:
        _signed(at)
        os.mkfifo(at / "t.toml")

    yield Attack("trust", [77], "A trust file that trusts nobody.", checked, file, 0, "signer unknown")
    yield Attack("trust-link", [77], "A link in place of a trust file.", checked, link, 12, "symbolic link")
    yield Attack("trust-fifo", [77], "A FIFO in place of a trust file.", checked, fifo, 3)
    yield Attack("trust-missing", [77], "No trust file.", checked, _signed, 3)
    both = (*checked, "--key", "k.pub")
    yield Attack("trust-and-key", [99], "A key and a trust file: it is not said which counts.", both, file, 2)


def _secret_keys() -> Iterator[Attack]:
    """Signing with keys that others may have read, or put there."""

    def with_mode(mode: int) -> Write:
        def write(at: Path) -> None:
            _plain(at)
            (at / "k").write_text(secret_pem())
            (at / "k").chmod(mode)

        return write

    def link(at: Path) -> None:
        with_mode(0o600)(at)
        (at / "k").rename(at / "other")
        (at / "k").symlink_to("other")

    def public(at: Path) -> None:
        _plain(at)
        (at / "k").write_text(public_pem(PUBLIC))
        (at / "k").chmod(0o600)

    for mode in (0o640, 0o604, 0o620, 0o666, 0o777):
        what = f"A secret key with mode {mode:04o}."
        yield Attack(f"secret-{mode:04o}", [77], what, SIGN, with_mode(mode), 12, "secret key")
    yield Attack("secret-link", [77], "A link in place of a secret key.", SIGN, link, 12, "symbolic link")
    yield Attack("secret-public", [112], "A public key in place of a secret one.", SIGN, public, 12, "public key")
    yield Attack("secret-missing", [77], "No key file.", SIGN, _plain, 3)
