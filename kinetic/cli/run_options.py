"""Flags of ``kinetic run``, llama.cpp's where it has them, and what they mean."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from kinetic.cli.model_options import add_changes
from kinetic.cli.parser import Parser, add_device, add_experts, add_pack_cache
from kinetic.cli.report_options import as_argument
from kinetic.errors import FileProblem, UsageError
from kinetic.types import SPEED_UPS, Sampling

BIAS = re.compile(r"(\d+)([+-](?:\d+(?:\.\d*)?|\.\d+|inf))", re.ASCII)

UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
"""Of sizes: powers of two."""

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")

SAMPLING_FLAGS: dict[str, tuple[tuple[str, ...], type[int] | type[float], str]] = {
    "temperature": (("--temp", "--temperature"), float, "0 is greedy"),
    "top_k": (("--top-k",), int, "0 is off"),
    "top_p": (("--top-p",), float, "1 is off"),
    "min_p": (("--min-p",), float, "0 is off"),
    "repeat_penalty": (("--repeat-penalty",), float, "1 is off"),
    "repeat_last_n": (("--repeat-last-n",), int, "tokens penalised; -1 is all, 0 is off"),
    "frequency_penalty": (("--frequency-penalty",), float, "0 is off"),
    "presence_penalty": (("--presence-penalty",), float, "0 is off"),
    "typ_p": (("--typical", "--typical-p"), float, "locally typical sampling; 1 is off"),
    "top_n_sigma": (("--top-nsigma", "--top-n-sigma"), float, "deviations below the best logit; 0 is off"),
    "xtc_probability": (("--xtc-probability",), float, "of leaving out the top choices; 0 is off"),
    "xtc_threshold": (("--xtc-threshold",), float, "share of a top choice; above 0.5 is off"),
    "dynatemp_range": (("--dynatemp-range",), float, "temperature by entropy, so much up or down; 0 is off"),
    "dynatemp_exponent": (("--dynatemp-exp",), float, "of the entropy's share"),
    "dry_multiplier": (("--dry-multiplier",), float, "penalty of longer repetitions; 0 is off"),
    "dry_base": (("--dry-base",), float, "factor for each token more"),
    "dry_allowed_length": (("--dry-allowed-length",), int, "tokens that may be repeated"),
    "dry_penalty_last_n": (("--dry-penalty-last-n",), int, "tokens searched; -1 is all, 0 is off"),
}
"""Setting, as kinetic.types.Sampling has it: flags, type, meaning."""


def add_options(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to ask")
    _add_prompt(parser)
    _add_limits(parser)
    add_changes(parser)
    _add_sampling(parser)
    _add_output(parser)
    _add_receipt(parser)


def _add_prompt(parser: Parser) -> None:
    group = parser.add_argument_group("prompt")
    group.add_argument("-p", "--prompt", dest="prompt_flag", metavar="TEXT", help="the prompt")
    group.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file, byte for byte (- is stdin)")
    group.add_argument("-sys", "--system", "--system-prompt", metavar="TEXT", default="", help="system message")
    group.add_argument("--raw", action="store_true", help="complete the text, without the chat template")
    group.add_argument("-e", "--escape", action="store_true", help=r"read \n \r \t \\ \' \" \xHH in the texts given")
    group.add_argument("--parse-special", action="store_true", help="let the texts given spell control tokens")
    group.add_argument("--template-time", metavar="TIME", help="clock value for the template, as 2026-03-14T15:09:26")
    group.add_argument("--chat-template-kwargs", type=_variables, metavar="JSON", default={},
                       help="an object of variables for the template, as '{\"enable_thinking\": false}'")  # fmt: skip


def _add_limits(parser: Parser) -> None:
    group = parser.add_argument_group("limits and machine")
    group.add_argument(
        "-n", "--n-predict", "--predict", type=int, default=-1, metavar="N",
        help="most tokens of the answer; -1 until it ends, -2 until the context is full",
    )  # fmt: skip
    group.add_argument("-r", "--stop", "--reverse-prompt", action="append", default=[], metavar="TEXT",
                       help="end the answer before this text (repeatable)")  # fmt: skip
    group.add_argument("-c", "--ctx-size", type=int, default=0, metavar="N", help="context size; 0 is the model's")
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_device(group)
    add_experts(group)
    group.add_argument("--check", choices=("lazy", "full", "none"), default="lazy", metavar="WHEN",
                       help="a bundle's bytes: lazy (when first used), full (beforehand), none")  # fmt: skip
    add_pack_cache(group)
    group = parser.add_argument_group("speed-ups", "They change no bit of an answer, and are in no receipt.")
    group.add_argument("--off", type=_names, default=(), metavar="LIST",
                       help=f"do without these, separated by commas: {', '.join(SPEED_UPS)}")  # fmt: skip
    group.add_argument("--draft-max", "--draft", "--draft-n", type=int, metavar="N",
                       help="most tokens guessed ahead and checked at once (default 63)")  # fmt: skip
    group.add_argument("--cache-ram", "-cram", type=_size, metavar="SIZE",
                       help="MiB, or 500M, 2G, of earlier prompts in memory (default 1G; 0: none)")  # fmt: skip
    group.add_argument("--cache-disk", type=_size, metavar="SIZE",
                       help="the same on disk, for later starts (default 2G; KINETIC_PREFIX_CACHE)")  # fmt: skip
    group.add_argument("-md", "--model-draft", metavar="MODEL",
                       help="a smaller model that guesses too, or an eagle3 or dflash file")  # fmt: skip


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "M")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise ArgumentTypeError(f"{text!r} is no size: a number of MiB, or one with K, M, G or T behind it")
    return int(number) << UNITS[unit]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _add_sampling(parser: Parser) -> None:
    group = parser.add_argument_group("sampling", "None of these depends on speed, threads or device.")
    group.add_argument("-s", "--seed", type=int, default=-1, metavar="N", help="-1 draws a fresh one and shows it")
    for name, (flags, kind, meaning) in SAMPLING_FLAGS.items():
        default = getattr(Sampling, name)
        shown = f"{meaning} (default {default})"
        metavar = "N" if kind is int else "X"
        group.add_argument(*flags, dest=name, type=kind, default=default, metavar=metavar, help=shown)
    group.add_argument("--dry-sequence-breaker", action="append", metavar="TEXT",
                       help=r'repetitions end at it (repeatable; "none" is none; default \n : " *)')  # fmt: skip
    group.add_argument("-l", "--logit-bias", type=_bias, action="append", default=[], metavar="ID+X",
                       help="add to a token's logit: 15043+1, 15043-1, 15043-inf (repeatable)")  # fmt: skip


def _add_output(parser: Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object at the end")
    group.add_argument("-q", "--quiet", action="store_true", help="no statistics, no progress")


def _add_receipt(parser: Parser) -> None:
    group = parser.add_argument_group("receipt", "All but the first need the first.")
    group.add_argument("--receipt", metavar="FILE", help="write a receipt (JSON; CBOR if the name ends in .cbor)")
    group.add_argument("--sign", metavar="KEY", help="sign it with this secret key, from `kinetic keygen`")
    group.add_argument(
        "--challenge",
        type=as_argument(_parse_challenge),
        metavar="HEX",
        help="take the seed from what somebody else chose, 16 to 64 bytes",
    )
    group.add_argument("--commit", action="store_true", help="put a digest of each token's logits into it")
    group.add_argument("--withhold-prompt", action="store_true", help="keep the prompt out of it, in an opening")
    group.add_argument("--opening", metavar="FILE", help="where the opening goes; answer.opening.json by default")
    group.add_argument("--certificate", metavar="FILE", help="cite this, from `kinetic conformance --certify`")


def _parse_challenge(text: str) -> str:
    from receipts.checks import parse_challenge

    return parse_challenge(text)


def _bias(text: str) -> tuple[int, float]:
    match = BIAS.fullmatch(text)
    if not match:
        raise ArgumentTypeError(f"{text!r} is not of the form ID+BIAS or ID-BIAS")
    return int(match[1]), float(match[2])


def _variables(text: str) -> dict[str, Any]:
    try:
        found = read_json(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def read_json(text: str) -> Any:
    """What JSON text says. ValueError for any other, nested too deep or holding half a character included."""
    import json

    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it nests too deep") from None
    return value


def read_prompt(options: Namespace) -> str:
    """The prompt, from the one place that gives it. Raises UsageError or FileProblem."""
    given = [text for text in (options.prompt, options.prompt_flag, options.file) if text is not None]
    if len(given) > 1:
        raise UsageError("give the prompt once: as an argument, with -p, or with -f", name="PROMPT_TWICE")
    if not given and sys.stdin.isatty():
        raise UsageError("there is no prompt: give one as an argument, with -p, with -f, or on standard input")
    if given and options.file is None:
        text = given[0]
    else:
        text = decode(read_bytes(options.file), options.file or "standard input")
    return _escaped(text, options.escape)


def read_bytes(file: str | None) -> bytes:
    try:
        return sys.stdin.buffer.read() if file in (None, "-") else Path(str(file)).read_bytes()
    except OSError as error:
        raise FileProblem(f"cannot read {file or 'standard input'}: {error.strerror}", name="UNREADABLE") from None


def decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 (byte {error.start})", name="NOT_UTF8") from None


def _escaped(text: str, is_asked: bool) -> str:
    """With -e: the escapes of the help text, and any other backslash as it stands."""
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise UsageError("the text given is not UTF-8", name="NOT_UTF8")
    if not is_asked:
        return text
    return ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else ESCAPES[match[2]], text)


def _breakers(options: Namespace) -> list[str]:
    """What the flags name, in place of the default; "none" names nothing."""
    texts = options.dry_sequence_breaker
    if texts is None:
        return list(Sampling.dry_sequence_breakers)
    return [_escaped(text, options.escape) for text in texts if text != "none"]


def asked_options(options: Namespace) -> dict[str, Any]:
    """What the flags say, as options of ``kinetic.api``."""
    asked = {name: getattr(options, name) for name in SAMPLING_FLAGS}
    if options.challenge is not None:
        asked["challenge"] = options.challenge
    return asked | {
        "seed": options.seed,
        "logit_bias": options.logit_bias,
        "dry_sequence_breakers": _breakers(options),
        "max_tokens": options.n_predict,
        "stop": [_escaped(text, options.escape) for text in options.stop],
        "system": _escaped(options.system, options.escape),
        "raw": options.raw,
        "parse_special": options.parse_special,
        "template_time": options.template_time or "",
        "template_vars": options.chat_template_kwargs,
        "commit_logits": options.commit,
        "withhold_prompt": options.withhold_prompt,
    }
