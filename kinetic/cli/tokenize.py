"""``kinetic tokenize``: the tokens of a text, or with --decode the text of tokens."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic.cli.parser import Subcommands
from kinetic.cli.run_options import read_prompt
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.tokens import Token
    from kinetic.text.tokenizer import Tokenizer

HELP = "show the tokens of a text, or the text of tokens"

EPILOG = """\
The text is TEXT, -p, -f, or standard input, used as it is: a final newline counts, and \\n stays two
characters unless -e is given. Tokens that a file calls user-defined always match; the spelling of a
control token is ordinary text unless --parse-special is given (llama-tokenize has it the other way).

--decode writes the bytes of the tokens, no more and no fewer. Control tokens stand for none unless
--parse-special is given. A model that puts a space before a text gives that space back.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("tokenize", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("prompt", nargs="?", metavar="TEXT", help="the text")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="TEXT", help="the same as a flag")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from a file, byte for byte (- is stdin)")
    parser.add_argument("--stdin", dest="file", action="store_const", const="-", help="the same as -f -")
    parser.add_argument("-e", "--escape", action="store_true", help=r"read \n \r \t \\ \' \" \xHH in the text")
    parser.add_argument("--decode", metavar="IDS", help="the inverse: 1,2,3 or [1, 2, 3] (- is stdin)")
    parser.add_argument("--add-special", dest="add_special", action="store_true", default=True,
                        help="add BOS and EOS where the model wants them (this is so unless --no-bos)")  # fmt: skip
    parser.add_argument("--no-bos", "--no-add-special", dest="add_special", action="store_false", help="add neither")
    parser.add_argument("--parse-special", action="store_true", help="let the text spell control tokens")
    parser.add_argument("--no-parse-special", dest="parse_special", action="store_false", help="this is so anyway")
    parser.add_argument("--ids", action="store_true", help="print ids only, as [1, 2, 3]")
    parser.add_argument("--show-count", action="store_true", help="print the number of tokens")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    if options.decode is not None:
        return _decode(options)
    text = read_prompt(options)
    from kinetic.api.tokens import open_tokenizer, tokenize

    with open_tokenizer(options.model) as tokenizer:
        tokens = tokenize(tokenizer, text, add_special=options.add_special, parse_special=options.parse_special)
        _warn(tokenizer)
    if options.json:
        _print_json({"count": len(tokens), "tokens": [{"id": token.id, "piece": _text_or_bytes(token.piece)}
                                                      for token in tokens]})  # fmt: skip
        return 0
    _print_tokens(tokens, options.ids)
    if options.show_count:
        print(f"Total number of tokens: {len(tokens)}")
    return 0


def _print_tokens(tokens: Sequence[Token], only_ids: bool) -> None:
    if only_ids:
        print([token.id for token in tokens])
        return
    from receipts.terminal import printable

    for token in tokens:
        print(f"{token.id:6} -> '{printable(token.piece.decode('utf-8', 'backslashreplace'))}'")


def _decode(options: Namespace) -> int:
    if options.prompt is not None or options.prompt_flag is not None or options.file is not None:
        raise UsageError("--decode takes token ids, so there can be no text beside it", name="TEXT_AND_IDS")
    ids = _parse_ids(sys.stdin.read() if options.decode == "-" else options.decode)
    from kinetic.api.tokens import detokenize, open_tokenizer

    with open_tokenizer(options.model) as tokenizer:
        data = detokenize(tokenizer, ids, special=options.parse_special)
    if options.json:
        _print_json({"count": len(ids), "content": _text_or_bytes(data)})
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    return 0


def _parse_ids(text: str) -> list[int]:
    """Ids between commas or spaces, in brackets or not."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    for word in words:
        if not re.fullmatch(r"\d{1,10}", word, re.ASCII):
            raise UsageError(f"{word[:40]!r} is no token id: --decode takes 1,2,3 or [1, 2, 3]", name="BAD_TOKEN_ID")
    return [int(word) for word in words]


def _text_or_bytes(data: bytes) -> str | list[int]:
    """Text, or the bytes as numbers where they are no UTF-8 (as llama-server has it)."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def _warn(tokenizer: Tokenizer) -> None:
    from kinetic.cli.progress import news

    for warning in tokenizer.warnings:
        news(warning)


def _print_json(facts: dict[str, object]) -> None:
    import json  # Not at the top: help needs none.

    print(json.dumps(facts, ensure_ascii=False))
