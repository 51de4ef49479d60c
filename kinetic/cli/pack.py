"""``kinetic pack``: put a model, with all that belongs to it, into a bundle."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress
from kinetic.errors import UsageError

HELP = "pack a model into a bundle (.ktc)"

EPILOG = """\
The model file stands in the bundle byte for byte: `kinetic unpack` gives it back. The parts of
a split model become one file, and their digests are recorded. Nothing is ever overwritten. A
profile says how the model runs fastest on a kind of machine, and cannot change an answer.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("pack", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a .gguf file, or a name from `kinetic models`")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the bundle (.ktc), which must not exist")
    parser.add_argument("--name", default=None, metavar="NAME", help="its name; by default the model's")
    parser.add_argument("--release", type=int, default=0, metavar="N", help="number of this release under its name")
    parser.add_argument("--chunks", action="store_true",
                        help="list a digest for each MiB: checked when first used, repairable one by one")  # fmt: skip
    parser.add_argument("--sign", action="append", default=[], metavar="KEY",
                        help="sign with this secret key, from `kinetic keygen` (repeatable)")  # fmt: skip
    parser.add_argument("--profile", default="none", metavar="HOW",
                        help="auto measures this machine, or a TOML file of profiles; none by default")  # fmt: skip
    parser.add_argument("--derivation", metavar="FILE", help="a TOML file that says how the model was made")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api import bundle
    from kinetic.attest import read_key

    if not 0 <= options.release < 2**53:
        raise UsageError(f"the release is {options.release}, but must be from 0 to 2^53 - 1", name="BAD_RELEASE")
    bundle.require_target(options.output)
    if options.name is not None:
        bundle.require_name(options.name)
    keys = [read_key(path) for path in options.sign]
    derivation = bundle.read_derivation(options.derivation) if options.derivation else None
    profiles = _profiles(options)
    with (
        Progress("hashing the parts", quiet=options.quiet) as hashing,
        Progress("packing", quiet=options.quiet) as packing,
    ):
        written = bundle.pack(
            options.model,
            options.output,
            name=options.name or "",
            release=options.release,
            leaves=options.chunks,
            profiles=profiles,
            derivation=derivation,
            sign=keys,
            on_hash=hashing,
            progress=packing,
        )
    _print(options, written.manifest_digest, written.manifest, written.size)
    return 0


def _profiles(options: Namespace) -> list[dict[str, Any]]:
    if options.profile == "none":
        return []
    if options.profile != "auto":
        from kinetic.api.bundle import read_profiles

        return read_profiles(options.profile)
    from kinetic import store
    from kinetic.api.profiles import measure

    with Progress("measuring this machine", quiet=options.quiet) as bar:
        return [measure(store.resolve(options.model), bar)]


def _print(options: Namespace, digest: str, manifest: dict[str, Any], size: int) -> None:
    if options.json:
        import json

        said = {name: manifest[name] for name in ("name", "release", "file", "profiles")}
        print(json.dumps({"file": options.output, "manifest_digest": digest, "size": size, **said}, ensure_ascii=False))
        return
    print(f"{options.output}: {manifest['name']}, release {manifest['release']}, {size:,} bytes, bundle {digest}")
    for profile in manifest["profiles"]:
        print(f"profile: {', '.join(f'{name} {value}' for name, value in profile.items())}")
