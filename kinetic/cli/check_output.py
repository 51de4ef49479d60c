"""``kinetic check-output``: whether a setting or another file changes the output beyond the model's noise floor."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from kinetic.cli.parser import Subcommands, add_device, add_pack_cache, placed
from kinetic.cli.perplexity import print_json
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.check_output import Apart, Outcome, Setting

HELP = "compare the output of two models or settings with the model's own noise floor"

EPILOG = """\
A is the model as it runs by default. What it is compared with is another file, B, or the same with
other settings, or both:

  kinetic check-output MODEL OTHER.gguf
  kinetic check-output MODEL threads=1 rows=7
  kinetic check-output MODEL OTHER.gguf device=reference

Settings: device, gpu-layers (both as the flags that say so of A), threads, rows (computed at once).

Both read a built-in text (prose, code, numbers, four languages), and every token's probabilities are
compared: KL divergence from A in nats, and the share of tokens after which both find the same token
most probable. The noise floor is the divergence from A of the same weights as float32, whose products
take activations as they are (moved by a unit in their last place) instead of rounded to 8 bits: what
an engine is free to round. A default may change only if the mean divergence stays inside it. Measuring
the floor takes 8 bytes of memory for each weight; --floor takes a number measured before instead.

exit codes: 0 inside the floor, 10 outside
"""

DIFFERS = 10
SETTING = re.compile(r"(device|gpu-layers|threads|rows)=(.*)", re.DOTALL)


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("check-output", help=HELP, description=HELP[0].upper() + HELP[1:] + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="A", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("other", nargs="*", metavar="B|KEY=VALUE", help="another model, and settings, of B")
    parser.add_argument("--floor", type=float, metavar="KL", help="the noise floor, in nats; it is not measured then")
    add_device(parser)
    add_pack_cache(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.check_output import Setting, check

    a = Setting(options.model, **placed(options))
    b = _other(a, options.other)
    if options.floor is not None and not 0 <= options.floor < inf:
        raise UsageError("--floor is a divergence in nats, 0 or more", name="FLOOR")
    with Progress("reading", quiet=options.quiet) as bar:
        outcome = check(
            *(a, b),
            floor=options.floor,
            news=None if options.quiet else news,
            pack_cache=options.pack_cache,
            on_progress=bar,
        )
    if options.json:
        print_json(outcome.facts())
    else:
        for line in _lines(outcome):
            print(line)
    return 0 if outcome.is_inside else DIFFERS


def _other(a: Setting, words: list[str]) -> Setting:
    """What A is compared with. Raises UsageError."""
    from dataclasses import replace

    given = {match[1]: match[2] for match in map(SETTING.fullmatch, words) if match}
    models = [word for word in words if not SETTING.fullmatch(word)]
    if len(models) > 1 or not words:
        raise UsageError("name one other model, or settings as KEY=VALUE, to compare with", name="NOTHING_TO_COMPARE")
    counts = {name: _count(name, given) for name in ("threads", "rows") if name in given}
    layers = given.get("gpu-layers", "auto" if "device" in given else a.gpu_layers)
    device = given.get("device", a.device)
    return replace(a, model=models[0] if models else a.model, device=device, gpu_layers=layers, **counts)


def _count(name: str, given: Mapping[str, str]) -> int:
    least = 1 if name == "rows" else 0
    if not re.fullmatch("[0-9]{1,9}", given[name]) or int(given[name]) < least:
        problem = f"{name}={given[name][:40]} is no number of {name}: give {least} or more, in 9 digits at most"
        raise UsageError(problem, name="BAD_SETTING")
    return int(given[name])


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"{'':12}  {'mean KL':>22}  {'largest':>10}  same top token"
    yield f"{'B from A':12}  {_row(outcome.found)}"
    yield f"{'noise floor':12}  " + (_row(outcome.floor) if outcome.floor else f"{outcome.limit:10.7f}")
    yield _verdict(outcome)


def _row(apart: Apart) -> str:
    kld, top = apart.kld, apart.same_top
    pair = f"{kld.value:10.7f} \N{PLUS-MINUS SIGN} {kld.uncertainty:9.7f}"
    return f"{pair}  {apart.largest:10.6f}  {100 * top.value:.2f} %"


def _verdict(outcome: Outcome) -> str:
    found = outcome.found
    if found.largest == 0 and found.kld.value == 0 and found.same_top.value == 1:
        return f"INSIDE: the same probabilities, to the bit, for all {outcome.tokens} tokens."
    if outcome.is_inside:
        return "INSIDE: B is no further from A than rounding may put an engine."
    return "OUTSIDE: B is further from A than rounding may put an engine."
