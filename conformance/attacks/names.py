"""Names that lead elsewhere: of models to be fetched, to be found in another program's folders, or to be removed.

Each is refused before anything is asked of a network, and no file outside the folders for models is touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.attacks.attack import Attack
from conformance.attacks.tiny_model import tiny_model

Write = Callable[[Path], object]

PULL = ("kinetic", "pull")
OLLAMA = "ollama"
"""The suite says that other program's models are here, relative to each attack's folder."""

HUB_NAMES = {
    "up": "hf:../../etc/passwd",
    "up-in-repo": "hf:owner/..",
    "revision-up": "hf:owner/repo@../../main:Q4_0",
    "choice-up": "hf:owner/repo:../../m.gguf",
    "double-dash": "hf:own--er/repo:Q4_0",
    "address": "hf:https://example.invalid/m.gguf",
    "escape": "hf:owner/repo:\x1b[2J",
    "two-revisions": "hf:owner/repo@a:Q4_0@b",
    "nothing": "hf:",
    "no-owner": "hf:repo",
    "other-letters": "hf:οwner/repo",
}
REQUIREMENTS = {
    "flag": "pypi:--index-url=http://example.invalid",
    "second-flag": "pypi:a==1 --extra-index-url http://example.invalid",
    "path": "pypi:../a==1",
    "address": "pypi:a @ http://example.invalid/a.whl",
    "range": "pypi:a>=1",
    "line": "pypi:a==1\nb==2",
    "marker": "pypi:a==1;python_version>'3'",
    "nothing": "pypi:",
}
FILES = {
    "hidden": ".hidden.gguf",
    "dash": "-rf.gguf",
    "escape": "\x1b[2J.gguf",
    "line": "a\nb.gguf",
    "suffix": "m.gguf.sh",
}


def attacks() -> Iterator[Attack]:
    for name, text in HUB_NAMES.items():
        yield Attack(f"pull-hub-{name}", [], "A name on a hub that is none.", (*PULL, text), _nothing, 2, "hf:OWNER")
    for name, text in REQUIREMENTS.items():
        what = "A package that would be more than a name and a version."
        yield Attack(f"pull-package-{name}", [], what, (*PULL, text), _nothing, 2, "PACKAGE==VERSION")
    for name, file in FILES.items():
        what = "A model file whose name steers a shell, a terminal or a folder."
        yield Attack(f"pull-file-{name}", [62], what, (*PULL, f"./{file}"), _model(file), 2, "not a usable model name")
    yield from _removing()
    yield from _manifests()


def _nothing(_: Path) -> None:
    """No files."""


def _model(name: str) -> Write:
    return lambda at: (at / name).write_bytes(tiny_model())


def _removing() -> Iterator[Attack]:
    for name, text in [("path", "./m.gguf"), ("up", "../m.gguf"), ("local", "ollama:evil"), ("hub", "hf:../m")]:
        what = "A name that is no pulled model: what is there stays."
        code = 2 if name == "hub" else 3
        yield Attack(f"rm-{name}", [], what, ("kinetic", "rm", text, "-y"), _model("m.gguf"), code)


def _manifests() -> Iterator[Attack]:
    """Of another program, which names its files by digest: a digest that is a path leads nowhere."""
    for name, digest in [
        ("up", "sha256:x/../../../secret.gguf"),
        ("absolute", "sha256:/etc/passwd"),
        ("dash", "sha256-" + "0" * 64),
        ("capitals", "sha256:" + "AB" * 32),
        ("number", 7),
    ]:
        what = f"A manifest whose digest is {digest!r}."
        arguments = ("kinetic", "info", "ollama:evil")
        yield Attack(f"manifest-{name}", [], what, arguments, _manifest(digest), 3)
    what = "A manifest nested 100,000 deep."
    yield Attack("manifest-deep", [83], what, ("kinetic", "info", "ollama:evil"), _raw(b"[" * 100_000), 3)


def _manifest(digest: object) -> Write:
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
    return _raw(json.dumps({"layers": [layer]}).encode())


def _raw(manifest: bytes) -> Write:
    def write(at: Path) -> None:
        (at / "secret.gguf").write_bytes(tiny_model())
        (at / OLLAMA / "blobs" / "sha256-x").mkdir(parents=True)  # so that a path may lead through it
        folder = at / OLLAMA / "manifests" / "registry.ollama.ai" / "library" / "evil"
        folder.mkdir(parents=True)
        (folder / "latest").write_bytes(manifest)

    return write
