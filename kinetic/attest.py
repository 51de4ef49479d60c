"""From a finished completion to a receipt, and from a receipt back to the question. The only module that does either.

It sees token ids, texts and digests; never arrays, models or devices.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kinetic._version import __version__
from kinetic.errors import FileProblem, KineticError, LimitExceeded, Malformed, Unverifiable
from kinetic.types import PROFILE, ModelFile, ModelIdentity, Request, Sampling
from ktc.errors import KtcError
from receipts import encode, schema

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")
"""Characters that a file's name may have on disk but not in a receipt."""


@dataclass(frozen=True)
class Attested:
    """Everything that one receipt says. ``request`` holds settings in their canonical form, seed included."""

    identity: ModelIdentity
    request: Request
    output: tuple[int, ...]
    text: str
    stop_reason: str
    stop_strings: tuple[str, ...]
    context: int
    """Tokens that the context holds; recorded only where it ended the answer."""
    template_time: str
    """Clock value that the chat template asked for, or ""."""
    engine_id: str
    device_class: str
    device_name: str
    time: str
    """UTC, as in 2026-03-14T15:09:26Z."""


def make_receipt(answer: Attested) -> dict[str, Any]:
    """The unsigned receipt, its form checked. Raises Malformed or LimitExceeded if it can't be written down."""
    request = answer.request
    claims = {
        "engine_version": __version__,
        "engine_id": answer.engine_id,
        "device_class": answer.device_class,
        "device_name": answer.device_name,
        "time": answer.time,
    }
    with foreign_errors():
        return schema.new_record(
            profile=PROFILE,
            architecture=answer.identity.architecture,
            files=_presentable(answer.identity.files),
            prompt=request.prompt,
            output=answer.output,
            text=answer.text,
            stop_reason=answer.stop_reason,
            sampling=asdict(request.sampling),
            max_tokens=request.max_tokens,
            stop_strings=answer.stop_strings,
            end_tokens=request.end_tokens,
            completion_index=request.completion_index,
            overrides={"context": answer.context} if answer.stop_reason == "context" else {},
            claims=claims,
            clock=answer.template_time,
        )


def _presentable(files: Iterable[ModelFile]) -> list[ModelFile]:
    """Names as Unicode text of one line; they are claims, so what can't be written is replaced."""
    return [
        replace(file, name=UNPRINTABLE.sub("?", os.fsencode(file.name).decode("utf-8", "replace"))) for file in files
    ]


def question_of(record: Mapping[str, Any]) -> Request:
    """The request that a receipt's answer belongs to. The record must have been checked."""
    known = {field.name for field in fields(Sampling)}
    values = schema.sampling_values(dict(record))
    return Request(
        prompt=tuple(record["prompt"]["tokens"]),
        sampling=Sampling(**{name: value for name, value in values.items() if name in known}),
        max_tokens=record["max_tokens"],
        end_tokens=frozenset(record["stop"]["end_tokens"]),
        completion_index=record["completion_index"],
    )


def save(record: dict[str, Any], path: Path) -> None:
    """Write an unsigned receipt whole or not at all: CBOR if the name ends in .cbor, else JSON. Raises FileProblem."""
    with foreign_errors():
        encode.write_receipt(path, record, form="cbor" if path.suffix == ".cbor" else "json")


_KINDS: dict[int, type[KineticError]] = {3: FileProblem, 11: Malformed, 13: Unverifiable, 14: LimitExceeded}


@contextlib.contextmanager
def foreign_errors() -> Iterator[None]:
    """Errors of ``receipts`` as ours, with their names and exit codes."""
    try:
        yield
    except KtcError as error:
        raise _KINDS.get(error.exit_code, KineticError)(str(error), name=error.name) from error
