"""Many receipts at once: all are checked, then rerun model by model, each model opened once.

    audit = Audit(["receipts/"], trust=trust, state=default_state(...))
    for row in audit.run():
        ...
    print(to_html(audit.report()))

What was rerun is kept in a state file, so that an interrupted audit goes on
where it was. Signatures and trust are judged anew each time, and models hashed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from kinetic import store
from kinetic.api.rerun_models import Setup, setup_of
from kinetic.api.verify import Checker, row_of, with_standing
from kinetic.attest import foreign_errors
from kinetic.errors import FileProblem, KineticError
from kinetic.types import PROFILE
from ktc import errors
from ktc.errors import KtcError
from ktc.files import read_bounded
from receipts import audit, checks, encode, kinds
from receipts.audit_state import State
from receipts.report.rows import NOT_RERUN, Report, Row
from receipts.schema import Record
from receipts.verify import Verdict, verdict_of

if TYPE_CHECKING:
    from ktc.trust import Standing

_NOT_CHOSEN = Verdict(0, NOT_RERUN, "form and signatures hold; it is not in the sample, so it was not rerun")


class _Due(NamedTuple):
    """A receipt whose form and signatures hold. The rest of it is read again for the rerun: there may be many."""

    order: int
    """Its place among all files."""
    row: Row
    """Without the verdict of the rerun."""
    digest: str
    """BLAKE3 of the file's bytes, in hex."""
    setup: Setup
    standing: Standing
    unrerun: Verdict
    """What is said of it if it isn't rerun: that the answer contradicts itself needs no engine."""

    @property
    def tokens(self) -> int:
        return self.row.prompt_tokens + self.row.output_tokens


class Audit:
    """One pass over the receipts that ``names`` stand for (files, folders, patterns). ``run`` once, then ``report``.

    ``sample`` says how many are rerun, else all are; ``sample_seed`` (32 bytes)
    says which, else it is drawn. ``state`` is a path; ``keep_state`` leaves the
    file there at the end. ``on_check`` is told files, ``on_rerun`` tokens:
    (done, in all). ``progress`` gets news of a line. ``options`` are those of ``Checker``.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        sample: audit.Size | None = None,
        sample_seed: bytes | None = None,
        state: str | os.PathLike[str] | None = None,
        keep_state: bool = False,
        on_check: store.Progress | None = None,
        on_rerun: store.Progress | None = None,
        progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        self.names, self.skipped = list(names), list[str]()
        self._size, self._seed, self._state_path, self._keep_state = sample, sample_seed, state, keep_state
        self._on_check, self._on_rerun, self._progress = on_check, on_rerun, progress
        self._device, self._method = options.get("device", "cpu"), options.get("method", "replay")
        self._checker = Checker(**options, progress=progress, on_rerun=self._tell)
        self._rows: dict[int, Row] = {}
        self._state: State | None = None
        self._engine_id = ""
        self._passed = self._chosen = self._unjudged = self._done = self._total = 0

    def run(self) -> Iterator[Row]:
        """Each file's row as it is settled. Raises FileProblem if there are no receipts, UsageError."""
        with contextlib.ExitStack() as stack:
            self._engine_id = _engine_id(self._device)
            if self._state_path is not None:
                with foreign_errors():
                    self._state = stack.enter_context(State(self._state_path))
            stack.enter_context(self._checker)
            due: list[_Due] = []
            for order, found in self._check_all():
                if isinstance(found, Row):
                    yield self._settle(order, found)
                else:
                    due.append(found)
            self._require_any(due)
            chosen, others = self._split(due)
            yield from self._rerun_all(chosen)
            self._unjudged = sum(self._rows[item.order].verdict.exit_code in (1, 3, 13, 14) for item in chosen)
            for item in others:
                yield self._settle(item.order, _judged(item, item.unrerun))
            if self._state is not None:
                self._state.finish(keep=self._keep_state)

    def report(self) -> Report:
        """What was found so far, in the order of the files."""
        rows = [row for _, row in sorted(self._rows.items())]
        return Report(rows, f"Audit of {', '.join(self.names)}", self.facts())

    @property
    def is_resumable(self) -> bool:
        """Whether what was rerun is kept somewhere."""
        return self._state is not None

    @property
    def settled(self) -> int:
        """Files that have a verdict."""
        return len(self._rows)

    # --- checking ---

    def _check_all(self) -> Iterator[tuple[int, Row | _Due]]:
        with foreign_errors():
            sources = audit.find_files(self.names)
        for order, source in enumerate(sources):
            found = self._check(order, source)
            if found is None:
                self.skipped.append(source.path)
            else:
                yield order, found
            if self._on_check:
                self._on_check(order + 1, len(sources))

    def _check(self, order: int, source: audit.Source) -> Row | _Due | None:
        """A refusal, or what is to be rerun; None for a file in a folder that is surely something else."""
        started, data = time.perf_counter(), b""
        try:
            data = encode.read_file(source.path)
            examined = self._checker.examine(data)
        except KtcError as error:
            if not source.is_named and error.exit_code != 3 and _is_other(source.path, data):
                return None
            return Row(source.path, verdict_of(error), seconds=time.perf_counter() - started)
        row = row_of(source.path, examined.record, _NOT_CHOSEN)
        return _Due(order, row, _digest(data), setup_of(examined.record), examined.standing, _unrerun(examined.record))

    def _require_any(self, due: Sequence[_Due]) -> None:
        if not due and not self._rows:
            others = f": {len(self.skipped)} files there are something else" if self.skipped else ""
            raise FileProblem(f"there are no receipts in {', '.join(self.names)}{others}", name="NO_RECEIPTS")

    # --- choosing ---

    def _split(self, due: list[_Due]) -> tuple[list[_Due], list[_Due]]:
        """Those that are rerun, and those that aren't."""
        self._passed = self._chosen = len(due)
        if self._size is None:
            return due, []
        self._chosen = self._size.of(len(due))
        named = sorted(due, key=lambda item: (item.row.receipt_id, item.row.file))
        indices = set(audit.choose(len(due), self._chosen, self._sample_seed()))
        chosen = {item.order for index, item in enumerate(named) if index in indices}
        return [item for item in due if item.order in chosen], [item for item in due if item.order not in chosen]

    def _sample_seed(self) -> bytes:
        """The one given, else that of the interrupted audit, else a new one."""
        if self._seed is None:
            self._seed = bytes.fromhex(self._state.seed) if self._state and self._state.seed else None
        if self._seed is None:
            self._seed = os.urandom(audit.SEED_BYTES)
        if self._state is not None:
            self._state.begin_sample(self._seed)
        return self._seed

    # --- rerunning ---

    def _rerun_all(self, items: list[_Due]) -> Iterator[Row]:
        self._total = sum(item.tokens for item in items)
        for setup, group in audit.grouped(items, lambda item: item.setup).items():
            under = _digest(json.dumps([self._engine_id, PROFILE, self._device, self._method, setup]).encode())
            for item in group:
                yield self._settle(item.order, self._kept(item, under) or self._rerun(item, under))
                self._done += item.tokens
                self._tell(0, 0)

    def _kept(self, item: _Due, under: str) -> Row | None:
        verdict = self._state.get(item.digest, under) if self._state else None
        if verdict is None or (verdict.name == "DIFFERS" and self._checker.trail and not verdict.trail):
            return None
        return _judged(item, verdict)._replace(is_kept=True) if self._has_model(item) else None

    def _has_model(self, item: _Due) -> bool:
        """Whether the model is here, hashed anew: without it a kept verdict counts no more than in a first audit."""
        try:
            self._checker.require_model(_read_again(item))
        except KtcError:  # which the rerun says again
            return False
        return True

    def _rerun(self, item: _Due, under: str) -> Row:
        started = time.perf_counter()
        verdict = self._try(item)
        if self._state is not None:
            self._keep(item.digest, under, verdict)
        return _judged(item, verdict)._replace(seconds=time.perf_counter() - started)

    def _try(self, item: _Due) -> Verdict:
        """The verdict; also that of a fault of this program, which must not take the others with it."""
        try:
            return self._checker.rerun_record(_read_again(item))
        except KtcError as error:
            return verdict_of(error)
        except (KineticError, MemoryError):
            raise
        except Exception as error:
            self._checker.close()
            return Verdict(1, "FAULT", f"internal fault: {error!r}")

    def _keep(self, digest: str, under: str, verdict: Verdict) -> None:
        try:
            assert self._state is not None
            self._state.add(digest, under, verdict)
        except KtcError as error:
            self._state = None
            if self._progress:
                self._progress(f"{error}: if this audit is interrupted, the rest is lost")

    def _settle(self, order: int, row: Row) -> Row:
        self._rows[order] = row
        return row

    def _tell(self, done: int, _: int) -> None:
        if self._on_rerun:
            self._on_rerun(self._done + done, self._total)

    # --- telling ---

    def facts(self) -> list[tuple[str, str]]:
        """What stands above the table of a report: by what means, and how much a sample says."""
        facts = [("engine", self._engine_id), *self._checker.facts(), *self.sample_facts()]
        if self.skipped:
            facts.append(("skipped: not a receipt", ", ".join(self.skipped)))
        return facts

    def sample_facts(self) -> list[tuple[str, str]]:
        """How the sample was chosen, and the chance that it shows what is wrong; empty if all were rerun."""
        if self._size is None or self._seed is None:
            return []
        odds = [f"{audit.percent(p)} if {case}" for case, p in audit.chances(self._passed, self._chosen)]
        unjudged = (
            f", {self._unjudged} of which could not be judged: of their like it says nothing" if self._unjudged else ""
        )
        return [
            ("sample", f"{self._chosen} of the {self._passed} receipts that pass the checks{unjudged}"),
            ("sample seed", self._seed.hex()),
            ("chance to find at least one", ", ".join(odds)),
            ("in general", "1-(1-f)^k, for k reruns where a share f of very many is bad"),
        ]


def default_state(names: Iterable[str], *arguments: object) -> Path | None:
    """Where the state of such an audit is kept unless told otherwise; None if the cache can't be written."""
    folder = store.writable("audits")
    if folder is None:
        return None
    matters = [[os.path.abspath(name) for name in names], *map(str, arguments)]
    return folder / f"{_digest(json.dumps(matters).encode())[:32]}.jsonl"


def _engine_id(device: str) -> str:
    """Which code computes, without a model. Raises UsageError for a device that isn't there."""
    from kinetic.api.opening import choose_device
    from kinetic.backends import open_backend

    return open_backend(choose_device(device, None)[0]).engine_id


def _is_other(path: str, data: bytes) -> bool:
    """Whether a file is surely something else than a receipt; of one that is too large the beginning tells."""
    if not data:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            data = file.read(4096)
    return bool(kinds.other_kind(data))


def _digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def _read_again(item: _Due) -> Record:
    """The receipt, if it is still the one that was checked."""
    data = read_bounded(item.row.file)
    if _digest(data) != item.digest:
        message = f"{item.row.file} was changed while the audit ran: audit it again"
        raise errors.FileProblem(message, name="FILE_CHANGED")
    return encode.read_receipt(data).record


def _unrerun(record: Record) -> Verdict:
    try:
        checks.check_answer(record)  # step 12
    except KtcError as error:
        return verdict_of(error)
    return _NOT_CHOSEN


def _judged(item: _Due, verdict: Verdict) -> Row:
    return item.row._replace(verdict=with_standing(verdict, item.standing))
