"""``kinetic trace``: what every operation gave for one token of an answer, and where two traces part."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Parser, Subcommands, add_device, add_pack_cache, placed
from kinetic.cli.progress import Progress, news
from kinetic.cli.receipt_files import about, load_opening, read_file, require_writable, said
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.trace import Made

HELP = "record what every operation gave for one token of a receipt, and find where two traces part"

EPILOG = """\
The tokens of the receipt are read again up to the one asked for, and the pass that gives it is
computed with every operation recorded, layer by layer: its name, its weight and all its numbers,
4 bytes each (3 MB for a model of 0.5 B parameters, 15 MB for one of 8 B).
`kinetic trace diff A B` then names the first operation, layer and element that differ: trace on
two machines, or here with --device cpu and with --device reference, which defines every bit.

An operation that is recorded is not fused with others. Fused ones give the same bits, so the pass
is computed once more without recording, and the logits of both are compared.
Whoever has a trace knows numbers made from the prompt, even where the receipt withholds it.

exit codes: 0 written, 10 written, but the logits of the pass without recording are others;
11 MALFORMED, 12 SIGNATURE, 13 UNVERIFIABLE here (model missing or another), 14 LIMIT, 3 unreadable
"""

DIFF_HELP = "name the first operation, layer and element at which two traces differ"

DIFF_EPILOG = """\
exit codes: 0 every bit is the same; 10 DIFFERS; 13 UNVERIFIABLE: traces of different questions, or
programs that compute by other operations; 11 MALFORMED, 14 LIMIT, 3: one of the files is no sound trace
"""


class Both(Parser):
    """``trace RECEIPT`` and ``trace diff A B``. A receipt named diff is ./diff."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self.diff = Parser(f"{prog} diff", description=DIFF_HELP.capitalize() + ".", epilog=DIFF_EPILOG)

    def refuse_glued(self, words: Sequence[str]) -> None:
        if words[:1] == ["diff"]:
            self.diff.refuse_glued(words[1:])
        else:
            super().refuse_glued(words)

    def parse_intermixed_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Namespace:  # type: ignore[override]
        words = list(args or ())
        is_diff = words[:1] == ["diff"]
        parse = self.diff.parse_intermixed_args if is_diff else super().parse_intermixed_args
        found: Namespace = parse(words[1:] if is_diff else words, namespace)
        return found


def add(commands: Subcommands) -> None:
    name = commands.add_parser("trace", help=HELP).prog
    usage = f"{name} RECEIPT --token N -o FILE [option ...]\n       {name} diff A B [--json]"
    parser = Both(name, usage=usage, description=HELP.capitalize() + ".", epilog=EPILOG)
    commands.choices["trace"] = parser
    parser.add_argument("receipt", metavar="RECEIPT", help="a receipt, JSON or CBOR")
    parser.add_argument("--token", type=int, required=True, metavar="N", help="output token, counted from 0")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the trace goes, as CBOR")
    parser.add_argument("--opening", metavar="FILE", help="what shows a prompt that the receipt withholds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    group = parser.add_argument_group("rerun")
    group.add_argument("--model", metavar="PATH", help="the model; by default it is found by the receipt's hashes")
    group.add_argument("--lora", action="append", default=[], metavar="FILE",
                       help="an adapter that the receipt names (repeatable); found by hashes too")  # fmt: skip
    group.add_argument("--rows", type=int, default=1, metavar="N",
                       help="compute so many rows together in the last pass, and record the last one (1)")  # fmt: skip
    add_device(group)
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_pack_cache(group)
    parser.set_defaults(main=said(main))
    parser.diff.add_argument("first", metavar="A", help="a trace")
    parser.diff.add_argument("second", metavar="B", help="another")
    parser.diff.add_argument("--json", action="store_true", help="print one JSON object")
    parser.diff.set_defaults(main=said(diff))


def main(options: Namespace) -> int:
    if options.threads < 0:
        raise UsageError(f"the number of threads is {options.threads}, but must be 0 or more", name="BAD_THREADS")
    require_writable(options.output, options.receipt, options.opening, options.model, *options.lora)
    opening = None if options.opening is None else load_opening(options.opening)
    receipt = read_file(options.receipt)
    from kinetic.api import trace_file
    from kinetic.api.trace import trace

    with (
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("reading the tokens before", quiet=options.quiet) as reading,
        about(options.receipt),
    ):
        made = trace(
            receipt,
            options.token,
            model=options.model,
            adapters=options.lora,
            **placed(options),
            threads=options.threads,
            pack_cache=options.pack_cache,
            opening=opening,
            rows=options.rows,
            on_hash=hashing,
            on_rerun=reading,
            progress=None if options.quiet else news,
        )
    size = trace_file.write(options.output, made.trace)
    _tell(options, made, size)
    return 0 if made.is_same_unwatched else trace_file.DIFFERS


def _tell(options: Namespace, made: Made, size: int) -> None:
    head, count = made.trace.head, len(made.trace.ops)
    if options.json:
        import json

        facts = {key: head[key] for key in ("engine_id", "device_class", "threads", "rows", "token", "position")}
        told = {"file": options.output, "bytes": size, "operations": count} | facts
        print(json.dumps(told | {"is_same_unwatched": made.is_same_unwatched, "receipt_agrees": made.agrees}))
        return
    same = "the same" if made.is_same_unwatched else "OTHER"
    digest = {None: "", True: "; the receipt's digest of them agrees", False: "; the receipt's digest of them DIFFERS"}
    print(
        f"{options.output}: {count} operations of token {head['token']} (position {head['position']}), {size:,} bytes;"
        f" the pass without recording gives {same} logits{digest[made.agrees]}"
    )


def diff(options: Namespace) -> int:
    from kinetic.api.trace_file import compare, read
    from receipts.errors import VERDICTS

    first, second = read(options.first), read(options.second)
    found = compare(first, second)
    if options.json:
        import json

        files = {"first_file": options.first, "second_file": options.second, "verdict": VERDICTS[found.exit_code]}
        print(json.dumps(files | found._asdict()))
        return found.exit_code
    print(f"{VERDICTS[found.exit_code]}: {found.sentence}")
    if found.exit_code:
        from receipts.terminal import printable

        for name, trace in ((options.first, first), (options.second, second)):
            head = trace.head
            print(printable(f"  {name}: {head['device_class']}, {head['threads']} threads, {head['engine_id']}"))
    return found.exit_code
