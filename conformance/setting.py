"""What a run of the suite is about: the device, how much is tried, and the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from conformance.case import Skipped, row_digests
from conformance.recipes import Recipe, numbers
from conformance.recipes.tokenizers import COMMON
from kinetic.api.probe import Probe, describe_backend, others_than
from kinetic.errors import UsageError
from kinetic.types import Request, Step
from receipts.report.shown import whole

TOKENS_SEED = 100
"""Of the tokens that models read; any would do."""

ROWS = {"quick": 66, "normal": 258, "full": 262}
"""Rows tried of a model that the user names."""

PATIENCE = 40
"""Rows that the reference, where it is the device, is asked for below ``full``."""


class Plain(NamedTuple):
    """What plain decoding gives: one row at a time, on one thread, nothing kept from before."""

    rows: list[bytes]
    """BLAKE3 of each row of logits."""
    logits: str
    """BLAKE3 of all of them, float32 little-endian, hex."""


class Subject:
    """A model under test. ``source`` is a recipe, or the file of a user's model."""

    def __init__(self, setting: Setting, source: Recipe | Path) -> None:
        self._setting, self._source = setting, source
        self.recipe = source if isinstance(source, Recipe) else None
        self.name = source.name if isinstance(source, Recipe) else setting.name_of(source)
        self.answers: dict[Request, list[Step]] = {}
        """Of plain decoding, as far as they were asked for."""
        self.rows = source.rows if isinstance(source, Recipe) else ROWS[setting.level]
        if setting.device == "reference" and setting.level != "full":
            self.rows = min(self.rows, PATIENCE)

    @cached_property
    def path(self) -> Path:
        return self._source if isinstance(self._source, Path) else self._source.write(self._setting.folder)

    @cached_property
    def tokens(self) -> list[int]:
        """Those that the model reads, fewer where its context is shorter."""
        return tokens_of(self.rows, COMMON) if self.recipe else self._own_tokens()

    def _own_tokens(self) -> list[int]:
        probe = self.probe()
        return tokens_of(min(self.rows, probe.context - 1), probe.vocab_size)

    @cached_property
    def plain(self) -> Plain:
        """The measure of all things."""
        digests, hasher = [], blake3()
        probe = self.probe()
        for row in probe.feed(self.tokens, [1]):
            digests += row_digests(row)
            hasher.update(np.ascontiguousarray(row, "<f4").view("u1").data)
        return Plain(digests, hasher.hexdigest())

    def probe(self, *, device: str = "", threads: int = 1, isa: str = "") -> Probe:
        """The model opened so, with nothing in its memory. The setting closes it when it opens another."""
        return self._setting.open(self.path, device or self._setting.device, threads, isa)


class Setting:
    """``models`` are files of the user's; without any the built-in ones are tried. Close it when done."""

    def __init__(
        self,
        folder: Path,
        *,
        level: str = "normal",
        device: str = "cpu",
        threads: int = 2,
        models: Sequence[Path] = (),
        news: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.level, self.device, self.threads, self.news = folder, level, device, threads, news
        self.is_quick, self.is_full = level == "quick", level == "full"
        self.models = models
        self._here: dict[str, str] = {}
        self._key: tuple[Path, str, int, str] | None = None
        self._probe: Probe | None = None

    def name_of(self, path: Path) -> str:
        """What cases call a model of the user's: its file's name, and a number where another has the same."""
        number = sum(other.name == path.name for other in self.models[: self.models.index(path)])
        return whole(path.name) + (f"#{number + 1}" if number else "")

    @cached_property
    def others(self) -> list[str]:
        """Devices that are tried beside the one that was asked for: GPUs beside the CPU, the CPU beside a GPU.

        A model of the user's may be large, and GPUs of OpenCL may be processors: there it takes --device.
        """
        return [] if self.models and self.device == "cpu" else others_than(self.device)

    def require(self, device: str) -> None:
        """Raises Skipped, with the reason, where a device is not here or is refused."""
        if device not in self._here:
            try:
                describe_backend(device)
                self._here[device] = ""
            except UsageError as why:
                self._here[device] = str(why)
        if self._here[device]:
            raise Skipped(self._here[device])

    @cached_property
    def subjects(self) -> list[Subject]:
        """The models that most cases are about: the user's, or a built-in one of mixed formats for each family."""
        if self.models:
            return [Subject(self, path) for path in self.models]
        return [subject for subject in self.built_in if self.is_full or subject.name.endswith("-mixed")]

    @cached_property
    def built_in(self) -> list[Subject]:
        """Every built-in model."""
        from conformance.recipes import recipes

        return [Subject(self, recipe) for recipe in recipes().values()]

    def open(self, path: Path, device: str, threads: int, isa: str) -> Probe:
        key = (path, device, threads, isa)
        if self._probe is None or key != self._key:
            self.close()
            self._probe = Probe(path, device=device, threads=threads, isa=isa, progress=self.news)
            self._key = key
        for sequence in range(4):
            self._probe.forget(sequence)
        return self._probe

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
        self._probe = None


def tokens_of(count: int, vocabulary: int, stream: int = 0) -> list[int]:
    """Tokens 3 .. vocabulary - 1 in no order."""
    return numbers.integers(TOKENS_SEED, stream, 3, vocabulary, count)
