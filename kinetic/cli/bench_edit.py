"""``kinetic bench --edit``: jobs with drafts and without, and whether they gave the same."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.bench import Peer

DIFFERS = 10
"""Exit code where a job gave other tokens with drafts: the one of a receipt that differs."""

CHANGED = {"same": "is the same as", "differs": "is another than"}


def run(options: Namespace, path: Path, peer: Peer | None) -> tuple[str, int]:
    """The table, and the exit code."""
    from kinetic.api import bench_edit

    if options.form == "csv" or options.plot or options.fail_below is not None or options.device != "cpu":
        raise UsageError(
            "--edit makes a table or, with --json, an object, on the processor: leave --csv, --plot, --fail-below and"
            " --device out",
            name="NO_EDIT_FORM",
        )
    if len(options.threads) != 1 or len(options.n_gen) != 1 or options.n_gen[0] < 2 or options.repetitions < 1:
        raise UsageError(
            "--edit takes one number of threads, one number of tokens from 2 on, and at least one repetition",
            name="BAD_REPETITIONS",
        )
    with Progress("measuring", quiet=options.quiet) as bar:
        record = bench_edit.measure(
            path,
            threads=options.threads[0],
            repetitions=options.repetitions,
            tokens=options.n_gen[0],
            peer=peer,
            news=None if options.quiet else news,
            progress=bar,
        )
    text = json.dumps(record, ensure_ascii=False) + "\n" if options.form == "json" else _markdown(record)
    is_same = all(row["same"] == "identical" for row in record["results"])
    return text, 0 if is_same else DIFFERS


def _markdown(record: dict[str, Any]) -> str:
    from kinetic.cli.report_options import shown

    peer, guessing = record["peer"], record["peer_ngrams"]
    more = [f"to {shown(peer)}'s plain decoding"] if peer else []
    more += [f"to its n-grams ({guessing['kind']})"] if guessing else []
    head = ["job", "sped up", "plain", "ratio", "drafts", "right", *more, "answer"]
    lines = [
        f"{shown(record['model']['file'])}, {record['tokens']} tokens, {record['threads']} threads,"
        f" {record['repetitions']} rounds, medians of tokens/s",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "--:|" * (len(head) - 2) + "---|",
    ]
    for row in record["results"]:
        cells = [row["job"], f"{row['speed']['median']:.1f}", f"{row['plain']['median']:.1f}"]
        cells += [f"{row['ratio']['median']:.2f}", str(row["drafted"]), str(row["accepted"])]
        cells += [f"{row['peer_ratio']['median']:.2f}"] if peer else []
        if guessing:
            cells.append(f"{row['ngram_ratio']['median']:.2f}" if "ngram_ratio" in row else "")
        lines.append("| " + " | ".join([*cells, row["same"]]) + " |")
    if guessing and guessing["answer"]:
        lines += ["", f"With n-grams llama.cpp's answer {CHANGED[guessing['answer']]} its plain one."]
    return "\n".join([*lines, ""])
