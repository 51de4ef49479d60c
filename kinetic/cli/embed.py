"""``kinetic embed``: vectors of texts."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Parser, Subcommands, add_device, add_pack_cache, placed
from kinetic.cli.progress import news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.embedder import Embedder
    from kinetic.bits import F32

HELP = "turn texts into vectors"

FORMATS = ("raw", "array", "json", "json+")

EPILOG = """\
Each TEXT is embedded by itself; a file, or standard input, has one on each line (--separator says otherwise).
A text's vector has the same bits whatever texts it is computed with, and however many threads compute it.

Formats are llama-embedding's: raw (a vector on each line, the default), array ([[...], ...]), json (as OpenAI's
interface answers) and json+ (with the texts' cosine similarities). Numbers are the shortest that give back the same
float32. With --pooling none there is a vector for each token: lines of raw, and a list of lists in JSON.
The spelling of a control token in a text is ordinary text unless --parse-special is given.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("embed", help=HELP, description=HELP[0].upper() + HELP[1:] + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="the texts")
    add_file(parser, "texts")
    parser.add_argument("--pooling", metavar="HOW", default="",
                        help="none, mean, cls (first row) or last; what the file says by default")  # fmt: skip
    parser.add_argument("--normalize", "--embd-normalize", dest="normalize", type=int, default=2, metavar="N",
                        help="2: length 1; -1: not at all; 0: to the range of int16; 1: by the sum of absolute"
                        " values; more: by a p-norm")  # fmt: skip
    parser.add_argument("--embd-output-format", dest="format", choices=FORMATS, default="raw", metavar="FORMAT",
                        help="raw, array, json or json+")  # fmt: skip
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as json")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, whole or not at all")
    parser.add_argument("--parse-special", action="store_true", help="let the texts spell control tokens")
    add_machine(parser)
    parser.set_defaults(main=main)


def add_file(parser: Parser, what: str) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help=f"read {what} from a file, one on each line (- is stdin)")
    parser.add_argument("--separator", "--embd-separator", dest="separator", default="\n", metavar="TEXT",
                        help="what stands between them in a file, instead of a line's end")  # fmt: skip


def add_machine(parser: Parser) -> None:
    parser.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_device(parser)
    add_pack_cache(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no news")


def read_texts(given: Sequence[str], options: Namespace, what: str) -> list[str]:
    """From the one place that gives them. Raises UsageError or FileProblem."""
    from kinetic.cli.run_options import decode, read_bytes

    if given and options.file is not None:
        raise UsageError(f"give the {what} once: as arguments or with -f", name="TEXT_TWICE")
    if given:
        if any(0xD800 <= ord(character) <= 0xDFFF for text in given for character in text):
            raise UsageError("the text given is not UTF-8", name="NOT_UTF8")
        return list(given)
    if options.file is None and sys.stdin.isatty():
        raise UsageError(f"there are no {what}: give them as arguments, with -f, or on standard input", name="NO_TEXT")
    if not options.separator:
        raise UsageError("the separator is empty", name="NO_SEPARATOR")
    text = decode(read_bytes(options.file), options.file or "standard input")
    return text.removesuffix(options.separator).split(options.separator)


def open_embedder(options: Namespace, pooling: str) -> Embedder:
    from kinetic.api.embedder import Embedder

    return Embedder(
        options.model,
        pooling=pooling,
        **placed(options),
        threads=options.threads,
        pack_cache=options.pack_cache,
        progress=None if options.quiet else news,
    )


def main(options: Namespace) -> int:
    texts = read_texts(options.texts, options, "texts")
    if options.pooling == "rank":
        raise UsageError("scores of documents are what `kinetic rerank` gives", name="RANK_POOLING")
    if options.output is not None:
        from kinetic.cli.receipt_files import require_writable

        require_writable(options.output, options.model, options.file)
    with open_embedder(options, options.pooling) as embedder:
        if embedder.pooling == "none" and not options.pooling and not options.quiet:
            news("the model's file names no pooling: there is a vector for each token (--pooling mean makes one)")
        tokens = embedder.encode(texts, parse_special=options.parse_special)
        vectors = embedder.vectors(tokens, options.normalize)
        is_single = embedder.pooling != "none"
        model = embedder.path.name
    count = sum(map(len, tokens))  # exact: integers
    write(_shown(vectors, options.format, is_single, options.normalize == 0, model, count), options.output)
    return 0


def write(text: str, path: str | None) -> None:
    """To standard output, or to a file that then is there whole."""
    if path is None:
        print(text)
        return
    import os

    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic

    with foreign_errors():
        write_atomic(os.path.realpath(path), f"{text}\n".encode())


def _shown(vectors: Sequence[F32], form: str, is_single: bool, whole: bool, model: str, tokens: int) -> str:
    import json

    rows = [[_numbers(row, whole) for row in rows] for rows in vectors]
    if form == "raw":
        return "\n".join(" ".join(map(_text, row)) for text in rows for row in text)
    values: list[Any] = [text[0] if is_single else text for text in rows]
    if form == "array":
        return json.dumps(values)
    data = [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(values)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    facts: dict[str, Any] = {"object": "list", "model": model, "data": data, "usage": usage}
    if form == "json+" and is_single:
        from kinetic.api.normalise import cosines

        facts["cosineSimilarity"] = cosines([text[0] for text in vectors])
    return json.dumps(facts)


def _numbers(row: F32, whole: bool) -> list[float] | list[int]:
    """The shortest decimals of float32 numbers; rounded to whole ones where they are meant as int16."""
    if whole:
        return [round(float(value)) for value in row]
    return [float(str(value)) for value in row]


def _text(value: float) -> str:
    return repr(value)
