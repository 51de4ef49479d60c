"""Rerun a receipt on this machine: find the model by its hashes, hash it again, replay, judge."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kinetic import store
from kinetic.api.model import Model
from kinetic.errors import FileProblem, KineticError, Malformed
from kinetic.loader import LoadedFile, open_model_file
from kinetic.types import PROFILE, ModelIdentity, Step
from ktc.errors import KtcError, Unverifiable
from receipts import encode, sign, verify
from receipts.schema import Record

FEATURES: frozenset[str] = frozenset()
"""What this engine reruns beyond plain decoding with a float16 cache (receipts.features)."""


def verify_receipt(
    receipt: str | os.PathLike[str] | bytes,
    model: str | os.PathLike[str] | None = None,
    *,
    device: str = "cpu",
    threads: int = 0,
    on_hash: store.Progress | None = None,
    on_rerun: store.Progress | None = None,
    progress: Callable[[str], None] | None = None,
) -> verify.Verdict:
    """The verdict on one receipt file, or on its bytes; every refusal is a verdict too.

    Without ``model`` the file is looked for by the receipt's digests, never by
    a name in the receipt. It is hashed again in any case, and what was hashed
    is what runs. ``on_hash`` is told bytes, ``on_rerun`` tokens of prompt and
    output: (done, in all). ``progress`` gets news of a line.
    """
    try:
        record, signatures = encode.read_receipt(receipt)
        sign.check_signatures(record, signatures)
        verify.require_judgeable(record, PROFILE, FEATURES)
        with _model_errors(), open_model_file(_find(record, model)) as loaded:
            identity = _hash_again(record, loaded, on_hash)
            with Model(loaded, device=device, threads=threads, progress=progress) as opened:
                verdict = verify.verify(record, _Replayer(opened, identity, on_rerun))
                loaded.check_unchanged()
                return verdict
    except KtcError as error:
        return verify.verdict_of(error)


@contextlib.contextmanager
def _model_errors() -> Iterator[None]:
    """A model that can't be read or run here makes the receipt unverifiable, not malformed."""
    try:
        yield
    except (FileProblem, Malformed) as error:
        raise Unverifiable(f"the model can't be used: {error}", name=error.name) from error


def _find(record: Record, model: str | os.PathLike[str] | None) -> Path:
    if model is not None:
        try:
            return store.resolve(model)
        except FileProblem as error:
            raise Unverifiable(str(error), name="MODEL_MISSING") from error
    first = record["model"]["files"][0]
    path = store.find_by_digest(store.Digests(first["size"], first["blake3"], first["sha256"]))
    if path is None:
        message = f"no file here has the hashes of its model, {first['name']}: pull it, or name it with --model"
        raise Unverifiable(message, name="MODEL_MISSING")
    return path


def _hash_again(record: Record, loaded: LoadedFile, on_hash: store.Progress | None) -> ModelIdentity:
    """The model with its digests, computed now; Unverifiable, before it is loaded, if they aren't the receipt's."""
    identity = loaded.identity(rehash=True, progress=on_hash)
    claimed = [(file["size"], file["blake3"], file["sha256"]) for file in record["model"]["files"]]
    if claimed != [(file.size, file.blake3, file.sha256) for file in identity.files]:
        path = loaded.gguf.paths[0]
        raise Unverifiable(f"{path} is not the file that the receipt names: its hashes differ", name="MODEL")
    return identity


class _Replayer:
    """A model as ``receipts.verify`` wants to see it."""

    profile = PROFILE
    features = FEATURES

    def __init__(self, model: Model, identity: ModelIdentity, on_rerun: store.Progress | None) -> None:
        self._model, self._on_rerun = model, on_rerun
        self.files, self.architecture = identity.files, identity.architecture
        self.vocab_size = model.tokenizer.vocab_size
        self.end_tokens = model.tokenizer.end_tokens

    def replay(self, record: Record) -> Iterator[Step]:
        try:
            yield from self._model.replay(record, self._on_rerun)
        except KineticError as error:
            raise Unverifiable(f"the rerun failed: {error}", name=error.name) from error

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._model.tokenizer.piece(token) for token in tokens)

    def piece(self, token: int) -> bytes:
        return self._model.tokenizer.piece(token, special=True)
