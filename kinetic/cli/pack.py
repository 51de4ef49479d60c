"""``kinetic pack``: put a model, with all that belongs to it, into a bundle."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.quantize.settings import Settings

HELP = "pack a model into a bundle (.ktc)"

EPILOG = """\
The model file stands in the bundle byte for byte: `kinetic unpack` gives it back. The parts of
a split model become one file, and their digests are recorded. Nothing is ever overwritten. A
profile says how the model runs fastest on a kind of machine, and cannot change an answer.

With --derived-from and --quantize the bundle records how its weights were made: they are made
again, and MODEL must have the very same bytes (exit code 10 if not). Without MODEL what is made
is packed. `kinetic verify --derive` tries it again.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("pack", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a .gguf file, or a name from `kinetic models`")
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
    parser.add_argument("--derived-from", metavar="FILE", help="what `kinetic quantize` made the model from")
    parser.add_argument("--quantize", metavar="SETTINGS",
                        help="its type and options, as in 'Q4_K_M --output-tensor-type q8_0'")  # fmt: skip
    parser.add_argument("--imatrix", metavar="FILE", help="the importance matrix that it used")
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
    derived = _derived(options)
    common = {"name": options.name or "", "release": options.release, "leaves": options.chunks, "sign": keys}
    common["profiles"] = _profiles(options)
    with (
        Progress("hashing the parts", quiet=options.quiet) as hashing,
        Progress("packing", quiet=options.quiet) as packing,
    ):
        common |= {"on_hash": hashing, "progress": packing}
        if derived is None:
            derivation = bundle.read_derivation(options.derivation) if options.derivation else None
            written = bundle.pack(options.model, options.output, derivation=derivation, **common)
        else:
            from kinetic.api.derivation import pack

            tell = None if options.quiet else news
            files = {"model": options.model, "matrix": options.imatrix}
            written = pack(options.output, options.derived_from, derived, **files, **common, news=tell)
    _print(options, written.manifest_digest, written.manifest, written.size)
    return 0


def _derived(options: Namespace) -> Settings | None:
    """How the model was quantised, if that is said. Raises UsageError for options that don't go together."""
    source, settings = options.derived_from, options.quantize
    if (source is None) != (settings is None):
        raise UsageError("--derived-from and --quantize belong together: give both", name="BAD_ARGUMENTS")
    if source is None:
        if options.imatrix is not None:
            raise UsageError("--imatrix goes with --derived-from and --quantize: give them", name="BAD_ARGUMENTS")
        if options.model is None:
            raise UsageError("MODEL is missing: name a .gguf file", name="BAD_ARGUMENTS")
        return None
    if options.derivation:
        raise UsageError("--derivation and --derived-from both say how the model was made: give one of them",
                         name="BAD_ARGUMENTS")  # fmt: skip
    from kinetic.api.derivation import read

    derived = read(settings)
    if derived.matrix and options.imatrix is not None:
        raise UsageError("--imatrix is given twice, once in --quantize", name="BAD_ARGUMENTS")
    return derived


def _profiles(options: Namespace) -> list[dict[str, Any]]:
    if options.profile == "none":
        return []
    if options.profile != "auto":
        from kinetic.api.bundle import read_profiles

        return read_profiles(options.profile)
    if options.model is None:
        raise UsageError("--profile auto measures MODEL, which is missing: name it", name="BAD_ARGUMENTS")
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
