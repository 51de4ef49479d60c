"""``kinetic keygen``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from kinetic.cli.parser import Subcommands

HELP = "make a key pair for signing receipts and bundles"

EPILOG = """\
The secret key is written to PATH, which only you can read, the public key to PATH.pub. Neither is ever
overwritten. Both are Ed25519 keys in PEM, which openssl reads and writes too.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("keygen", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("-o", "--output", metavar="PATH", help="secret key; by default 'signing' in the keys folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.attest import foreign_errors

    path = _path(options.output)
    with foreign_errors():
        from ktc import keys, signature

        public = keys.write_key_pair(path).public
        _print(options, path, keys.public_name(path), signature.key_id(public), public)
    return 0


def _path(output: str | None) -> Path:
    """Where the secret key goes. Raises UsageError, or FileProblem where there can be no keys folder."""
    from kinetic import store
    from kinetic.errors import FileProblem, UsageError

    if output is None:
        folder = store.writable("keys")
        if folder is None:
            raise FileProblem(f"{store.folder('keys')} can't be written: name a file with -o", name="UNWRITABLE")
        return folder / "signing"
    if output == "-" or not Path(output).name or output.endswith(("/", ".pub")):
        raise UsageError(f"-o names the secret key's file, and {output!r} can't be one", name="BAD_ARGUMENTS")
    return Path(output)


def _print(options: Namespace, secret_file: Path, public_file: str, key_id: str, public: bytes) -> None:
    from base64 import b64encode

    from receipts.terminal import printable

    encoded = b64encode(public).decode("ascii")
    if options.json:
        import json

        names = {"secret_file": str(secret_file), "public_file": public_file}
        print(json.dumps({"key_id": key_id, "public_key": encoded, **names}, ensure_ascii=False))
        return
    print(f"key {key_id}")
    print(f"sign with    --sign {printable(str(secret_file))}   (whoever has this file signs as you)")
    print(f'others pin   --key {printable(public_file)}   (in a trust file: public_key = "{encoded}")')
