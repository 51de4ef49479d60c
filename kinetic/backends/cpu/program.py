"""A model on the CPU: packed weights, a tape, pages of keys and values, worker threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends import rope_tables
from kinetic.backends.base import CHUNK, Attention, Rope, State
from kinetic.backends.checks import check_given, check_table, runs, split
from kinetic.backends.control_word import default_rounding
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.barriers import Buffer
from kinetic.backends.cpu.candidates import Candidates
from kinetic.backends.cpu.core_limits import attention_units, part_bytes, scratch_bytes
from kinetic.backends.cpu.layout import TILE
from kinetic.backends.cpu.memory import address, allocate, allocate_huge, round_up
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.pages import PageLayout, Pages
from kinetic.backends.cpu.plan import TABLES, Planner, Tape, span_words
from kinetic.backends.cpu.shortlist import Shortlist, is_worth
from kinetic.backends.cpu.weights import WeightStore, open_pack
from kinetic.backends.cpu.workers import Workers
from kinetic.backends.graph import OUTPUT_ROWS, Node, matrices
from kinetic.backends.program import Sequences
from kinetic.backends.states import StateStore
from kinetic.backends.whole import needs_whole, whole_spans
from kinetic.bits import F32
from kinetic.errors import KineticError, OutOfMemory
from kinetic.formats import by_type
from kinetic.types import Batch, PackCache, lengths

CAPACITY, TAPPED, TAP_BYTES = 512, 128, 1 << 17
"""Rows of one pass, and of one of whose activations more than ``TAP_BYTES`` a row are kept: longer batches are cut,
which cannot change a bit."""


class CpuProgram(Sequences[Pages]):
    def __init__(
        self,
        kernels: Kernels,
        nodes: list[Node],
        layers: Sequence[Attention],
        threads: int,
        packs: PackCache | None = None,
        states: Sequence[State] = (),
        others: Iterable[WeightStore] = (),
    ) -> None:
        self._kernels, self._threads = kernels, threads
        # In a pass of one row each thread has a copy of what it reads, and there is room for a copy a row.
        tapped = 4 * sum(node.width for node in nodes if node.op == "tap")  # exact: integers
        self._capacity = max(TAPPED, threads) if tapped > TAP_BYTES else CAPACITY
        self._is_whole = needs_whole(layers, nodes)
        self._layout = PageLayout(layers)
        super().__init__(layers, Pages(self._layout), StateStore(states, _room_for_states))
        self._nodes = nodes
        self._tape: Tape = self._plan(nodes, packs, others)
        self.vocab_size = self._tape.vocab_size
        self._program = np.zeros(tape.FIRST_FREE + 64, np.int64)
        self._more_tables = np.zeros(0, np.int64)
        # Some of them may read what others store.
        self._attention = list(dict.fromkeys(node["spec"] for node in nodes if node.op == "attend"))
        self._parts = allocate(0)
        self._tables: dict[Rope, rope_tables.Turned] = {}
        self._seen: dict[str, list[F32]] = {}
        self._prepare(scratch_bytes(self._attention, nodes))
        self._workers = Workers(kernels, self._program, threads)
        self._shortlist = self._made_shortlist()
        self._candidates = Candidates(kernels, self.vocab_size)

    def _plan(self, nodes: list[Node], packs: PackCache | None, others: Iterable[WeightStore]) -> Tape:
        """The tape, with all weights packed. A pack was written only of checked weights: they are not checked again."""
        self.weights = weights = WeightStore(self._kernels, matrices(nodes), self._threads, others)
        tables = list({node["table"].name: node["table"] for node in nodes if node.op in TABLES}.values())
        pack = self._pack = open_pack(packs, tables, weights)
        is_read = pack is not None and weights.read(pack)
        made = self._planned()
        if not is_read:
            for table in tables:
                if not weights.holds(table):
                    check_table(table)
            if pack is not None:
                weights.offer(pack)
        weights.close()
        return made

    def _prepare(self, scratch: int) -> None:
        p = self._program
        self._scratch = allocate(scratch * self._threads)
        p[tape.SCRATCH], p[tape.SCRATCH_BYTES] = address(self._scratch), scratch
        self._make_room()

    def _make_room(self) -> None:
        """The tape and the tables of rows for passes of ``capacity`` rows."""
        p, tables = self._program, max(CAPACITY, self._capacity)
        self._rows = np.zeros((4, tables), np.int64)
        self._blocks = {slot: np.zeros((tables, 2), np.int64) for _, slot in self._tape.groups}
        p[tape.CODE], p[tape.LENGTH] = address(self._tape.code), len(self._tape.code)
        self._sequences, self._order = np.zeros((tables, 3), np.int64), np.zeros(tables, np.int64)
        p[tape.SEQUENCES], p[tape.ORDER] = address(self._sequences), address(self._order)
        p[tape.POSITIONS], p[tape.PAGES], p[tape.ENDS], p[tape.ALSO] = (address(row) for row in self._rows)

    def _fit(self, rows: int) -> None:
        """Room for a longer pass, where a batch may not be cut: the same instructions over more memory."""
        if rows <= self._capacity:
            return
        self._capacity = round_up(rows, CAPACITY)
        try:
            self._tape = self._planned()
            self._make_room()
        except BaseException:  # perhaps there was no memory for it: the next pass plans anew, however short it is
            self._capacity = 0
            raise

    def _planned(self) -> Tape:
        with default_rounding():
            planner = Planner(self._kernels, self.weights, self._layout, self._states, self._capacity)
            return planner.plan(self._nodes)

    def _made_shortlist(self) -> Shortlist | None:
        output = self._tape.output
        if output is None or self._is_whole or not is_worth(output.packed):
            return None
        return Shortlist(self._kernels, output, self._threads, self._tape.code, self.weights)

    # ---- one pass

    def run(self, batch: Batch, given: F32 | None = None, best: int = 0) -> F32:
        """See ``base.Program.run``."""
        with self._only(batch, best):
            return self._run(batch, given, np.copy)

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> F32:
        """See ``base.Program.rows``."""
        if len(batch.tokens) > self._capacity:
            return self.run(batch, None, best)
        self._program[tape.CHOOSE] = self._candidates.prepare(self._tape.logits, len(batch.outputs), choice)
        try:
            with self._only(batch, best):
                rows = self._run(batch, None, lambda rows: rows)
        finally:
            self._program[tape.CHOOSE] = 0
        rows.flags.writeable = False  # what was chosen from them stays true
        self._candidates.made(choice)
        return rows

    @contextmanager
    def _only(self, batch: Batch, best: int) -> Iterator[None]:
        """Passes in which only the ``best`` logits are computed, where that is possible and worth it."""
        if self._shortlist is None or len(batch.outputs) != 1 or len(batch.tokens) > self._capacity:
            yield
            return
        # The first token of an answer, behind a prompt, is not the one to wait for a copy.
        self._program[tape.BEST] = chosen = self._shortlist.begin(best, can_wait=len(batch.tokens) == 1)
        try:
            yield
        finally:
            self._program[tape.BEST] = 0
        if chosen:
            self._shortlist.end()

    def _run(self, batch: Batch, given: F32 | None, keep: Callable[[F32], F32]) -> F32:
        if self._shortlist is not None and self._shortlist.is_broken:
            raise KineticError("this program lost its output layer when it was interrupted: open the model again")
        self._candidates.forget()
        self._seen = {name: [] for name in self._tape.taps}
        check_given(self._tape.given[0].width if self._tape.given else 0, batch, given)
        self._states.check(batch)
        if self._is_whole:
            self._fit(len(batch.tokens))
        parts = []
        for part in [batch] if self._is_whole else split(batch, self._capacity):
            parts.append(keep(self._pass(part, given)))
            given = None if given is None else given[len(part.tokens) :]
        if self._pack is not None:
            self._pack.write_beside()  # not before: the first answer should not wait for it
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pass(self, batch: Batch, given: F32 | None) -> F32:
        rows, outputs = len(batch.tokens), len(batch.outputs)
        ends = self._states.begin(batch)
        self._fill(batch)
        if given is not None and self._tape.given:
            node, buffer = self._tape.given
            _rows_in(buffer, rows)[:, : node.width] = given[:rows]
        self._rows[0, :rows] = batch.positions
        if self._is_whole:
            self._refresh_spans(batch)
        self._rows[1, :rows], self._rows[3, :rows] = self._page_tables(batch)
        self._tape.output_rows[:outputs] = batch.outputs
        self._program[tape.ROWS], self._program[tape.OUTPUT_ROWS] = rows, outputs
        self._refresh_tables(batch.positions)
        self._refresh_blocks(batch)
        self._refresh_sequences(batch)
        self._workers.run()
        self._states.end(ends)
        for name, (node, buffer) in self._tape.taps.items():
            self._seen[name].append(_view(buffer, outputs if node.rows == OUTPUT_ROWS else rows, node.width).copy())
        return _view(self._tape.logits, outputs, self.vocab_size)

    def taps(self) -> dict[str, F32]:
        return {name: np.concatenate(parts) for name, parts in self._seen.items()}

    def _page_tables(self, batch: Batch) -> tuple[list[int], list[int] | int]:
        """Each row's page table, and what ``tape.ALSO`` says of it.

        A table moves when it grows, so all grow before any address is taken."""
        tables = {sequence: self._pages.table(sequence, length) for sequence, length in lengths(batch).items()}
        return [tables[sequence] for sequence in batch.sequences], self._more(batch.also, tables)

    def _more(self, also: Sequence[Sequence[int]], tables: Mapping[int, int]) -> list[int] | int:
        """Addresses of lists of page tables that end with a 0, one for each row; 0 if no row has one."""
        if not any(also):
            return 0
        flat: list[int] = []
        starts = []
        for sequences in also:
            starts.append(len(flat))
            flat += [*(tables[sequence] for sequence in sequences), 0]
        self._more_tables = np.array(flat, np.int64)
        return [address(self._more_tables) + 8 * start for start in starts]

    def _fill(self, batch: Batch) -> None:
        """The rows of tables that a pass begins with."""
        count = len(batch.tokens)
        wanted = {"embed": batch.tokens, "positions": batch.positions, "first_row": (0,) * count}
        for node, target in self._tape.filled:
            table, rows = node["table"], _rows_in(target, count)
            with default_rounding():
                decoded = by_type(table.ggml_type, table.name).decode(table.data[np.array(wanted[node.op], np.int64)])
            rows[:, : decoded.shape[1]] = decoded

    def _refresh_spans(self, batch: Batch) -> None:
        """Where each row's sequence ends, and which rows the mean of each output row is over."""
        spans, ends = whole_spans(batch, goes_on=self._tape.given is not None), lengths(batch)
        self._rows[2, : len(batch.tokens)] = [ends[sequence] for sequence in batch.sequences]
        for number, output in enumerate(batch.outputs):
            self._tape.spans[number] = span_words(*spans[batch.sequences[output]])

    def _refresh_tables(self, positions: Sequence[int]) -> None:
        for rope, slot in self._tape.ropes:
            turned = self._tables.setdefault(rope, rope_tables.Turned(rope))
            self._program[slot] = address(turned.of(positions))

    def _refresh_blocks(self, batch: Batch) -> None:
        """Runs of rows that follow one another in one sequence, cut so that a run fills one tile of query rows."""
        for group, slot in self._tape.groups:
            blocks = runs(batch, max(1, TILE // group))
            table = self._blocks[slot]
            table[: len(blocks)] = blocks
            self._program[slot], self._program[slot + 1] = address(table), len(blocks)
        self._refresh_parts(batch)

    def _refresh_sequences(self, batch: Batch) -> None:
        """The rows of each sequence, which may lie anywhere in the batch, and where its recurrent states are."""
        if not self._states.states:
            return
        rows: dict[int, list[int]] = {}
        for t, sequence in enumerate(batch.sequences):
            rows.setdefault(sequence, []).append(t)
        first = 0
        for number, (sequence, own) in enumerate(rows.items()):
            self._order[first : first + len(own)] = own
            self._sequences[number] = first, len(own), address(self._states.memory(sequence))
            first += len(own)
        self._program[tape.SEQUENCE_COUNT] = len(rows)

    def _refresh_parts(self, batch: Batch) -> None:
        """Whether chunks of keys are computed each by itself: where there are too few heads for the threads."""
        chunks = max(batch.positions) // CHUNK + 1
        blocks = {group: int(self._program[slot + 1]) for group, slot in self._tape.groups}
        units = [blocks[spec.heads // spec.kv_heads] * attention_units(spec) for spec in self._attention]
        split = self._threads > 1 and chunks > 1 and 0 < min(units, default=0) < 2 * self._threads
        self._program[tape.CHUNKS] = chunks if split else 0
        self._program[tape.MODE] = tape.ONE_ROW * (len(batch.tokens) == 1) + tape.SPLIT * split
        if split:
            sizes = (count * part_bytes(spec) for count, spec in zip(units, self._attention, strict=True))
            needed = chunks * max(sizes)
            if len(self._parts) < needed:
                self._parts = allocate(2 * needed)
            self._program[tape.PARTS] = address(self._parts)

    # ---- the rest of base.Program

    def candidates(self, row: F32, k: int, floor: float) -> tuple[NDArray[Any], F32]:
        """See ``reference.candidates``."""
        return self._candidates.find(row, k, floor)

    def exp(self, x: F32) -> F32:
        """See ``base.Program.exp``; called under IEEE defaults."""
        memory = allocate(8 * round_up(len(x), TILE)).view(np.float32)
        source, out = memory[: len(memory) // 2], memory[len(memory) // 2 :]
        source[: len(x)] = x
        self._kernels.exp_row(address(source), address(out), len(x))
        return out[: len(x)]

    def close(self) -> None:
        self._workers.close()
        if self._pack is not None:
            self._pack.close()


def _room_for_states(size: int) -> NDArray[np.uint8]:
    """Zeroed memory for the recurrent states of one sequence, or a copy of them."""
    try:
        return allocate_huge(size)
    except MemoryError:
        raise OutOfMemory(f"no memory for the recurrent states of another sequence ({size / 2**20:.0f} MiB)") from None


def _view(buffer: Buffer, rows: int, width: int) -> F32:
    """float32 [rows, width] of a buffer of activations, where it lies."""
    return _rows_in(buffer, rows)[:, :width]


def _rows_in(buffer: Buffer, rows: int) -> F32:
    """The first rows of a buffer of activations, with what pads them, where they lie."""
    stride = buffer.stride // 4
    return buffer.data.view(np.float32)[: rows * stride].reshape(rows, stride)
