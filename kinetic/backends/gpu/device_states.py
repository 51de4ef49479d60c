"""Recurrent states that stay on a device from pass to pass; marks and snapshots lie on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinetic.backends.base import State
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.states import U8, StateStore


class DeviceStates(StateStore):
    """Each sequence has a place on the device beside its memory on the host, and one of them may be older. What is
    asked for on the host is fetched first, what was changed there is brought to the device before the next pass."""

    def __init__(self, device: Device, states: Sequence[State]) -> None:
        super().__init__(states)
        self._device = device
        self._arena: Memory = None
        self._room = 0
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        self._old_on_host: set[int] = set()
        self._old_on_device: set[int] = set()

    # ---- on the device

    @property
    def arena(self) -> Memory:
        """float32 [places, size / 4]."""
        return self._arena

    def places(self, sequences: Iterable[int]) -> list[int]:
        """Where the states of these sequences are: up to date now, and about to be changed. Raises OutOfMemory."""
        out = []
        for sequence in sequences:
            if sequence not in self._places:
                if not self._free:
                    self._grow()
                self._places[sequence] = self._free.pop()
                self._old_on_device.add(sequence)
            if sequence in self._old_on_device:
                self._device.write(self._arena, super().memory(sequence), self._places[sequence] * self.size)
                self._old_on_device.discard(sequence)
            self._old_on_host.add(sequence)
            out.append(self._places[sequence])
        return out

    def _grow(self) -> None:
        room = max(2, 2 * self._room)
        new = self._device.memory(room * self.size)
        if self._room:
            self._device.copy(new, self._arena, self._room * self.size)
        self._free += range(room - 1, self._room - 1, -1)
        self._arena, self._room = new, room

    def close(self) -> None:
        """Give back the memory there."""
        self._arena = None

    # ---- on the host

    def memory(self, sequence: int) -> U8:
        memory = self.to_read(sequence)
        self._old_on_device.add(sequence)
        return memory

    def to_read(self, sequence: int) -> U8:
        memory = super().memory(sequence)
        if sequence in self._old_on_host:
            self._device.read(self._arena, memory, self._places[sequence] * self.size)
            self._old_on_host.discard(sequence)
        return memory

    def to_fill(self, sequence: int) -> U8:
        self._old_on_host.discard(sequence)
        return self.memory(sequence)

    def forget(self, sequence: int) -> None:
        super().forget(sequence)
        if sequence in self._places:
            self._free.append(self._places.pop(sequence))
        self._old_on_host.discard(sequence)
        self._old_on_device.discard(sequence)
