"""``kinetic imatrix``: which columns of a model's weights matter, for quantising it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli import perplexity as shared
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.imatrix_file import Matrix
    from kinetic.api.imatrix_statistics import Line
    from kinetic.api.perplexity import Cut, Perplexity

HELP = "collect an importance matrix from a text, for quantising a model"

EPILOG = """\
For each weight of a matrix product: the sums of the squares of what goes into its columns, over all
tokens of the text. The file is llama-imatrix's, and `llama-quantize --imatrix` takes it. Flags are
llama-imatrix's; the sums are the same for every -b, -ub and -t, to the last bit. Experts are counted each
by itself; to see into them all are computed for every token, as if the model were a dense one.

Without -f the files of --in-file are combined, and no MODEL is needed; with --show-statistics they
are described instead, and nothing is written. Left out of llama-imatrix's flags are --nextn and
whatever says how llama.cpp computes (-ngl, -fa and others).
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("imatrix", help=HELP, description=HELP[0].upper() + HELP[1:] + ".", epilog=EPILOG)
    shared.add_model(parser)
    parser.add_argument("-f", "--file", metavar="FILE", help="the text (- is stdin)")
    parser.add_argument("-o", "--output", "--output-file", default="imatrix.gguf", metavar="FILE",
                        help="where it goes (imatrix.gguf)")  # fmt: skip
    shared.add_chunks(parser)
    parser.add_argument(
        "--chunk", "--from-chunk", type=int, default=0, metavar="N", help="leave out the first N chunks"
    )
    parser.add_argument("--in-file", action="append", default=[], metavar="FILE",
                        help="add to this matrix (repeatable, or separated by commas)")  # fmt: skip
    parser.add_argument("--process-output", action="store_true", help="also the product with the vocabulary")
    parser.add_argument("--no-ppl", action="store_true", help="measure no perplexity on the way")
    parser.add_argument("--ppl", dest="no_ppl", action="store_false", default=False,
                        help="measure it, as happens without this")  # fmt: skip
    parser.add_argument("--parse-special", action="store_true", help="spellings of control tokens stand for them")
    parser.add_argument("--output-format", choices=("gguf", "dat"), default="gguf", metavar="gguf|dat",
                        help="dat is the older format of llama.cpp")  # fmt: skip
    parser.add_argument("-ofreq", "--output-frequency", type=int, default=10, metavar="N",
                        help="write what there is every N chunks (10)")  # fmt: skip
    parser.add_argument("--save-frequency", type=int, default=0, metavar="N",
                        help="keep a copy FILE.at_N every N chunks (0: none)")  # fmt: skip
    parser.add_argument("--show-statistics", action="store_true", help="describe the matrix of --in-file")
    shared.add_machine(parser)
    parser.set_defaults(main=main, text=None)


def main(options: Namespace) -> int:
    from kinetic.api import imatrix_file
    from kinetic.cli.receipt_files import require_writable

    shared.take_model(options)
    if options.file is None and not options.in_file:
        raise UsageError("name a text with -f, or matrices to combine with --in-file", name="NO_TEXT")
    if options.file is not None and (options.model is None or options.show_statistics):
        what = "--show-statistics reads no text: leave -f out" if options.show_statistics else "name the model"
        raise UsageError(what, name="NO_MODEL")
    if options.output_frequency < 1 or options.save_frequency < 0 or options.chunk < 0:
        raise UsageError("chunks are counted from 1: give a number that is not negative", name="CHUNKS")
    names = [name for given in options.in_file for name in given.split(",") if name]
    start = imatrix_file.combined(names, options.ctx_size)
    if options.show_statistics:
        return _show(start, options)
    require_writable(options.output, options.file)
    if options.file is None:
        _write(start, options.output, options)
        return _report(start, None, options)
    return _collect(start, options)


def _collect(start: Matrix, options: Namespace) -> int:
    from kinetic.api import imatrix

    text = shared.read_text(options)
    watched = imatrix.inputs(options.process_output)
    collector, wanted = imatrix.Collector(watched), shared.settings(options)
    start.datasets = [*start.datasets, options.file]
    shows_chunks = not (options.json or options.no_ppl)
    done = 0

    def on_chunk(cut: Cut, found: Perplexity) -> None:
        nonlocal done
        done += 1
        if shows_chunks:
            shared.print_chunk(cut, found)
        if done % options.output_frequency == 0:
            _write(collector.into(start), options.output, options)
        if options.save_frequency and done % options.save_frequency == 0:
            _write(collector.into(start), f"{options.output}.at_{done}", options)

    with shared.open_scorer(options, watch=watched) as scorer:
        tokens = scorer.encode(text, parse_special=options.parse_special)[options.chunk * wanted.context :]
        with Progress("reading", quiet=options.quiet or shows_chunks) as bar:
            found = imatrix.collect(
                *(scorer, tokens, wanted, collector),
                process_output=options.process_output,
                with_perplexity=not options.no_ppl,
                on_chunk=on_chunk,
                on_progress=bar,
            )
    matrix = collector.into(start)
    _write(matrix, options.output, options)
    return _report(matrix, None if options.no_ppl else found, options)


def _write(matrix: Matrix, path: str, options: Namespace) -> None:
    """Whole or not at all."""
    from kinetic.api import imatrix_file
    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic

    data = imatrix_file.to_dat(matrix) if options.output_format == "dat" else imatrix_file.to_gguf(matrix)
    with foreign_errors():
        write_atomic(os.path.realpath(path), data)


def _report(matrix: Matrix, found: Perplexity | None, options: Namespace) -> int:
    if options.json:
        facts = {"output": options.output, "entries": len(matrix.entries), "chunks": matrix.chunks}
        if found is not None:
            facts["ppl"], facts["uncertainty"] = found.estimate
        shared.print_json(facts | {"chunk_size": matrix.chunk_size, "datasets": matrix.datasets})
        return 0
    if found is not None:
        print()
        shared.print_estimate(found)
    if not options.quiet:
        news(f"{options.output} has {len(matrix.entries)} entries from {matrix.chunks} chunks")
    return 0


# --- statistics ---


def _show(matrix: Matrix, options: Namespace) -> int:
    from kinetic.api import imatrix_statistics as statistics
    from receipts.terminal import printable

    found = statistics.lines(matrix)
    if options.json:
        shared.print_json(_facts(found))
        return 0
    print(WEIGHT_HEADING)
    for line in found:
        c = statistics.compare([line.pair])
        layer = str(line.layer) if line.layer >= 0 else "-"
        print(
            f"{layer:>5}  {printable(line.name):40} {line.mean:10.4f} {line.deviation:10.4f} {line.skewness:10.4f}"
            f" {line.kurtosis:10.4f} {line.evenness:8.2f} {line.energy:14.4f} {c.gain:8.2f} {c.distance:12.4f}"
            f" {c.correlation:8.4f} {c.covariance:10.4f}"
        )
    print(f"\n{LAYER_HEADING}")
    for number, energy, c in statistics.layers(found):
        print(
            f"{number:5}  {energy:14.4f} {c.gain:8.2f} {c.distance:12.4f} {c.cosine:8.4f} {c.correlation:8.4f}"
            f" {c.covariance:10.4f}"
        )
    return 0


WEIGHT_HEADING = (
    f"{'layer':>5}  {'weight':40} {'mean':>10} {'deviation':>10} {'skewness':>10} {'kurtosis':>10} {'even %':>8}"
    f" {'energy':>14} {'gain':>8} {'distance':>12} {'corr.':>8} {'cov.':>10}"
)
LAYER_HEADING = f"{'layer':>5}  {'energy':>14} {'gain':>8} {'distance':>12} {'cosine':>8} {'corr.':>8} {'cov.':>10}"


def _facts(found: Sequence[Line]) -> dict[str, Any]:
    from dataclasses import asdict

    from kinetic.api import imatrix_statistics as statistics

    weights = [asdict(line) | asdict(statistics.compare([line.pair])) for line in found]
    for weight in weights:
        del weight["pair"]
    layers = [{"layer": n, "energy": energy} | asdict(compared) for n, energy, compared in statistics.layers(found)]
    return {"weights": weights, "layers": layers}
