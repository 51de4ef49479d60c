"""Models that other programs keep on this machine: Ollama, LM Studio, and whatever uses the Hugging Face cache.

Nothing of theirs is ever changed, and of a model file nothing is read but its
first four bytes. What can't be read, or isn't as its program writes it, is not listed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kinetic.errors import FileProblem
from kinetic.model_names import HubName, choose, hub_name, models_among, shards, short_names

MAGIC = b"GGUF"
OLLAMA_MODEL = "application/vnd.ollama.image.model"
OLLAMA_HOST, OLLAMA_OWNER = "registry.ollama.ai", "library"
MAX_MANIFEST = 1 << 20
SHA256 = re.compile(r"sha256:([0-9a-f]{64})")


class LocalModel(NamedTuple):
    """A model of another program. ``name`` is what the commands take, ``size`` that of all its files in bytes."""

    name: str
    source: str
    path: Path
    size: int


def list_local() -> list[LocalModel]:
    """Every model file of the other programs, by source and name."""
    return sorted({model.name: model for model in (*_ollama(), *_lm_studio(), *_hugging_face())}.values(), key=_order)


def _order(model: LocalModel) -> tuple[str, str]:
    return model.source, model.name


def find_local(text: str) -> Path | None:
    """The file that a name of another program's model means, or None.

    Raises UsageError for a malformed ``hf:`` name, FileProblem for one that could mean several models.
    """
    source = text.partition(":")[0]
    if source == "ollama":
        return _named(_ollama(), text, f"{text}:latest")
    if source == "lmstudio":
        return _named(_lm_studio(), text, f"{text}.gguf")
    name = hub_name(text)
    return _cached(name) if name else None


def _named(models: Iterator[LocalModel], *names: str) -> Path | None:
    return next((model.path for model in models if model.name in names), None)


def _model(name: str, source: str, path: Path) -> LocalModel | None:
    """None if it is no GGUF file, or a part of it is missing."""
    try:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
        return LocalModel(name, source, path, sum(part.stat().st_size for part in shards(path)))
    except OSError:
        return None


def _open_at_once(path: str, flags: int) -> int:
    """A pipe is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)  # no folder, so nothing is below it


# --- Ollama: manifests/HOST/OWNER/MODEL/TAG name blobs/sha256-... ------------


def _ollama_folders() -> list[Path]:
    if own := os.environ.get("OLLAMA_MODELS"):
        return [Path(own).expanduser()]
    # The second is that of the service that its installer sets up.
    return [_home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]


def _ollama() -> Iterator[LocalModel]:
    for folder in _ollama_folders():
        for manifest in _below(folder / "manifests", "*/*/*/*"):
            blob = _model_blob(folder, manifest)
            if blob and (model := _model(_ollama_name(manifest), "ollama", blob)):
                yield model


def _below(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _ollama_name(manifest: Path) -> str:
    host, owner, model, tag = manifest.parts[-4:]
    owner = "" if (host, owner) == (OLLAMA_HOST, OLLAMA_OWNER) else f"{owner}/"
    return f"ollama:{'' if host == OLLAMA_HOST else f'{host}/'}{owner}{model}:{tag}"


def _model_blob(folder: Path, manifest: Path) -> Path | None:
    """The one model that a manifest names. A model in several blobs can't be run: its files don't say their order."""
    digests = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        for layer in _read_small(manifest)["layers"]:
            if layer["mediaType"] == OLLAMA_MODEL and (digest := SHA256.fullmatch(layer["digest"])):
                digests.append(digest[1])
    return _blob(folder, digests[0]) if len(digests) == 1 else None


def _read_small(path: Path) -> Any:
    with open(path, "rb", opener=_open_at_once) as file:
        return json.loads(file.read(MAX_MANIFEST))


def _blob(folder: Path, sha256: str) -> Path:
    return folder / "blobs" / f"sha256-{sha256}"


def ollama_blob(sha256: str, size: int) -> Path | None:
    """The file that Ollama keeps under this sha256 (hex), if it has this many bytes. It is not hashed here."""
    for folder in _ollama_folders():
        path = _blob(folder, sha256)
        with contextlib.suppress(OSError):
            if path.stat().st_size == size:
                return path
    return None


# --- LM Studio: PUBLISHER/REPO/FILE ------------------------------------------


def _lm_studio() -> Iterator[LocalModel]:
    for folder in (_home() / ".lmstudio/models", _home() / ".cache/lm-studio/models"):
        files = {path.relative_to(folder).as_posix(): path for path in _below(folder, "*/*/*.gguf")}
        for name in models_among(files):
            if model := _model(f"lmstudio:{name}", "lmstudio", files[name]):
                yield model


# --- the Hugging Face cache: models--OWNER--REPO/snapshots/COMMIT/FILE --------


def hub_cache() -> Path:
    """The folder of the Hugging Face cache: HF_HUB_CACHE, or ``hub`` in HF_HOME, or below XDG_CACHE_HOME."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if own := os.environ.get(variable):
            return Path(os.path.expandvars(own)).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else _home() / ".cache") / "huggingface/hub"


def _hugging_face() -> Iterator[LocalModel]:
    with contextlib.suppress(OSError):
        for folder in sorted(hub_cache().glob("models--*--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/")
            files = _cached_files(folder, "")
            for path, name in short_names(models_among(files)).items():
                if repo.count("/") == 1 and (model := _model(f"hf:{repo}:{name}", "hf", files[path])):
                    yield model


def _cached(name: HubName) -> Path | None:
    folder = hub_cache() / f"models--{name.repo.replace('/', '--')}"
    files = _cached_files(folder, name.revision)
    present = {path: files[path] for path in models_among(files) if _model("", "hf", files[path])}
    chosen = choose(present, name.choice)
    if len(chosen) > 1:
        names = ", ".join(f"{name._replace(choice=choice)}" for choice in short_names(chosen).values())
        raise FileProblem(f"{name} could mean several models: name one of {names}", name="AMBIGUOUS")
    return present[chosen[0]] if chosen else None


def _cached_files(folder: Path, revision: str) -> dict[str, Path]:
    """The .gguf files of a repository by their paths in it: of the main branch, else of the newest snapshot."""
    files: dict[str, Path] = {}
    for snapshot in _snapshots(folder, revision):
        for place, _, names in os.walk(snapshot):
            for name in names:
                if name.endswith(".gguf"):
                    path = Path(place, name)
                    files.setdefault(path.relative_to(snapshot).as_posix(), path)
    return files


def _snapshots(folder: Path, revision: str) -> list[Path]:
    """Those of a revision, or all of them, the one of the main branch first and then the newest first."""
    commit = _commit(folder, revision or "main")
    found = []
    with contextlib.suppress(OSError):
        found = sorted((folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    if revision:
        return [
            path for path in found if path.name == commit or (len(revision) >= 7 and path.name.startswith(revision))
        ]
    return sorted(found, key=lambda path: path.name != commit)


def _commit(folder: Path, reference: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        return (folder / "refs" / reference).read_text(encoding="ascii").strip()
    return ""
