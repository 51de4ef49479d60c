"""``kinetic quantize``: a model file with smaller weights, with the arguments and the bytes of llama-quantize."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Parser, Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError
from kinetic.quantize.types import FILE_TYPES, FileType, find_file_type

if TYPE_CHECKING:
    from kinetic.api.quantize import Quantised
    from kinetic.quantize.importance import Importance
    from kinetic.quantize.plan import Plan, Step
    from kinetic.quantize.recipe import Recipe

HELP = "write a model file with smaller weights"


def _type_line(entry: FileType) -> str:
    number = "" if entry.name == "COPY" else entry.number
    return f"  {number:>2}  {entry.name:9}  {entry.about}\n"


EPILOG = """\
The arguments are those of llama-quantize, and so is every byte of the file (llama.cpp b11434) but
where IN is aligned otherwise than by 32 bytes: OUT says 32, where llama-quantize's can't be read.
Without OUT it is ggml-model-TYPE.gguf beside IN, or in this folder where IN is a name from
`kinetic models`; what is there already is never overwritten.
Patterns of --tensor-type are ECMAScript's, less what programs read differently: . | * + ? {2,3} ^ $
[a-z] ( ) (?: ) (?! ) \\d \\w \\s \\b, with \\ before a character that stands for itself.
Tensors whose rows don't divide into a type's blocks get another, and are listed in the end. So are
those without importance where there is a matrix.

types, by name or number:
""" + "".join(_type_line(entry) for entry in FILE_TYPES)


def add(commands: Subcommands) -> None:
    usage = "kinetic quantize [options] IN [OUT] TYPE [THREADS]"
    parser = commands.add_parser("quantize", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG, usage=usage)
    parser.add_argument(
        "source",
        metavar="IN",
        help="a .gguf file, best of F32, BF16 or F16, any part of a split one, or a name of `kinetic models`",
    )
    parser.add_argument("words", nargs="+", metavar="[OUT] TYPE [THREADS]",
                        help="the new file, its type, and threads instead of one for each core")  # fmt: skip
    _add_type_flags(parser)
    _add_importance_flags(parser)
    _add_file_flags(parser)
    parser.set_defaults(main=main)


def _add_type_flags(parser: Parser) -> None:
    group = parser.add_argument_group("which type a tensor gets")
    group.add_argument("--pure", action="store_true", help="one type for all that is quantised")
    group.add_argument("--leave-output-tensor", action="store_true", help="leave output.weight as it is")
    group.add_argument("--output-tensor-type", default="", metavar="T", help="tensor type of output.weight")
    group.add_argument("--token-embedding-type", default="", metavar="T", help="tensor type of the embeddings")
    group.add_argument("--tensor-type", action="append", default=[], metavar="NAME=T",
                       help="tensor type of names with this regular expression in them (repeatable)")  # fmt: skip
    group.add_argument("--tensor-type-file", action="append", default=[], metavar="FILE",
                       help="a text file of such words")  # fmt: skip
    group.add_argument("--allow-requantize", action="store_true", help="take quantised weights too, which loses more")
    group.add_argument("--no-fallback", action="store_true", help="refuse rows that don't divide into a type's blocks")


def _add_importance_flags(parser: Parser) -> None:
    group = parser.add_argument_group("what matters")
    group.add_argument("--imatrix", default=None, metavar="FILE", help="an importance matrix from llama-imatrix")
    group.add_argument("--include-weights", action="append", default=[], metavar="NAME",
                       help="use it only for tensors with this in their names (repeatable)")  # fmt: skip
    group.add_argument("--exclude-weights", action="append", default=[], metavar="NAME",
                       help="use it for all others (repeatable)")  # fmt: skip


def _add_file_flags(parser: Parser) -> None:
    group = parser.add_argument_group("what is written")
    group.add_argument("--override-kv", action="append", default=[], metavar="KEY=T:V",
                       help="set a key; T is int, float, bool or str (repeatable)")  # fmt: skip
    group.add_argument("--prune-layers", default="", metavar="L,...", help="leave layers out")
    group.add_argument("--keep-split", action="store_true", help="as many files as IN has, OUT-00001-of-0000N.gguf")
    group.add_argument("--dry-run", action="store_true", help="show each tensor's type and size, and write nothing")
    group.add_argument("--max-buffer-size", type=int, default=1, metavar="MIB",
                       help="for scripts: no more than a few MiB a thread are ever used")  # fmt: skip
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def main(options: Namespace) -> int:
    from kinetic.api import quantize as api

    target, name, threads = _read_words(options)
    recipe = _recipe(options, name)
    matrix = api.read_importance(options.imatrix, options.include_weights, options.exclude_weights)
    if options.dry_run:
        return _dry_run(options, recipe, matrix)
    target = target or str(api.default_target(options.source, recipe.file_type.name, recipe.keep_split))
    with Progress("quantising", quiet=options.quiet) as bar:
        done = api.quantize(
            options.source,
            target,
            recipe,
            importance=matrix,
            threads=threads,
            progress=bar,
            news=None if options.quiet else news,
        )
    _print_done(options, done)
    _tell_importance(options, matrix, done)
    return 0


def _read_words(options: Namespace) -> tuple[str, str, int]:
    """OUT or "", TYPE and THREADS: as in llama-quantize a second word that is a type leaves OUT out."""
    words = options.words
    if find_file_type(words[0]) is not None:
        words = ["", *words]
    if not 2 <= len(words) <= 3:
        problem = "TYPE is missing" if len(words) < 2 else f"there is a word too many: {words[3]!r}"
        raise UsageError(f"{problem} (`kinetic quantize --help` lists what is possible)", name="BAD_ARGUMENTS")
    threads = words[2] if len(words) == 3 else "0"
    if not (threads.isascii() and threads.isdigit() and len(threads) < 10):
        problem = f"THREADS must be a number of at most 9 digits, which {threads[:20]!r} is not"
        raise UsageError(problem, name="BAD_ARGUMENTS")
    if options.max_buffer_size < 1:
        raise UsageError("--max-buffer-size must be 1 or more", name="BAD_ARGUMENTS")
    return words[0], words[1], int(threads)


def _recipe(options: Namespace, name: str) -> Recipe:
    from kinetic.api.quantize import read_tensor_types
    from kinetic.quantize.recipe import Recipe, parse_layers, parse_override, parse_tensor_type
    from kinetic.quantize.types import file_type, tensor_type

    named = [parse_tensor_type(word) for word in options.tensor_type]
    for path in options.tensor_type_file:
        named += read_tensor_types(path)
    return Recipe(
        file_type(name),
        output_type=tensor_type(options.output_tensor_type) if options.output_tensor_type else "",
        embedding_type=tensor_type(options.token_embedding_type) if options.token_embedding_type else "",
        tensor_types=tuple(named),
        pure=options.pure,
        leave_output=options.leave_output_tensor,
        allow_requantize=options.allow_requantize,
        no_fallback=options.no_fallback,
        prune=parse_layers(options.prune_layers) if options.prune_layers else frozenset(),
        keep_split=options.keep_split,
        overrides=tuple(map(parse_override, options.override_kv)),
    )


# -- what is said


def _dry_run(options: Namespace, recipe: Recipe, matrix: Importance | None) -> int:
    from kinetic.api.quantize import planned, summary

    with planned(options.source, recipe, matrix, check=False) as plan:
        done = summary(plan)
        if options.json:
            _print_json(done, plan)
        else:
            _print_plan(plan)
            print(f"{_sizes(done)} of tensors, {sum(part.size() for part in plan.parts):,} bytes of file")
        _list_substitutions(done)
        _tell_importance(options, matrix, done)
        try:
            plan.check()
        except UsageError as error:
            if error.name != "IMATRIX_NEEDED":
                raise
            news(str(error))
    return 0


def _print_plan(plan: Plan) -> None:
    from kinetic.gguf_types import type_name
    from receipts.terminal import printable

    width = max((len(step.name) for step in plan.steps), default=0)
    for step in plan.steps:
        shape = " x ".join(map(str, reversed(step.source.shape)))
        stored = type_name(step.source.ggml_type)
        to = f"{step.choice.tensor_type:7}  {step.source.nbytes:,} -> {step.nbytes:,}" if step.changes else "stays"
        print(printable(f"{step.name:{width}}  {shape:>16}  {stored:>7} -> {to}"))


def _print_done(options: Namespace, done: Quantised) -> None:
    if options.json:
        _print_json(done)
    else:
        for path in done.paths:
            print(f"{path}: {path.stat().st_size:,} bytes")
        print(f"{_sizes(done)} of tensors")
    _list_substitutions(done)


def _sizes(done: Quantised) -> str:
    """Bytes of all tensors before and after, and bits a weight."""
    bits = [8 * size / max(1, done.values) for size in (done.size_before, done.size)]
    return f"{done.size_before:,} bytes ({bits[0]:.2f} bits a weight) -> {done.size:,} bytes ({bits[1]:.2f})"


def _list_substitutions(done: Quantised) -> None:
    for sub in done.substitutions:
        share = sub.nbytes / max(1, done.size)
        what = f"{sub.instead} instead of {sub.wanted} for {sub.tensors} tensor{'s' * (sub.tensors > 1)}"
        news(f"{what}, {share:.1%} of the bytes: rows don't divide into {sub.wanted}'s blocks (as in {sub.example})")


def _tell_importance(options: Namespace, matrix: Importance | None, done: Quantised) -> None:
    """What was asked for and came to nothing: most often a matrix of another model."""
    if matrix is None:
        if options.include_weights or options.exclude_weights:
            news("--include-weights and --exclude-weights do nothing without --imatrix")
    elif not matrix.entries:
        news(f"warning: --include-weights or --exclude-weights leave no tensor of {matrix.path}, so it was not used")
    elif done.unweighted is not None:
        count, all_made, example = done.unweighted
        if count == all_made:
            news(f"warning: {matrix.path} was not used, since it fits no tensor of this model: make one from it")
        elif count:
            news(f"{count} of {all_made} tensors had no importance (as in {example})")


def _print_json(done: Quantised, plan: Plan | None = None) -> None:
    import json

    said: dict[str, Any] = {
        "files": [str(path) for path in done.paths],
        "bytes_before": done.size_before,
        "bytes": done.size,
        "weights": done.values,
        "substitutions": [sub._asdict() for sub in done.substitutions],
        "without_importance": done.unweighted and done.unweighted._asdict(),
    }
    if plan is not None:
        said["tensors"] = [_step_json(step) for step in plan.steps]
    print(json.dumps(said, ensure_ascii=False))


def _step_json(step: Step) -> dict[str, Any]:
    from kinetic.gguf_types import type_name

    types = {"from": type_name(step.source.ggml_type), "type": step.choice.tensor_type, "wanted": step.choice.wanted}
    return {"name": step.name, "shape": step.source.shape[::-1], **types, "bytes": step.nbytes}
