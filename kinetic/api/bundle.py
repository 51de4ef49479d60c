"""Bundles (.ktc): packing, unpacking, verifying, signing and repairing, with this project's names and errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import store
from kinetic.attest import UNPRINTABLE, foreign_errors
from kinetic.errors import FileProblem, KineticError, Malformed, UsageError
from kinetic.gguf import Gguf

if TYPE_CHECKING:
    from ktc.fields import Table
    from ktc.layout import Section
    from ktc.repair import Repaired
    from ktc.signature import KeyPair
    from ktc.trust import Trust
    from ktc.writer import Written

Name = str | os.PathLike[str]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MOST_TOML_BYTES = 1 << 20


# --- packing ---


def pack(
    model: Name,
    target: Name,
    *,
    name: str = "",
    leaves: bool = False,
    on_hash: store.Progress | None = None,
    derivation: Mapping[str, Any] | None = None,
    **options: Any,
) -> Written:
    """Write a bundle that holds a model file, byte for byte, or the parts of a split model as one file.

    ``name`` "" is taken from the file's name; ``leaves`` makes it checkable piece by piece. ``options``
    are those of ktc.writer.write_bundle: ``release``, ``profiles``, ``sign``, and ``progress``, which is
    told of what is written, (bytes done, in all), as ``on_hash`` is of the parts that are hashed before.
    Raises UsageError, FileProblem (EXISTS: ``target`` is never replaced), Malformed or LimitExceeded,
    and then leaves nothing.
    """
    require_target(target)
    path = resolve_model(model)
    require_name(name or default_name(path))
    options |= {"name": name or default_name(path), "leaves": leaves, "derivation": [derivation] if derivation else []}
    require_free(target)
    with Gguf.open(path) as gguf, foreign_errors():
        if len(gguf.shards) > 1:
            return _pack_parts(gguf, path, target, on_hash, options)
        from ktc.inputs import ModelFile
        from ktc.writer import write_bundle

        with ModelFile(path) as file:
            return write_bundle(target, file, file=label(path.name), **options)


def _pack_parts(
    gguf: Gguf, path: Path, target: Name, on_hash: store.Progress | None, options: dict[str, Any]
) -> Written:
    from kinetic.api.join import JoinedModel, joined_name
    from ktc.writer import write_bundle

    joined = JoinedModel(gguf, on_hash)
    sources = [source | {"name": label(source["name"])} for source in joined.sources]
    return write_bundle(target, joined, file=label(joined_name(path)), sources=sources, **options)


def default_name(path: Path) -> str:
    """The catalog's name of a file, else its own made to fit; of a split model without the part's number."""
    for name, entry in store.catalog().items():
        if entry["file"] == path.name and NAME.fullmatch(name):
            return name
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    fitting = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).lstrip("._-")[:64]
    return fitting or "model"


def require_name(name: str) -> None:
    """Raises UsageError for what can't be the name of a bundle."""
    if not NAME.fullmatch(name):
        problem = "a bundle's name has 1 to 64 lower-case letters, digits, dots, dashes or underscores"
        raise UsageError(f"{problem}, a letter or digit first, which {name!r} has not", name="BAD_NAME")


def resolve_model(model: Name) -> Path:
    """As store.resolve. Raises UsageError for a bundle."""
    path = store.resolve(model)
    if store.is_bundle(path):
        raise UsageError(f"{path} is a bundle already: name the model file", name="ALREADY_BUNDLE")
    return path


def require_free(target: Name) -> None:
    if os.path.lexists(target):
        raise FileProblem(f"{os.fspath(target)} is already there, and is not overwritten", name="EXISTS")


def require_target(target: Name) -> None:
    """Raises UsageError for a name that says of a bundle that it is a bare model file."""
    if Path(target).suffix.lower() == ".gguf":
        problem = f"{os.fspath(target)} is to be a bundle, and other programs would take it for a bare model file"
        raise UsageError(f"{problem}: give it a name that ends in .ktc", name="BAD_NAME")


def label(name: str) -> str:
    """A file's name as Unicode text of one line."""
    return UNPRINTABLE.sub("?", os.fsencode(name).decode("utf-8", "replace"))


def read_profiles(path: Name) -> list[dict[str, Any]]:
    """Profiles from a TOML file of tables ``[[profile]]``. Raises FileProblem, Malformed or LimitExceeded."""
    with foreign_errors():
        from ktc.manifest import PROFILE

        table = _read_toml(path)
        _require_fields(path, table, {"profile"})
        return [_checked(PROFILE, entry, f"{path}: profile[{i}]") for i, entry in enumerate(_list(path, table))]


def read_derivation(path: Name) -> dict[str, Any]:
    """How a model was made, from a TOML file: tool, tool_version, settings, tables ``[[files]]``."""
    with foreign_errors():
        from ktc.manifest import DERIVATION

        return _checked(DERIVATION, _read_toml(path), str(path))


def _read_toml(path: Name) -> dict[str, Any]:
    import tomllib

    from ktc.files import read_bounded

    try:
        return tomllib.loads(read_bounded(path, MOST_TOML_BYTES).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{path} is not TOML: {error}", name="NOT_TOML") from None


def _require_fields(path: Name, table: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(table) - known):
        raise Malformed(f"{path}: there is no field {unknown[0]!r}", name="UNKNOWN_FIELD")


def _list(path: Name, table: Mapping[str, Any]) -> list[Any]:
    entries = table.get("profile", [])
    if not isinstance(entries, list) or not entries:
        raise Malformed(f"{path} holds no table [[profile]]", name="NO_PROFILE")
    return entries


def _checked(form: Table, value: Any, where: str) -> dict[str, Any]:
    form.check(value, where)
    return dict(value)


# --- the rest ---


def resolve(bundle: Name) -> Path:
    """As store.resolve, of a bundle. Raises FileProblem."""
    try:
        return store.resolve(bundle)
    except FileProblem:
        if os.path.isdir(bundle):
            problem = f"{os.fspath(bundle)} is a folder: name the bundle in it"
            raise FileProblem(problem, name="IS_FOLDER") from None
        raise


@contextmanager
def errors_of(path: Path, *others: Name) -> Iterator[None]:
    """As foreign_errors; a message that names none of these files names the first."""
    try:
        with foreign_errors():
            yield
    except KineticError as error:
        if any(os.fspath(name) in str(error) for name in (path, *others)):
            raise
        raise type(error)(f"{path}: {error}", name=error.name) from error


def unpack(bundle: Name, target: Name, *, progress: store.Progress | None = None) -> Section:
    """Write the model file in a bundle to ``target``, which must not exist; returns its place and digests."""
    path = resolve(bundle)
    with errors_of(path, target):
        from ktc.unpack import unpack as unpack_bundle

        return unpack_bundle(path, target, progress=progress)


def sign(bundle: Name, pair: KeyPair) -> list[str]:
    """Add a signature to a bundle, in place; returns the key ids of all signers."""
    path = resolve(bundle)
    with errors_of(path):
        from ktc.writer import sign_bundle

        return sign_bundle(path, pair)


def repair(bundle: Name, donor: Name, target: Name, *, progress: store.Progress | None = None) -> Repaired:
    """Write to ``target`` the bundle that a damaged one was, with what is needed of another copy of the model."""
    path, other = resolve(bundle), store.resolve(donor)
    with errors_of(path, other, target):
        from ktc.repair import repair as repair_bundle

        return repair_bundle(path, other, target, progress=progress)


def read_trust(key_files: Iterable[str], trust_file: str | None) -> Trust | None:
    """Whom the files named trust with bundles; None if there are none. A key goes by the name of its file."""
    with foreign_errors():
        from ktc import keys, trust

        if trust_file is not None:
            return trust.read_trust(trust_file)
        named: dict[str, bytes] = {}
        for path in key_files:
            name = os.path.basename(path).removesuffix(".pub") or path
            named[path if name in named else name] = keys.read_public_key(path)
        return trust.pinned(named, "bundle") if named else None


def verify(
    bundle: Name,
    *,
    trust: Trust | None = None,
    at: int | None = None,
    min_release: int = 0,
    sha256: bool = False,
    progress: store.Progress | None = None,
) -> dict[str, Any]:
    """What a whole check of a bundle found (ktc.verify.Findings.as_json), a refusal as plain values too.

    ``verdict``, ``exit_code`` and ``name`` say how it ended. A refusal has a ``message``, and
    ``damage`` where bytes are damaged.
    """
    from ktc.errors import KtcError
    from ktc.verify import verify as verify_bundle
    from receipts.errors import VERDICTS

    try:
        path = resolve(bundle)
        found = verify_bundle(path, trust=trust, at=at, min_release=min_release, sha256=sha256, progress=progress)
    except (KtcError, FileProblem) as error:
        damage = getattr(error, "damage", None)
        refusal = {"exit_code": error.exit_code, "name": error.name, "message": str(error)}
        return {"verdict": VERDICTS[error.exit_code]} | refusal | ({"damage": damage.as_json()} if damage else {})
    return {"verdict": "INTACT", "exit_code": 0, "name": "INTACT"} | found.as_json()
