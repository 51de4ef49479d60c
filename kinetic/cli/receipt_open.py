"""``kinetic receipt open``: the prompt that a receipt keeps back, shown by its opening."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress
from kinetic.cli.receipt_files import about, load, load_opening, said

if TYPE_CHECKING:
    from receipts.schema import Record

HELP = "show a withheld prompt by its opening"

EPILOG = """\
The opening must be this receipt's: otherwise MALFORMED (OPENING), exit code 11. --model
adds the prompt's text, from the tokenizer of the very file that the receipt names; no
weights are loaded.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("open", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a receipt whose prompt is withheld")
    parser.add_argument("opening", metavar="OPENING", help="its opening, written along with it")
    parser.add_argument("--model", metavar="NAME", help="the receipt's model, to show the text as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    from receipts.identity import receipt_id
    from receipts.withhold import open_prompt

    loaded, opening = load(options.file), load_opening(options.opening)
    with about(options.opening):
        tokens: list[int] = open_prompt(loaded.receipt.record, opening)["prompt"]["tokens"]
    text = None if options.model is None else _text(options.model, loaded.receipt.record, tokens)
    if options.json:
        import json

        shown = {"file": options.file, "opening": options.opening, "receipt_id": receipt_id(loaded.receipt.record)}
        print(json.dumps(shown | {"tokens": tokens, "text": text}))
    else:
        sys.stdout.write(_page(options, tokens, text))
    return 0


def _text(name: str, record: Record, tokens: Sequence[int]) -> str:
    """The prompt's text by the model's tokenizer, control tokens by their names."""
    from kinetic import store
    from kinetic.loader import open_model_file
    from kinetic.text import load_tokenizer
    from ktc.errors import Malformed, Unverifiable

    claimed = [(file["size"], file["blake3"], file["sha256"]) for file in record["model"]["files"]]
    with open_model_file(store.resolve(name)) as loaded, Progress("hashing the model") as hashing:
        files: Sequence[Any] = loaded.identity(progress=hashing).files
        if claimed != [(file.size, file.blake3, file.sha256) for file in files]:
            message = f"{name} is not the model that the receipt names, so its tokenizer would read another text"
            raise Unverifiable(message, name="MODEL")
        tokenizer = load_tokenizer(loaded.gguf.metadata)
        if max(tokens) >= tokenizer.vocab_size:
            message = f"token id {max(tokens)} is not in the vocabulary of {tokenizer.vocab_size}"
            raise Malformed(message, name="TOKEN_RANGE")
        return tokenizer.decode(tokens, special=True).decode("utf-8", errors="replace")


def _page(options: Namespace, tokens: Sequence[int], text: str | None) -> str:
    import shlex
    import textwrap

    from receipts.show import counted
    from receipts.terminal import printable

    ids = textwrap.fill(" ".join(map(str, tokens)), 100, initial_indent="  ", subsequent_indent="  ")
    lines = [f"the opening is this receipt's; its prompt has {counted(len(tokens), 'token')}:", ids]
    if text is not None:
        lines += ["as text:", *(f"  {printable(line)}" for line in text.split("\n"))]
    words = ["kinetic", "verify-receipt", options.file, "--opening", options.opening]
    return "\n".join([*lines, f"rerun it with: {printable(shlex.join(words))}"]) + "\n"
