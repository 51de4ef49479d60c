"""The gate: rerun what a baseline names, and say of each promise whether this build keeps it.

    gate = Gate(read(path), models=["smollm2"])
    for outcome in gate.run():
        ...
    gate.result().exit_code

A receipt passes only if it was rerun here and is identical, digests of logits included. It is skipped only where its
model or the opening of its prompt is not at hand; all else that keeps it from a rerun fails: a file that is gone or
changed, another profile, a model that this build no longer runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from conformance import gate_bench, gate_diff
from conformance.bench_store import Record as BenchRecord
from conformance.gate_baseline import Baseline, Entry, entry_of
from conformance.gate_outcome import FAILED, PASSED, SKIPPED, Outcome, Result
from kinetic.api.gate import NamedModels, engine_id, program, pull_name
from kinetic.api.rerun_models import claim_of
from kinetic.api.verify import Checker, row_of
from kinetic.errors import KineticError
from ktc.errors import FileProblem, KtcError, Malformed
from receipts import encode
from receipts.report.rows import Row, reason, word
from receipts.verify import Verdict, verdict_of
from receipts.withhold import read_opening

if TYPE_CHECKING:
    from receipts.schema import Record

MISSING = ("MODEL_MISSING", "WITHHELD")
"""Names of verdicts on receipts that are skipped: what it takes to judge them is not here."""


class _Due(NamedTuple):
    """A receipt whose file is the one that the baseline names."""

    order: int
    entry: Entry
    path: str
    data: bytes
    record: Record


class Gate:
    """One pass over a baseline. ``run`` once, then ``result``.

    ``models`` are paths or names of models, of which each receipt's is found by its hashes, as are models of the
    store. ``records`` are measurements made now, None if there are none; ``below`` is the ratio of speeds that
    fails. ``is_strict`` shuts the gate where something was skipped. ``options`` are those of ``Checker``.
    """

    def __init__(
        self,
        baseline: Baseline,
        *,
        models: Sequence[str] = (),
        records: Sequence[BenchRecord] | None = None,
        below: float = 1.0,
        is_strict: bool = False,
        progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        self._baseline, self._records, self._below, self._is_strict = baseline, records, below, is_strict
        self._models, self._progress = NamedModels(models), progress
        given = {name: value for name, value in options.items() if value is not None}
        self._options: dict[str, Any] = {"device": "cpu", "at": int(time.time()), **given}
        self._engine_id = engine_id(self._options["device"])
        self._outcomes: dict[int, Outcome] = {}

    def run(self) -> Iterator[Outcome]:
        """Each outcome as it is settled: what no rerun can save, then receipts model by model, then speeds."""
        groups: dict[tuple[Any, str], list[_Due]] = {}
        for order, entry in enumerate(self._baseline.receipts):
            found = self._read(order, entry)
            if isinstance(found, Outcome):
                yield self._settle(order, found)
            else:
                groups.setdefault((claim_of(found.record), entry["opening"]), []).append(found)
        for group in groups.values():
            yield from self._rerun(group)
        names = {blake3: about["name"] for blake3, about in self._baseline.models.items()}
        speeds = gate_bench.judge(self._baseline.bench, self._records, names, self._below)
        for order, outcome in enumerate(speeds, start=len(self._baseline.receipts)):
            yield self._settle(order, outcome)

    def result(self) -> Result:
        """What was found so far, in the order of the baseline."""
        outcomes = [outcome for _, outcome in sorted(self._outcomes.items())]
        with Checker(None, **self._options) as checker:
            facts = [("baseline", self._baseline.path), ("program", program()), ("engine", self._engine_id)]
            return Result(outcomes, [*facts, *checker.facts()], self._is_strict)

    def unused(self) -> list[str]:
        """Models that were named and that no receipt is of."""
        return list(map(str, self._models.unused()))

    def _settle(self, order: int, outcome: Outcome) -> Outcome:
        self._outcomes[order] = outcome
        return outcome

    # --- receipts ---

    def _read(self, order: int, entry: Entry) -> _Due | Outcome:
        """The receipt, or the refusal of a file that is gone, or is another."""
        path = self._baseline.place(entry["file"])
        try:
            data = encode.read_file(path)
            if blake3(data).hexdigest() != entry["blake3"]:
                raise _changed(entry, data)
            return _Due(order, entry, path, data, encode.read_receipt(data).record)
        except FileProblem as error:
            refusal = Verdict(error.exit_code, "RECEIPT_MISSING", f"the baseline's receipt is not there: {error}")
        except KtcError as error:
            refusal = verdict_of(error)
        return self._outcome(entry, Row(path, refusal, model=self._baseline.model_name(entry["model"])), None)

    def _rerun(self, group: Sequence[_Due]) -> Iterator[Outcome]:
        """Receipts of one model, and of one opening if they need one: the model is hashed and loaded once."""
        first = group[0]
        try:
            checker = self._checker(first)
        except KtcError as error:  # an opening that can't be read
            for due in group:
                row = row_of(due.path, due.record, verdict_of(error))
                yield self._settle(due.order, self._outcome(due.entry, row, due.record))
            return
        with checker:
            for due in group:
                yield self._settle(due.order, self._outcome(due.entry, _row(checker, due), due.record))

    def _checker(self, due: _Due) -> Checker:
        opening = due.entry["opening"]
        shown = read_opening(self._baseline.place(opening)) if opening else None
        model = self._models.find(due.record)
        return Checker(model, opening=shown, trail=True, progress=self._progress, **self._options)

    def _outcome(self, entry: Entry, row: Row, record: Record | None) -> Outcome:
        verdict = row.verdict
        name = reason(verdict) or word(verdict)
        if verdict.exit_code == 0 and verdict.method:
            return Outcome(row.file, row.model, PASSED, name, verdict.sentence, row=row, seconds=row.seconds)
        status = SKIPPED if verdict.name in MISSING else FAILED
        return Outcome(
            row.file,
            row.model,
            status,
            name,
            _skipped(entry, row) if verdict.name == "MODEL_MISSING" else verdict.sentence,
            verdict.exit_code,
            diff=gate_diff.lines(verdict, record) if record else (),
            notes=tuple(self._notes(verdict, record)) if record and status == FAILED else (),
            row=row,
            seconds=row.seconds,
        )

    def _notes(self, verdict: Verdict, record: Record) -> Iterator[str]:
        """Who made a receipt that fails, beside who judges it."""
        made, here = record["claims"]["engine_id"], self._engine_id
        if verdict.name == "PROFILE":
            yield "the arithmetic changed, so its answers are others: make new receipts, and a baseline of them"
        elif verdict.exit_code == 10 and made == here:
            yield f"the receipt claims this very engine, {here}: it was edited, or something beside the kernels changed"
        elif verdict.exit_code == 10 and made:
            yield f"the engine changed: the receipt claims {made}, this is {here}"


def _row(checker: Checker, due: _Due) -> Row:
    started = time.perf_counter()
    try:
        verdict = checker.rerun(checker.examine(due.data))
    except KtcError as error:
        verdict = verdict_of(error)
    except (KineticError, MemoryError):
        raise
    except Exception as error:  # a fault of this program is a reason to shut the gate, and must not hide the rest
        checker.close()
        verdict = Verdict(1, "FAULT", f"internal fault: {error!r}")
    return row_of(due.path, due.record, verdict)._replace(seconds=time.perf_counter() - started)


def _changed(entry: Entry, data: bytes) -> Malformed:
    """What of a receipt is no longer as the baseline has it, as far as that can be told."""
    try:
        now = entry_of(encode.read_receipt(data).record, data, entry["file"])
    except KtcError as error:
        what = f"and no receipt any more: {error}"
    else:
        parts = {"model": "its model", "profile": "its profile", "digest": "its tokens", "commitment": "its logits"}
        others = [words for name, words in parts.items() if now[name] != entry[name]]
        what = f"{', '.join(others)} changed" if others else "its answer is the same, but not the rest of it"
    return Malformed(
        f"this is not the file that the baseline names, {what}: restore it, or write a new baseline if that is meant",
        name="RECEIPT_CHANGED",
    )


def _skipped(entry: Entry, row: Row) -> str:
    pull = pull_name(entry["model"])
    how = f"`kinetic pull {pull}`, or name it" if pull else "name it"
    return f"no file here has the hashes of {row.model}: {how}"
