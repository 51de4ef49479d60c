"""``kinetic perplexity``: how well a model predicts a text, and how far its probabilities are from another's."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kinetic.cli.model_options import add_changes, changes
from kinetic.cli.parser import Parser, Subcommands, add_device, add_pack_cache, placed
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.kl_divergence import Divergence
    from kinetic.api.means import Estimate
    from kinetic.api.perplexity import Cut, Perplexity, Settings
    from kinetic.api.scorer import Scorer

HELP = "measure how well a model predicts a text, and its KL divergence from another"

EPILOG = """\
The text is cut into chunks of -c tokens, and the second half of each is scored, as llama-perplexity
does; numbers are comparable with its. They are the same for every -b, -ub and -t, to the last bit.

--kl-divergence-base FILE writes a model's log-probabilities; with --kl-divergence it reads them, and
compares. The file is llama.cpp's: either program reads what the other wrote. It takes 2 bytes for each
token of the vocabulary and each scored token of the text.

Flags are llama-perplexity's. Left out are --hellaswag, --winogrande and --multiple-choice with theirs, and
whatever says how llama.cpp computes (-ngl, -fa and others).
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("perplexity", help=HELP, description=HELP[0].upper() + HELP[1:] + ".", epilog=EPILOG)
    add_model(parser)
    parser.add_argument("text", nargs="?", metavar="FILE", help="the text (- is stdin)")
    parser.add_argument("-f", "--file", metavar="FILE", help="the same as a flag")
    add_chunks(parser)
    add_changes(parser)
    parser.add_argument("--ppl-stride", type=int, default=0, metavar="N",
                        help="score the last N tokens of windows that overlap, as llama-perplexity does with"
                        " -b no more than -c (0: off)")  # fmt: skip
    parser.add_argument("--ppl-output-type", type=int, choices=(0, 1), default=0, metavar="0|1",
                        help="1: a line for each chunk, with mean and uncertainty of -ln p")  # fmt: skip
    parser.add_argument(
        "--kl-divergence-base", "--save-all-logits", metavar="FILE", help="where log-probabilities go, or come from"
    )
    parser.add_argument("--kl-divergence", action="store_true", help="compare with --kl-divergence-base")
    add_machine(parser)
    parser.set_defaults(main=main)


def add_model(parser: Parser) -> None:
    """As an argument, which is then options.model, or with -m as llama.cpp has it."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a .gguf or .ktc file, or a name from `kinetic models`"
    )
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the same as a flag")


def add_chunks(parser: Parser) -> None:
    """How a text is cut and read: the same of every command that reads one."""
    parser.add_argument("-c", "--ctx-size", type=int, default=512, metavar="N", help="tokens in a chunk (512)")
    parser.add_argument("--chunks", type=int, default=-1, metavar="N", help="read so many chunks only (-1: all)")
    parser.add_argument("-b", "--batch-size", type=int, default=2048, metavar="N",
                        help="most tokens given to the model at once (2048)")  # fmt: skip
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512, metavar="N",
                        help="most tokens computed at once (512)")  # fmt: skip


def add_machine(parser: Parser) -> None:
    """What computes, and what is printed."""
    parser.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_device(parser)
    add_pack_cache(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def main(options: Namespace) -> int:
    if options.model_flag is not None and options.text is None:
        options.model, options.text = None, options.model  # With -m the only word is the text.
    take_model(options)
    if options.model is None:
        raise UsageError("name the model, as an argument or with -m", name="NO_MODEL")
    if options.kl_divergence:
        return _compare(options)
    text = read_text(options)
    with open_scorer(options) as scorer:
        wanted = settings(options)
        tokens = scorer.encode(text)
        found = _measure(scorer, tokens, wanted, options)
    if options.json:
        value, uncertainty = found.estimate
        facts = {"ppl": value, "uncertainty": uncertainty, "tokens": len(found.losses), "running": found.running}
        print_json(facts | {"context": wanted.context, "stride": wanted.stride})
    else:
        print()
        print_estimate(found)
    return 0


def take_model(options: Namespace) -> None:
    """That of -m becomes options.model. Raises UsageError where there are two."""
    if options.model_flag is not None:
        if options.model is not None:
            raise UsageError("name the model once: as an argument or with -m", name="MODEL_TWICE")
        options.model = options.model_flag


def read_text(options: Namespace) -> str:
    """The text, without the newline at its end, as llama.cpp reads it. Raises UsageError or FileProblem."""
    from kinetic.cli.run_options import decode, read_bytes

    if (options.text is None) == (options.file is None):
        raise UsageError("name the file with the text, once: as an argument or with -f", name="NO_TEXT")
    name = options.text or options.file
    return decode(read_bytes(name), name).removesuffix("\n")


def settings(options: Namespace) -> Settings:
    from kinetic.api.perplexity import Settings

    if options.batch_size < 1 or options.ubatch_size < 1:
        raise UsageError("a batch holds at least one token", name="BATCH_SIZE")
    if options.chunks == 0 or options.chunks < -1:
        raise UsageError("--chunks is a number of chunks, or -1 for all", name="CHUNKS")
    rows = min(options.batch_size, options.ubatch_size)
    return Settings(options.ctx_size, options.chunks, getattr(options, "ppl_stride", 0), rows)


def open_scorer(options: Namespace, context: int = 0, **unusual: Any) -> Scorer:
    """The model of the command line. ``context`` 0 is its own."""
    from kinetic.api.scorer import Scorer

    return Scorer(
        options.model,
        **placed(options),
        threads=options.threads,
        context=context,
        pack_cache=options.pack_cache,
        **(changes(options) if hasattr(options, "lora") else {}),
        progress=None if options.quiet else news,
        **unusual,
    )


def print_json(facts: Mapping[str, object]) -> None:
    """JSON knows neither NaN nor infinity: null stands for them."""
    import json  # Not at the top: help needs none.

    print(json.dumps(_without_nan(facts), allow_nan=False))


def _without_nan(facts: Any) -> Any:
    import math

    if isinstance(facts, Mapping):
        return {name: _without_nan(value) for name, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [_without_nan(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts


def print_chunk(cut: Cut, found: Perplexity) -> None:
    """``[3]39.9848,`` as soon as it is known."""
    print(f"[{len(found.running)}]{found.running[-1]:.4f},", end="", flush=True)


def print_estimate(found: Perplexity) -> None:
    value, uncertainty = found.estimate
    print(f"Final estimate: PPL = {value:.4f} +/- {uncertainty:.5f}")


def _print_line(cut: Cut, found: Perplexity) -> None:
    value, uncertainty = found.mean
    print(f"{cut.start:8}  {found.running[-1]:.4f}  {value:.6f}  {uncertainty:.6f}", flush=True)


def _measure(scorer: Scorer, tokens: list[int], wanted: Settings, options: Namespace) -> Perplexity:
    """With the base file written on the way, if one is asked for."""
    from kinetic.api import kl_base, perplexity

    on_chunk = None if options.json else (_print_line if options.ppl_output_type else print_chunk)
    if options.kl_divergence_base is None:
        with Progress("reading", quiet=options.quiet or not options.json) as bar:
            return perplexity.measure(scorer, tokens, wanted, on_chunk=on_chunk, on_progress=bar)
    if wanted.stride:
        raise UsageError("overlapping windows have no base file: leave --ppl-stride out", name="STRIDE_AND_BASE")
    from kinetic.attest import foreign_errors
    from kinetic.cli.receipt_files import require_writable
    from ktc.newfile import NewFile

    require_writable(options.kl_divergence_base, str(scorer.path), options.text or options.file)
    chunks = [cut.tokens for cut in perplexity.cuts(tokens, wanted)]
    with foreign_errors(), NewFile(os.path.realpath(options.kl_divergence_base), overwrite=True) as file:
        file.write(kl_base.header(wanted.context, scorer.vocab_size, chunks))

        def keep(logits: Any, sums: Any) -> None:
            file.write(kl_base.to_rows(logits, sums))

        found = perplexity.measure(scorer, tokens, wanted, on_chunk=on_chunk, on_rows=keep)
        file.keep()
    return found


# --- the comparison ---


def _compare(options: Namespace) -> int:
    from kinetic.api.kl_base import Base

    if options.kl_divergence_base is None or options.ppl_stride:
        raise UsageError(
            "--kl-divergence compares with the file of --kl-divergence-base, without a stride", name="NO_BASE"
        )
    if options.text or options.file:
        raise UsageError("with --kl-divergence the text comes from the base file: leave it out", name="TEXT_TWICE")
    with Base(options.kl_divergence_base) as base, open_scorer(options) as scorer:
        if base.vocab_size != scorer.vocab_size:
            raise UsageError(
                f"{base.path} is of a vocabulary of {base.vocab_size}, and this model has {scorer.vocab_size}",
                name="OTHER_VOCABULARY",
            )
        found = _divergence(scorer, base, options)
    if options.json:
        print_json(found.facts())
    else:
        for line in _statistics(found):
            print(line)
    return 0


def _divergence(scorer: Scorer, base: Any, options: Namespace) -> Divergence:
    from kinetic.api import perplexity
    from kinetic.api.kl_divergence import Divergence

    found, rows = Divergence(), settings(options).rows
    count = base.chunks if options.chunks < 0 else min(base.chunks, options.chunks)
    if not options.json:
        print(HEADING)
    for number in range(count):
        cut = perplexity.Cut(number * base.context, base.tokens[number].tolist(), base.scored)
        for logits, sums, following in perplexity.score(scorer, cut, rows):
            found.add(base.rows(len(logits)), logits, sums, following)
        if not options.json:
            print(_running(number + 1, found), flush=True)
    return found


DELTA_P = "\N{GREEK CAPITAL LETTER DELTA}p"

HEADING = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
    f"              {DELTA_P} RMS            Same top p"
)


def _pair(estimate: Estimate, width: int, digits: int, factor: float = 1.0) -> str:
    value, uncertainty = (f"{factor * number:{width}.{digits}f}" for number in estimate)
    return f"{value} \N{PLUS-MINUS SIGN} {uncertainty}"


def _running(number: int, found: Divergence) -> str:
    from kinetic.api.means import powered

    parts = [
        _pair(powered(found.loss.estimate), 9, 4),
        _pair(found.log_ratio, 10, 5),
        _pair(found.divergence.estimate, 10, 5),
        _pair(found.rms_change, 6, 3, 100) + " %",
        _pair(found.same_top, 6, 3, 100) + " %",
    ]
    return f"{number:4}    " + "    ".join(parts)


def _statistics(found: Divergence) -> Iterator[str]:
    """The lines that llama-perplexity ends with."""
    facts: dict[str, Any] = found.facts()
    yield "\n====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_pair(facts['ppl'], 10, 6)}"
    yield f"Mean PPL(base)                : {_pair(facts['ppl_base'], 10, 6)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * facts['correlation']:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_pair(facts['ln_ratio'], 10, 6)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_pair(facts['ratio'], 10, 6)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_pair(facts['difference'], 10, 6)}"
    yield "\n====== KL divergence statistics ======"
    yield f"Mean    KLD: {_pair(facts['kld'], 10, 6)}"
    inner = {name: value for name, value in facts["kld_percentiles"].items() if name not in ("75", "25")}
    yield from _percentiles(inner, "KLD: ", lambda value: f"{value:10.6f}")
    yield "\n====== Token probability statistics ======"
    yield f"Mean    {DELTA_P}: {_percent(facts['delta_p'])}"
    yield from _percentiles(facts["delta_p_percentiles"], f"{DELTA_P}: ", lambda value: f"{100 * value:6.3f}%")
    yield f"RMS {DELTA_P}    : {_percent(facts['delta_p_rms'])}"
    yield f"Same top p: {_percent(facts['same_top'])}"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:6.3f} \N{PLUS-MINUS SIGN} {100 * estimate.uncertainty:5.3f} %"


def _percentiles(values: dict[str, float], what: str, shown: Callable[[float], str]) -> Iterator[str]:
    names = {"maximum": "Maximum", "minimum": "Minimum", "50": "Median "}
    for name, value in values.items():
        yield f"{names.get(name) or f'{float(name):4.1f}%  '} {what}{shown(value)}"
