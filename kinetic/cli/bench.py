"""``kinetic bench``: how fast a model runs here, beside llama.cpp, and beside yesterday."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands, add_device, add_pack_cache
from kinetic.cli.progress import Progress, news
from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from conformance.bench_store import Judgement, Record
    from kinetic.api.bench_llama import LlamaCpp

HELP = "measure the speed of a model, beside llama.cpp and beside earlier measurements"

EPILOG = """\
Tests are those of llama-bench: pp N reads a prompt of N tokens, tg N decodes N, both after DEPTH
tokens. One run warms up; then all tests take turns, and with --compare llama.cpp does too. Lists
are separated by commas. Each measurement is added to the bench store, which --history shows.

exit codes: 7 if a median is below --fail-below by more than the noise; 10 if a job of --edit gave
other tokens with drafts than without
"""

GATE = 7
"""Exit code of a measurement that --fail-below refuses."""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("bench", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("-p", "--n-prompt", type=_numbers, default=[512], metavar="N", help="tokens of a prompt (512)")
    parser.add_argument("-n", "--n-gen", type=_numbers, default=[128], metavar="N", help="tokens to decode (128)")
    parser.add_argument("-d", "--n-depth", type=_numbers, default=[0], metavar="N", help="tokens before them (0)")
    parser.add_argument("-t", "--threads", type=_numbers, default=[0], metavar="N", help="threads; 0 is one per core")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="rounds that count (5)")
    add_device(parser)
    add_pack_cache(parser)
    parser.add_argument("--edit", action="store_true",
                        help="measure drafts instead: a file written again, a story, with and without")  # fmt: skip
    group = parser.add_argument_group("comparison")
    group.add_argument("--compare", action="store_true", help="take turns with llama.cpp on the same file")
    group.add_argument("--llama-bench", default="", metavar="PATH", help="its llama-bench; by default that on PATH")
    group.add_argument("--history", action="store_true", help="measure nothing, show the earlier measurements here")
    group.add_argument("--fail-below", type=_ratio, metavar="RATIO",
                       help="exit 7 below this ratio to the last measurement (--compare: to llama.cpp)")  # fmt: skip
    group.add_argument("--no-record", action="store_true", help="keep nothing in the bench store")
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    for name, what in (("markdown", "a table (default)"), ("json", "one JSON object"), ("csv", "one line a test")):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=f"print {what}")
    group.add_argument("-o", "--output", metavar="FILE", help="write that to a file")
    group.add_argument("--plot", metavar="FILE", help="draw it: .svg, or .png where matplotlib is installed")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main, form="markdown")


def _numbers(text: str) -> list[int]:
    """``512,1024``: whole numbers, each once."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers")
    return [*dict.fromkeys(map(int, words))]


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio above 0, such as 0.95")
    return ratio


def main(options: Namespace) -> int:
    from kinetic import store

    path = store.resolve(options.model)
    for flag, name in (("-o", options.output), ("--plot", options.plot)):
        _require_place(flag, name, path)
    if options.plot:
        from kinetic.cli.bench_plot import require_kind

        require_kind(options.plot)
    if options.history:
        return _history(options, path)
    return _edit(options, path) if options.edit else _measure(options, path)


def _edit(options: Namespace, path: Path) -> int:
    from kinetic.cli import bench_edit

    peer = _peer(options)
    _warn_of_load(options)
    text, code = bench_edit.run(options, path, peer)
    _write(options.output, text)
    return code


def _require_place(flag: str, name: str | None, model: Path) -> None:
    """Where output goes should be known to be fine before minutes of measuring."""
    from kinetic.cli.run_receipt import is_precious

    if name is None:
        return
    if name in ("", "-") or os.path.isdir(name):
        raise UsageError(f"{flag} needs the name of a file", name="NO_OUTPUT_FILE")
    folder = os.path.dirname(os.path.realpath(name))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise FileProblem(f"the folder {folder} is not there or can't be written: name another one", name="NO_FOLDER")
    if is_precious(name) or (os.path.exists(name) and os.path.samefile(name, model)):
        raise UsageError(f"{name} is a model, a key or the like: name another file for {flag}", name="OVER_INPUT")


# --- measuring ---


def _measure(options: Namespace, path: Path) -> int:
    from conformance import bench_store
    from kinetic.api import bench

    plan = bench.Plan(
        bench.tests_of(options.n_prompt, options.n_gen, options.n_depth),
        options.threads,
        options.repetitions,
        options.device,
        options.pack_cache,
        options.gpu_layers,
    )
    peer = _peer(options)
    known = _known(options)
    _warn_of_load(options)
    with Progress("measuring", quiet=options.quiet) as bar:
        record = bench.bench(path, plan, peer, None if options.quiet else news, bar)
    judged = bench_store.against_peer(record) if peer else bench_store.against_last(record, known)
    if not options.no_record:
        _keep(record)
    _put_out(options, record, judged)
    return _gate(options, judged)


def _known(options: Namespace) -> Sequence[Record]:
    """Earlier measurements. A store that can't be read matters only to a gate that needs it."""
    from conformance import bench_store
    from kinetic.api import bench

    try:
        return bench_store.read(bench.folder()).records
    except FileProblem as problem:
        if options.fail_below is not None and not options.compare:
            raise
        news(f"{problem}; there is nothing to compare with")
        return []


def _peer(options: Namespace) -> LlamaCpp | None:
    if not options.compare:
        if options.llama_bench:
            raise UsageError("--llama-bench names what --compare compares with: give both", name="NO_COMPARISON")
        return None
    from kinetic.api.bench_llama import find

    return find(options.llama_bench)


def _warn_of_load(options: Namespace) -> None:
    """Others at work make every figure low and uneven; better said before than wondered at afterwards."""
    from kinetic.api import machine

    facts = machine.describe()
    if facts.load is not None and facts.load > 0.5 * facts.usable and not options.quiet:
        news(f"this machine is busy (load {facts.load} on {facts.usable} processors), so figures will be uneven")


def _keep(record: Record) -> None:
    """A store that can't be written costs nobody their measurement."""
    from conformance import bench_store
    from kinetic.api import bench

    try:
        bench_store.append(bench.folder(), record)
    except FileProblem as problem:
        news(f"{problem}; this measurement is not kept")


def _put_out(options: Namespace, record: Record, judged: list[Judgement]) -> None:
    from kinetic.cli import bench_table

    forms = {"json": bench_table.json_text, "csv": bench_table.csv_text, "markdown": bench_table.markdown}
    _write(options.output, forms[options.form](record, judged))
    if options.plot:
        from kinetic.cli.bench_plot import draw

        draw(options.plot, record)


def _write(path: str | None, text: str) -> None:
    if path is None:
        print(text, end="")
        return
    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic

    with foreign_errors():
        write_atomic(os.path.realpath(path), text.encode("utf-8"))


def _gate(options: Namespace, judged: list[Judgement]) -> int:
    if options.fail_below is None:
        return 0
    if not judged:
        news("there is no earlier measurement of this model on this machine, so --fail-below has nothing to judge")
    failed = [one for one in judged if one.is_below(options.fail_below)]
    for one in failed:
        counted = f"{one.threads} thread{'' if one.threads == 1 else 's'}"
        news(
            f"{one.test} with {counted} is {one.ratio:.3f} of {one.against},"
            f" below {options.fail_below:g} by more than the noise of {one.noise:.1%}"
        )
    return GATE if failed else 0


# --- what was measured before ---


def _history(options: Namespace, path: Path) -> int:
    from conformance import bench_store
    from kinetic.api import bench
    from kinetic.cli import bench_table

    if options.compare or options.fail_below is not None:
        raise UsageError("--history measures nothing: leave --compare and --fail-below out", name="NO_MEASUREMENT")
    stored = bench_store.read(bench.folder())
    if stored.skipped and not options.quiet:
        news(f"{stored.skipped} lines of {bench.folder() / bench_store.FILE} are no records and are left out")
    like: dict[str, Any] = {"machine": bench.here(options.device)}
    series = bench_store.trend(stored.records, bench.model_digest(path), like)
    forms = {"json": bench_table.history_json, "csv": bench_table.history_csv, "markdown": bench_table.history}
    _write(options.output, forms[options.form](series))
    if options.plot:
        from kinetic.cli.bench_plot import draw_history

        draw_history(options.plot, series)
    return 0
