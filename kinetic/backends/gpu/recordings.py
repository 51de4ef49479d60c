"""Passes that a device runs again by itself: recorded once a shape, replayed with other inputs (docs/adr/0015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kinetic.backends.gpu.device import Device, Recording
from kinetic.backends.gpu.inputs import Layout

MOST = 16
"""Recordings that are kept."""


class Stretch(NamedTuple):
    """Steps of a pass. Those that can be recorded ask for launches and copies only, the same ones in every pass of a
    shape."""

    is_recordable: bool
    run: Callable[[], None]


class Recordings:
    """The first pass of a shape runs plainly: it makes room and builds kernels. The second is recorded.

    A recording holds as long as nobody takes memory of the device: then something may have moved."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[Layout, list[Recording | None]] = {}  # the one used last is the last
        self._allocations = device.allocations
        self._works = True
        self.replayed = 0
        """Passes that were replayed."""

    def run(self, layout: Layout, stretches: Sequence[Stretch]) -> None:
        """One pass. Whatever ends it early, no recording is kept."""
        if self._allocations != self._device.allocations:
            self._kept.clear()
        found = self._kept.pop(layout, None)
        self._allocations = self._device.allocations
        try:
            if found is not None:
                self.replayed += 1
                for recording, stretch in zip(found, stretches, strict=True):
                    self._replay(recording, stretch)
            elif layout.passes and self._works:
                found = [self._recorded(stretch) for stretch in stretches]
            else:
                for stretch in stretches:
                    stretch.run()
        except BaseException:
            self._kept.clear()
            raise
        layout.passes += 1
        if self._allocations != self._device.allocations:
            self._kept.clear()
        elif found is not None and self._works:
            while len(self._kept) >= MOST:
                del self._kept[next(iter(self._kept))]
            self._kept[layout] = found

    def _replay(self, recording: Recording | None, stretch: Stretch) -> None:
        if recording is None or self._allocations != self._device.allocations:  # a step before took memory
            stretch.run()
        else:
            self._device.replay(recording)

    def _recorded(self, stretch: Stretch) -> Recording | None:
        """Run a stretch by way of a recording, if it has one. What took memory may have moved what it holds."""
        recording = None
        if stretch.is_recordable and self._works:
            recording = self._device.record(stretch.run)
            self._works = recording is not None
        self._replay(recording, stretch)
        return recording
