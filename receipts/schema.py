"""The receipt, field by field. ``RECEIPT`` is the specification; FORMAT.md explains it.

Every field is mandatory, also when unused; absence is ``[]`` or ``""``. Fields
play three parts:

**Question** (hashed into ``question_id``): what determines the answer. The
profile, the model's architecture and the size and digests of its files and
adapters, the overrides, the digest of the prompt (or the commitment to it), the
grammar, all of ``sampling``, ``completion_index``, ``max_tokens``, the stop
strings and end tokens, and extensions named in ``crit``.

**Answer**, checked by rerunning: ``output``, ``text``, ``stop.reason``,
``logit_commit``.

**Claims and attachments**, which no rerun can prove: ``claims``, the names of
files, ``bundle``, ``clock``, ``challenge``, ``commitments``, ``parent``,
``certificate``, extensions outside ``crit``. Drafts, caches, threads, batching
are no field at all: they cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeAlias

from ktc import limits
from ktc.digest import token_digest
from ktc.errors import Malformed, Unverifiable
from ktc.fields import (
    Base64,
    Enum,
    Hex,
    Int,
    ListOf,
    Optional,
    Table,
    Text,
    TextMap,
    Tokens,
    Unsigned64,
    exact,
)
from receipts.decimals import format_f32, parse_decimal_f32
from receipts.fields import Bias, Decimal

Record: TypeAlias = dict[str, Any]
"""A receipt in its JSON form. ``check_form`` says whether a dict is one."""

TYPE, VERSION = "kinetic-receipt", 1
RNG = "philox4x32-10"
STOP_REASONS = ("end", "stop", "length", "context", "interrupt")
"""End token drawn; stop string produced; ``max_tokens`` reached; context full; interrupted by the user."""

SAMPLERS = (
    "logit_bias",
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""Names of the samplers, in llama.cpp's default order."""

NAME = Text(64, pattern=r"[a-z0-9][a-z0-9._-]*")
LABEL = Text(pattern=r"[^\x00-\x1f\x7f-\x9f]*")
"""One line of free text."""

FILE = Table(
    name=Text(pattern=r"[^\x00-\x1f\x7f-\x9f/\\]+"),  # claim; shown, never opened
    size=Int(0),
    blake3=Hex(),
    sha256=Hex(),
)

MODEL = Table(
    architecture=Text(pattern=r"[\x21-\x7e]+"),  # general.architecture of the GGUF
    files=ListOf(FILE, limits.MAX_FILES),  # in order: one file, or all shards; of a .ktc, the GGUF inside
)

ADAPTER = Table(**FILE.fields, scale=Decimal())

OVERRIDES = Table(  # "" and 0: as the model file says
    context=Int(0),  # set where it matters: stop reason "context", factors chosen by context size
    cache_type_k=Enum("f16", "f32", "q8_0"),
    cache_type_v=Enum("f16", "f32", "q8_0"),
    rope_scaling=Optional(Enum("none", "linear", "yarn", "longrope")),
    rope_scale=Optional(Decimal(above=0)),
    rope_freq_base=Optional(Decimal(above=0)),
    rope_freq_scale=Optional(Decimal(above=0)),
    yarn_orig_ctx=Int(0),
    yarn_ext_factor=Optional(Decimal()),
    yarn_attn_factor=Optional(Decimal()),
    yarn_beta_fast=Optional(Decimal()),
    yarn_beta_slow=Optional(Decimal()),
)

PROMPT = Table(
    tokens=Tokens(),  # [] when withheld
    digest=Optional(Hex()),  # of the tokens; "" when withheld
    commitment=Optional(Hex()),  # "" unless withheld
)

BIAS = Table(token=Int(0, limits.MAX_TOKEN), bias=Bias())
STRINGS = ListOf(Text(pattern=r"(?s).+"), limits.MAX_STRINGS, key=str)

SAMPLING = Table(
    seed=Unsigned64(),
    rng=Enum(RNG),
    samplers=ListOf(Enum(*SAMPLERS), len(SAMPLERS), distinct=True),
    temperature=Decimal(0, divisor=True),  # 0: the highest logit, lowest id on a tie
    top_k=Int(0, limits.MAX_TOKEN),  # 0: off
    top_p=Decimal(0, 1, above=0),  # 1: off
    min_p=Decimal(0, 1),  # 0: off
    repeat_last_n=Int(-1, limits.MAX_TOKEN),  # -1: the whole context; 0: off
    repeat_penalty=Decimal(above=0, divisor=True),  # 1: off
    frequency_penalty=Decimal(),  # 0: off
    presence_penalty=Decimal(),  # 0: off
    logit_bias=ListOf(BIAS, limits.MAX_BIASES, key=lambda entry: entry["token"]),
    typ_p=Decimal(0, 1, above=0),  # 1: off
    top_n_sigma=Decimal(0),  # 0: off
    xtc_probability=Decimal(0, 1),  # 0: off
    xtc_threshold=Decimal(0, 1),
    dynatemp_range=Decimal(0),  # 0: off
    dynatemp_exponent=Decimal(0),
    dry_multiplier=Decimal(0),  # 0: off
    dry_base=Decimal(0),
    dry_allowed_length=Int(0, limits.MAX_TOKEN),
    dry_penalty_last_n=Int(-1, limits.MAX_TOKEN),
    dry_sequence_breakers=STRINGS,
    mirostat=Int(0, 2),  # 0: off
    mirostat_tau=Decimal(0),
    mirostat_eta=Decimal(0),
)

STOP = Table(
    reason=Enum(*STOP_REASONS),  # answer
    strings=STRINGS,
    end_tokens=Tokens(ascending=True),
)

OUTPUT = Table(tokens=Tokens(), digest=Hex())

CLAIMS = Table(
    engine_version=LABEL,
    engine_id=LABEL,  # digest of the kernels, their versions and the CPU features they were built for
    device_class=LABEL,  # cpu, cuda, opencl ...
    device_name=LABEL,
    time=Optional(Text(20, pattern=r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")),
)

COMMITMENT = Table(name=NAME, digest=Hex())

PARENT = Table(  # this receipt's place in a tree of receipts; root "" when it stands alone
    root=Optional(Hex()),
    count=Int(0),
    index=Int(0),
    path=ListOf(Hex(), limits.MAX_PROOF),
)

RECEIPT = Table(
    type=Enum(TYPE),
    version=Int(VERSION, VERSION),
    profile=Text(64, pattern=r"kinetic-[1-9][0-9]{0,8}(-draft\.[1-9][0-9]{0,8})?"),
    model=MODEL,
    bundle=Optional(Hex()),  # manifest digest of the .ktc
    adapters=ListOf(ADAPTER, limits.MAX_ADAPTERS),
    overrides=OVERRIDES,
    prompt=PROMPT,
    clock=LABEL,  # time given to the chat template; "" if it asked for none
    grammar=Optional(Hex()),  # digest of the grammar or schema
    sampling=SAMPLING,
    completion_index=Int(0, 2**32 - 1),
    max_tokens=Int(-1, limits.MAX_TOKEN),  # -1: until an end token or a full context
    stop=STOP,
    output=OUTPUT,
    text=Text(limits.MAX_FILE_BYTES),
    claims=CLAIMS,
    challenge=Optional(Hex(16, most=64)),
    logit_commit=ListOf(Hex(8), limits.MAX_TOKENS),  # one per output token, or none
    commitments=ListOf(COMMITMENT, limits.MAX_COMMITMENTS, key=lambda entry: entry["name"]),
    parent=PARENT,
    certificate=Optional(Hex()),
    ext=TextMap(NAME, Text(limits.MAX_EXTENSION_BYTES), limits.MAX_EXTENSIONS),
    crit=ListOf(NAME, limits.MAX_EXTENSIONS, key=str),
)

SIGNATURE = Table(
    algorithm=Text(64),  # "ed25519"; another is a signature problem, not a broken form
    public_key=Base64(),
    signature=Base64(),
)

SIGNATURES = ListOf(SIGNATURE, limits.MAX_SIGNATURES)

ENVELOPE = Table(receipt=RECEIPT, signatures=SIGNATURES)

PLAIN_SAMPLING: dict[str, Any] = {
    "seed": "0",
    "rng": RNG,
    "samplers": list(SAMPLERS),
    "temperature": "0",
    "top_k": 0,
    "top_p": "1",
    "min_p": "0",
    "repeat_last_n": 0,
    "repeat_penalty": "1",
    "frequency_penalty": "0",
    "presence_penalty": "0",
    "logit_bias": [],
    "typ_p": "1",
    "top_n_sigma": "0",
    "xtc_probability": "0",
    "xtc_threshold": "0.1",
    "dynatemp_range": "0",
    "dynatemp_exponent": "1",
    "dry_multiplier": "0",
    "dry_base": "1.75",
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": [],
    "mirostat": 0,
    "mirostat_tau": "5",
    "mirostat_eta": "0.1",
}
"""Every sampler off, temperature 0: what a setting says when nobody set it."""

PLAIN_OVERRIDES: dict[str, Any] = {
    "context": 0,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "rope_scaling": "",
    "rope_scale": "",
    "rope_freq_base": "",
    "rope_freq_scale": "",
    "yarn_orig_ctx": 0,
    "yarn_ext_factor": "",
    "yarn_attn_factor": "",
    "yarn_beta_fast": "",
    "yarn_beta_slow": "",
}
"""As the model file says, with a float16 cache."""

PLAIN_ATTACHMENTS: dict[str, Any] = {
    "challenge": "",
    "logit_commit": [],
    "commitments": [],
    "parent": {"root": "", "count": 0, "index": 0, "path": []},
    "certificate": "",
    "ext": {},
    "crit": [],
}
"""Nothing attached."""


def require_version(record: object) -> None:
    """Tell a receipt of another version (Unverifiable) from something that is no receipt (Malformed)."""
    table = exact(record, dict, "receipt")
    if table.get("type") != TYPE:
        raise Malformed(f"receipt.type is not '{TYPE}'", name="NOT_A_RECEIPT")
    version = exact(table.get("version"), int, "receipt.version")
    if version < 1:
        raise Malformed("receipt.version must be 1 or more", name="OUT_OF_RANGE")
    if version != VERSION:
        raise Unverifiable(f"the receipt has version {version}, and this program knows only {VERSION}", name="VERSION")


def check_form(record: object) -> Record:
    """The record itself if every field is there, of its kind and in range; raises Malformed or LimitExceeded."""
    require_version(record)  # step 4 of FORMAT.md
    RECEIPT.check(record, "receipt")  # step 5
    return record  # type: ignore[return-value]


class FileLike(Protocol):
    """A model file's identity; a record of any kind with these four attributes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def blake3(self) -> str: ...
    @property
    def sha256(self) -> str: ...


def new_record(
    *,
    profile: str,
    architecture: str,
    files: Iterable[FileLike],
    prompt: Sequence[int],
    output: Sequence[int],
    text: str,
    stop_reason: str,
    sampling: Mapping[str, Any],
    max_tokens: int = -1,
    stop_strings: Iterable[str] = (),
    end_tokens: Iterable[int] = (),
    completion_index: int = 0,
    overrides: Mapping[str, Any] | None = None,
    claims: Mapping[str, str] | None = None,
    **attachments: Any,
) -> Record:
    """A record of one completion, its form checked; raises Malformed.

    ``sampling`` holds plain numbers under the names of ``SAMPLING`` (floats are
    rounded to binary32, ``logit_bias`` is a sequence of (token, bias) pairs);
    what it leaves out is off. ``overrides`` and ``claims`` likewise.
    ``attachments`` sets any other field of ``RECEIPT`` in its JSON form.
    """
    record: Record = {
        "type": TYPE,
        "version": VERSION,
        "profile": profile,
        "model": {"architecture": architecture, "files": [file_table(file) for file in files]},
        "bundle": "",
        "adapters": [],
        "overrides": PLAIN_OVERRIDES | _plain_text(OVERRIDES, overrides or {}),
        "prompt": {"tokens": list(prompt), "digest": token_digest(prompt), "commitment": ""},
        "clock": "",
        "grammar": "",
        "sampling": deepcopy(PLAIN_SAMPLING) | _plain_text(SAMPLING, sampling),
        "completion_index": completion_index,
        "max_tokens": max_tokens,
        "stop": {"reason": stop_reason, "strings": sorted(set(stop_strings)), "end_tokens": sorted(set(end_tokens))},
        "output": {"tokens": list(output), "digest": token_digest(output)},
        "text": text,
        "claims": dict.fromkeys(CLAIMS.fields, "") | dict(claims or {}),
        **deepcopy(PLAIN_ATTACHMENTS),
    }
    return check_form(record | attachments)


def file_table(file: FileLike) -> dict[str, Any]:
    """A file's identity as ``FILE`` has it."""
    return {"name": file.name, "size": file.size, "blake3": file.blake3, "sha256": file.sha256}


def sampling_values(record: Record) -> dict[str, Any]:
    """The settings as plain numbers: floats of binary32 value, the seed an int, biases as (token, bias) pairs."""
    values = {name: _plain_value(SAMPLING.fields[name], value) for name, value in record["sampling"].items()}
    values["logit_bias"] = tuple((entry["token"], float(parse_bias(entry["bias"]))) for entry in values["logit_bias"])
    return values


def parse_bias(text: str) -> float:
    """A bias as binary32; ``-inf`` for a token that may never be drawn."""
    return float("-inf") if text == Bias.NEVER else parse_decimal_f32(text)


def _plain_value(field: object, value: Any) -> Any:
    if isinstance(field, Decimal):
        return parse_decimal_f32(value)
    return int(value) if isinstance(field, Unsigned64) else value


def _plain_text(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain numbers in the spelling of the JSON form."""
    return {name: _spell(name, table.fields.get(name), value) for name, value in values.items()}


def _spell(name: str, field: object, value: Any) -> Any:
    if name == "logit_bias":
        return [{"token": token, "bias": _spell_bias(bias)} for token, bias in sorted(value)]
    if name == "dry_sequence_breakers":
        return sorted(set(value))
    if name == "temperature":
        value = max(value, 0.0)  # below 0 means what 0 means: the highest logit
    if isinstance(field, Optional):
        field = "" if value == "" else field.kind
    if isinstance(field, Decimal):
        return format_f32(value)
    return str(value) if isinstance(field, Unsigned64) else value


def _spell_bias(bias: float) -> str:
    return Bias.NEVER if bias == float("-inf") else format_f32(bias)
