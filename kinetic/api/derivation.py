"""Bundles that say how their weights were made, and trying that again: `kinetic quantize`, byte for byte.

    pack("m.ktc", "model-F16.gguf", read("Q4_K_M"))
    verify("m.ktc", ["model-F16.gguf"])["verdict"]  # DERIVED

What goes into a bundle is what was made anew just then. So no record is written that doesn't hold.
"""

from __future__ import annotations

import os
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import store
from kinetic._version import __version__
from kinetic.api import bundle as bundles
from kinetic.api.quantize import News, read_importance
from kinetic.attest import foreign_errors
from kinetic.errors import Differs, FileProblem, KineticError, Malformed, Unverifiable, UsageError
from kinetic.gguf import Gguf, Source
from kinetic.loader import BundleSource, LoadedBundle, LoadedFile, open_model_file
from kinetic.quantize.settings import Settings, read, write

if TYPE_CHECKING:
    from kinetic.quantize.plan import Plan
    from ktc.reader import Bundle
    from ktc.writer import Written

__all__ = ["Settings", "pack", "read", "verify", "write"]

Name = str | os.PathLike[str]
Entry = dict[str, Any]
"""A file as the manifest has it: name, size, blake3, sha256 (ktc.manifest.SOURCE)."""

TOOL = "kinetic quantize"


class Redone(NamedTuple):
    """A derivation, ready to be made again, and the record of it (ktc.manifest.DERIVATION)."""

    plan: Plan
    record: dict[str, Any]


# --- packing ---


def pack(
    target: Name,
    source: Name,
    settings: Settings,
    *,
    model: Name | None = None,
    matrix: Name | None = None,
    name: str = "",
    threads: int = 0,
    on_hash: store.Progress | None = None,
    news: News | None = None,
    **options: Any,
) -> Written:
    """Write a bundle of what quantising ``source`` gives, with the record of it.

    ``model`` is a file made so before: each byte is compared, and its name and the one that it has for the
    importance matrix are kept. ``matrix`` is where that matrix is, if not at ``settings.matrix``. ``options`` are
    those of ktc.writer.write_bundle. Raises Differs NOT_DERIVED, and whatever ``quantize`` and kinetic.api.bundle.pack
    do, and then leaves nothing.
    """
    bundles.require_target(target)
    path = Path(target).with_suffix(".gguf") if model is None else bundles.resolve_model(model)
    options["name"] = name or bundles.default_name(path)
    bundles.require_name(options["name"])
    bundles.require_free(target)
    with ExitStack() as stack:
        made = stack.enter_context(_opened(path)) if model is not None else None
        matrix = matrix or settings.matrix
        settings = replace(settings, matrix=_matrix_name(settings, matrix, made))
        _require_recordable(settings)
        redone = stack.enter_context(_redone(source, settings, matrix, on_hash, rehash=True))
        options["derivation"] = [redone.record]
        try:
            return _write(redone.plan, made, target, bundles.label(path.name), threads, news, options)
        except Differs as error:
            problem = f"{path} is not what `kinetic quantize` makes of {os.fspath(source)} with {write(settings)}"
            raise _renamed(error, f"{problem}: {error}", "NOT_DERIVED") from None


def _matrix_name(settings: Settings, matrix: Name | None, made: Gguf | None) -> str:
    """What a file made before says, since it was perhaps made in another folder."""
    if not matrix:
        return ""
    held = made.metadata.get("quantize.imatrix.file") if made is not None else None
    return held if isinstance(held, str) and held else settings.matrix or os.fspath(matrix)


def _require_recordable(settings: Settings) -> None:
    """Raises Malformed or LimitExceeded for what doesn't fit the one line that a manifest has for it."""
    with foreign_errors():
        from ktc.manifest import LABEL

        LABEL.check(write(settings), "what is recorded of the settings")


def _write(
    plan: Plan, made: Gguf | None, target: Name, file: str, threads: int, news: News | None, options: dict[str, Any]
) -> Written:
    with foreign_errors(), closing(_bytes(plan, made.shards[0].source if made else None, threads, news)) as pieces:
        from ktc.inputs import ModelStream
        from ktc.writer import write_bundle

        model = ModelStream(plan.parts[0].size(), pieces, plan.source.check_unchanged)
        return write_bundle(target, model, file=file, **options)


def _bytes(plan: Plan, other: Source | None, threads: int, news: News | None) -> Generator[memoryview, None, None]:
    from kinetic.backends.cpu.system import available_cores
    from kinetic.quantize.compare import compared
    from kinetic.quantize.convert import Converter

    yield from compared(plan.parts[0], Converter(plan, threads or available_cores(), news), other)


@contextmanager
def _opened(path: Path) -> Iterator[Gguf]:
    """A model in one file."""
    with Gguf.open(path) as gguf:
        if len(gguf.shards) > 1:
            problem = f"{path} is one part of {len(gguf.shards)}, and a quantised file is compared as one"
            raise UsageError(f"{problem}: leave it out, and it is made again", name="SPLIT_MODEL")
        yield gguf


@contextmanager
def _redone(
    source: Name, settings: Settings, matrix: Name | None, on_hash: store.Progress | None, *, rehash: bool
) -> Iterator[Redone]:
    """The source is open meanwhile, and was hashed after it was opened."""
    from kinetic.quantize.plan import make_plan

    with open_model_file(store.resolve(source)) as file:
        importance, last = None, []
        if matrix:
            status = os.stat(matrix) if os.path.exists(matrix) else None
            importance = read_importance(matrix, settings.include, settings.exclude)
            last = [_as_entry(os.path.basename(matrix), store.digests(matrix, rehash=rehash, opened=status))]
        files = list(_entries(file, on_hash, rehash=rehash)) + last
        importance = replace(importance, path=settings.matrix) if importance is not None else None
        plan = make_plan(file.gguf, settings.recipe, importance)
        plan.check()
        record = {"tool": TOOL, "tool_version": __version__, "settings": write(settings), "files": files}
        yield Redone(plan, record)
        file.check_unchanged()


def _entries(
    file: LoadedFile, progress: store.Progress | None, *, rehash: bool, sizes: Container[int] | None = None
) -> Iterator[Entry]:
    """The model's files; that in a bundle as if it stood alone. One of none of ``sizes`` is not hashed."""
    done = 0
    for shard in file.gguf.shards:
        name = file.bundle.manifest["file"] if isinstance(file, LoadedBundle) else shard.path.name
        if sizes is None or shard.size in sizes:
            tell, opened = _offset(progress, done, file.gguf.size), shard.source.status
            found = store.digests(shard.path, rehash=rehash, opened=opened, part=file.part, progress=tell)
            yield _as_entry(name, found)
        else:
            yield {"name": bundles.label(name), "size": shard.size, "blake3": "", "sha256": ""}
        done += shard.size


def _offset(progress: store.Progress | None, done: int, total: int) -> store.Progress | None:
    """Progress of one file as progress of all of them."""
    return (lambda part, _: progress(done + part, total)) if progress else None


def _as_entry(name: str, found: store.Digests) -> Entry:
    return {"name": bundles.label(name), "size": found.size, "blake3": found.blake3, "sha256": found.sha256}


def _renamed(error: Differs, message: str, name: str) -> Differs:
    return Differs(message, name=name, key=error.key, tensor=error.tensor, at=error.at)


# --- verifying ---


def verify(
    bundle: Name,
    files: Sequence[Name],
    *,
    manifest_digest: str = "",
    threads: int = 0,
    on_hash: store.Progress | None = None,
    progress: store.Progress | None = None,
    news: News | None = None,
) -> dict[str, Any]:
    """What came of making a bundle's model again from ``files``, as plain values; a refusal too.

    The bundle itself is taken as verified, if it is the one of ``manifest_digest``. ``verdict`` is DERIVED, DIFFERS
    (with the ``difference``) or as in kinetic.api.bundle.verify. ``on_hash`` is told bytes of the files, ``progress``
    of the model.
    """
    from receipts.errors import VERDICTS

    try:
        record = _verify(bundles.resolve(bundle), files, manifest_digest, threads, on_hash, progress, news)
    except KineticError as error:
        if error.exit_code not in VERDICTS:
            raise
        refusal = {"exit_code": error.exit_code, "name": error.name, "message": str(error)}
        return {"verdict": VERDICTS[error.exit_code]} | refusal | _place(error)
    return {"verdict": "DERIVED", "exit_code": 0, "name": "DERIVED"} | record


def _place(error: KineticError) -> dict[str, Any]:
    if not isinstance(error, Differs):
        return {}
    return {"difference": {"key": error.key or None, "tensor": error.tensor or None, "at": max(error.at, 0)}}


def _verify(
    path: Path,
    files: Sequence[Name],
    manifest_digest: str,
    threads: int,
    on_hash: store.Progress | None,
    progress: store.Progress | None,
    news: News | None,
) -> dict[str, Any]:
    with foreign_errors():
        from ktc.reader import open_bundle

        with open_bundle(path) as held:
            if manifest_digest not in ("", held.manifest_digest):
                raise FileProblem(f"{path} was changed while it was verified", name="FILE_CHANGED")
            record = _record(held)
            settings = _settings(record)
            given = _matching(record["files"], files, on_hash)
            matrix = given[-1] if settings.matrix else None
            with _as_unverifiable(), _redone(given[0], settings, matrix, None, rehash=False) as redone:
                _require_same_files(record["files"], redone.record["files"])
                _compare(redone.plan, BundleSource(held, "none"), record, threads, progress, news)
            held.check_unchanged()
            return record


def _record(bundle: Bundle) -> dict[str, Any]:
    """Raises Unverifiable for what isn't there or was written by another program."""
    records = bundle.manifest["derivation"]
    if not records:
        raise Unverifiable("the bundle doesn't say how its weights were made", name="NO_DERIVATION")
    record: dict[str, Any] = records[0]
    if record["tool"] != TOOL:
        problem = f"its weights were made by {record['tool'] or 'a program that is not named'}"
        raise Unverifiable(f"{problem}, and only what `{TOOL}` made can be made again here", name="OTHER_TOOL")
    return record


def _settings(record: Mapping[str, Any]) -> Settings:
    text = record["settings"]
    try:
        settings = read(text)
    except UsageError as error:
        problem = f"this build ({__version__}) doesn't know the settings {text!r} of `{TOOL}` {record['tool_version']}"
        raise Unverifiable(f"{problem}: {error}", name="UNKNOWN_SETTINGS") from None
    if write(settings) != text:
        problem = f"the settings {text!r} are not in the form that is recorded, {write(settings)!r}"
        raise Unverifiable(problem, name="UNKNOWN_SETTINGS")
    if len(record["files"]) < 1 + bool(settings.matrix):
        raise Unverifiable("the record of its weights names too few files", name="UNKNOWN_SETTINGS")
    return settings


def _compare(
    plan: Plan,
    other: Source,
    record: Mapping[str, Any],
    threads: int,
    progress: store.Progress | None,
    news: News | None,
) -> None:
    done, total = 0, plan.parts[0].size()
    try:
        with closing(_bytes(plan, other, threads, news)) as pieces:
            for piece in pieces:
                done += piece.nbytes
                if progress:
                    progress(done, total)
    except Differs as error:
        problem = f"the model in it is not what {TOOL} makes of these files with {record['settings']}: {error}"
        if record["tool_version"] != __version__:
            problem += f"; it was made by version {record['tool_version']}, and this is {__version__}: try that one"
            raise Unverifiable(problem, name="OTHER_VERSION") from None
        raise _renamed(error, problem, "DIFFERS") from None


@contextmanager
def _as_unverifiable() -> Iterator[None]:
    """What can't be quantised as recorded was not made so, but perhaps another build knows more."""
    try:
        yield
    except (UsageError, Malformed) as error:
        raise Unverifiable(f"what the record says can't be done here: {error}", name="CANNOT_REDO") from error


# --- files by their digests ---


def _matching(entries: Sequence[Entry], files: Iterable[Name], progress: store.Progress | None) -> list[Path]:
    """The file for each entry. Raises Unverifiable for those that are missing, and those that have no part in it."""
    wanted, sizes = {_key(entry) for entry in entries}, {entry["size"] for entry in entries}
    found: dict[tuple[Any, ...], Path] = {}
    others: list[str] = []
    for path in map(store.resolve, files):
        for entry in _held(path, sizes, progress):
            if _key(entry) in wanted:
                found.setdefault(_key(entry), path)
            else:
                others.append(entry["name"])
    _require_all(entries, found, others)
    return [found[_key(entry)] for entry in entries]


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["size"], entry["blake3"], entry["sha256"]


def _held(path: Path, sizes: Container[int], progress: store.Progress | None) -> list[Entry]:
    """What a path stands for: the file, all parts of a split model whichever is named, or the model in a bundle."""
    try:
        with open_model_file(path) as file:
            return list(_entries(file, progress, rehash=True, sizes=sizes))
    except Malformed:  # An importance matrix of the older format, or one part alone.
        return [_as_entry(path.name, store.digests(path, rehash=True, progress=progress))]


def _require_all(entries: Sequence[Entry], found: Container[tuple[Any, ...]], others: Sequence[str]) -> None:
    missing = [entry for entry in entries if _key(entry) not in found]
    strange = f"{others[0]} is not one of the files that the weights were made from" if others else ""
    if missing:
        needed = ", ".join(f"{e['name']} ({e['size']:,} bytes, BLAKE3 {e['blake3']})" for e in missing)
        problem = f"{strange}; still needed" if strange else "to make the weights again there is still needed"
        raise Unverifiable(f"{problem}: {needed}", name="FILE_MISSING")
    if others:
        raise Unverifiable(f"{strange}, which are all there: leave it out", name="OTHER_FILE")


def _require_same_files(entries: Sequence[Entry], used: Sequence[Entry]) -> None:
    """The parts of a split model are opened by their names, and what the record lists must be what is used."""
    if list(map(_key, entries)) != list(map(_key, used)):
        recorded, found = (", ".join(entry["name"] for entry in some) for some in (entries, used))
        raise Unverifiable(f"the record names {recorded}, and what would be used is {found}", name="OTHER_FILE")
