"""From a finished completion to a receipt, and from a receipt back to the question. The only module that does either.

It sees token ids, texts and digests; never arrays, models or devices.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._version import __version__
from kinetic.errors import FileProblem, SignatureProblem, UsageError, of_code
from kinetic.types import PROFILE, AdapterFile, ModelFile, ModelIdentity, Request, RopeOverrides, Sampling
from ktc.errors import KtcError
from receipts import checks, encode, features, identity, schema, withhold
from receipts.decimals import format_f32, parse_decimal_f32

if TYPE_CHECKING:
    from ktc.signature import KeyPair

FEATURES = frozenset({"adapters", "dry", "dynatemp", "rope", "top_n_sigma", "typ_p", "xtc"})
"""What this engine is proven to rerun to the bit beyond plain decoding with a float16 cache (receipts.features)."""

DECIMALS = {item.name for item in fields(RopeOverrides)} - {"rope_scaling", "yarn_orig_ctx"}

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
    commits: tuple[bytes, ...] = ()
    """Digest of the logits of each output token, or none."""
    challenge: str = ""
    """Hex; where there is one, the request's seed must be the one it gives."""
    salt: bytes = field(default=b"", repr=False)
    """Where there is one, the receipt withholds the prompt."""
    bundle: str = ""
    """Manifest digest of the bundle that the model came from, hex; "" if it came from none."""
    adapters: tuple[AdapterFile, ...] = ()
    """In the order in which they act."""
    rope: RopeOverrides = field(default_factory=RopeOverrides)


class Saved(NamedTuple):
    """What was written."""

    receipt_id: str
    key_id: str
    """Of the signer; "" if nobody signed."""
    opening: str
    """Path of the opening of a withheld prompt, or ""."""


def make_receipt(answer: Attested) -> dict[str, Any]:
    """The unsigned receipt, its form checked.

    Raises Malformed or LimitExceeded if it can't be written down, and
    Unverifiable if it needs a part of the engine whose bits aren't proven.
    """
    with foreign_errors():
        record = _record(answer)
        features.require_features(record, FEATURES)
        return withhold.withhold(record, answer.salt) if answer.salt else record


def challenge_seed(question: Attested) -> int:
    """The seed that the challenge and the rest of the question give; of the answer nothing counts."""
    return int(identity.challenge_seed(make_receipt(question)))


def _record(answer: Attested) -> dict[str, Any]:
    request = answer.request
    claims = {
        "engine_version": __version__,
        "engine_id": answer.engine_id,
        "device_class": answer.device_class,
        "device_name": answer.device_name,
        "time": answer.time,
    }
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
        overrides=_overrides(answer),
        claims=claims,
        clock=answer.template_time,
        bundle=answer.bundle,
        adapters=_adapters(answer.adapters),
        challenge=answer.challenge,
        logit_commit=[commit.hex() for commit in answer.commits],
    )


def _overrides(answer: Attested) -> dict[str, Any]:
    """What takes the place of the file's settings; the size of the context where it ended the answer."""
    given = {
        name: value
        for name, value in asdict(answer.rope).items()
        if value is not None and value != getattr(RopeOverrides, name)
    }
    return given | ({"context": answer.context} if answer.stop_reason == "context" else {})


def _adapters(files: Sequence[AdapterFile]) -> list[dict[str, Any]]:
    """Those that add something: one of scale 0 is not named."""
    files = [file for file in files if file.scale]
    shown = _presentable(files)
    return [schema.file_table(file) | {"scale": format_f32(files[at].scale)} for at, file in enumerate(shown)]


def rope_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a receipt's answer took in place of the model's settings of rotary positions: fields of RopeOverrides."""
    plain = schema.PLAIN_OVERRIDES
    given = {name: value for name, value in record["overrides"].items() if value != plain[name]}
    return {
        name: parse_decimal_f32(value) if name in DECIMALS else value
        for name, value in given.items()
        if name in RopeOverrides.__dataclass_fields__
    }


def adapters_of(record: Mapping[str, Any]) -> tuple[AdapterFile, ...]:
    """The adapters that a receipt names, in their order."""
    return tuple(AdapterFile(**entry | {"scale": parse_decimal_f32(entry["scale"])}) for entry in record["adapters"])


def _presentable(files: Iterable[ModelFile]) -> list[ModelFile]:
    """Names as Unicode text of one line; they are claims, so what can't be written is replaced."""
    return [
        replace(file, name=UNPRINTABLE.sub("?", os.fsencode(file.name).decode("utf-8", "replace"))) for file in files
    ]


def question_of(record: Mapping[str, Any]) -> Request:
    """The request that a receipt's answer belongs to. The record must have been checked."""
    known = {item.name for item in fields(Sampling)}
    values = schema.sampling_values(dict(record))
    return Request(
        prompt=tuple(record["prompt"]["tokens"]),
        sampling=Sampling(**{name: value for name, value in values.items() if name in known}),
        max_tokens=record["max_tokens"],
        end_tokens=frozenset(record["stop"]["end_tokens"]),
        completion_index=record["completion_index"],
    )


def opening_of(record: Mapping[str, Any], salt: bytes, tokens: Iterable[int]) -> withhold.Opening:
    """What shows the prompt that was withheld with this salt."""
    with foreign_errors():
        return withhold.opening_of(dict(record), salt, list(tokens))


def opening_path(receipt: Path, wanted: Path | None = None) -> Path:
    """Where a receipt's opening goes: where it is ``wanted``, or beside ``answer.json`` as ``answer.opening.json``.

    Raises UsageError if that is where the receipt goes, and FileProblem if something is there already.
    """
    path = wanted or receipt.with_suffix(".opening.json")
    if path.resolve() == receipt.resolve():
        raise UsageError(f"{path} can't be both the receipt and its opening: name two files", name="SAME_FILE")
    if os.path.lexists(path):
        raise FileProblem(f"{path} is there already, and an opening is never replaced: name another", name="EXISTS")
    return path


def read_key(path: str | os.PathLike[str]) -> KeyPair:
    """A secret key to sign with. Raises SignatureProblem or FileProblem."""
    with foreign_errors():
        from ktc import keys  # with the library for signatures, which takes a moment to load

        return keys.read_secret_key(path)


def save(
    record: dict[str, Any],
    path: Path,
    *,
    decode: checks.Decode,
    key: KeyPair | None = None,
    opening: withhold.Opening | None = None,
    opening_file: Path | None = None,
) -> Saved:
    """Write a receipt whole or not at all: CBOR if the name ends in .cbor, else JSON. Raises any of ours.

    ``decode`` gives the bytes of tokens, for what is refused if its text is
    not that of its output. An ``opening`` is written before the receipt, so
    that none whose prompt is withheld is without one; it is taken back if the
    receipt can't be written.
    """
    shown = opening_path(path, opening_file) if opening else None
    with foreign_errors():
        checks.check_answer(record)
        checks.check_text(record, decode)
        signatures, signer = _signed(record, key)
        if opening and shown:
            withhold.write_opening(shown, opening)
        try:
            encode.write_receipt(path, record, signatures, form="cbor" if path.suffix == ".cbor" else "json")
        except KtcError:
            if shown:
                with contextlib.suppress(OSError):
                    shown.unlink()
            raise
    return Saved(identity.receipt_id(record), signer, str(shown or ""))


def _signed(record: dict[str, Any], key: KeyPair | None) -> tuple[list[dict[str, str]], str]:
    """Signature entries by the key, if there is one, and its id."""
    if key is None:
        return [], ""
    from ktc import signature
    from receipts.sign import sign_record

    if signature.key_pair(key.seed) != key:
        raise SignatureProblem("the public key does not belong to the secret key", name="KEY_MISMATCH")
    return [sign_record(record, key.seed)], signature.key_id(key.public)


@contextlib.contextmanager
def foreign_errors() -> Iterator[None]:
    """Errors of ``receipts`` as ours, with their names and exit codes."""
    try:
        yield
    except KtcError as error:
        raise of_code(error.exit_code, str(error), error.name) from error
