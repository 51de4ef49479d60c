"""Dividing the units of an instruction among threads, in Numba. Imported only by the build process.

Every thread owns an equal range of units and takes them from its front, a few
at a time. A thread that has none left takes from the back of another's range:
so a slow or interrupted thread does not make the others wait. Which thread
computes a unit can't matter, since all of a unit is computed by one thread.

What is left of a range is one word: a pass in 20 bits, the back and the front
in 22 bits each (``tape.MOST_UNITS``). A word of an earlier pass means a range that nobody began.
"""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import inline, share, value_kernel
from kinetic.backends.cpu.emitted import atomic_read, atomic_swap, field

BITS = tape.UNIT_BITS
MASK = (1 << BITS) - 1


@value_kernel
def claim(p, i, thread, threads, total, most):
    """Some of the ``total`` units of instruction i, at most ``most``: first << BITS | count, or 0 if none is left.

    It is half of what is left, so that the last ones are small and all threads end together."""
    line = field(p, tape.WORK) + (i - field(p, tape.CODE)) // tape.INSTRUCTION * threads * 64
    number = field(p, tape.PASS)
    for k in range(threads):
        victim = (thread + k) % threads
        while True:
            word = atomic_read(line + victim * 64)
            front, back = word & MASK, word >> BITS & MASK
            if word >> (2 * BITS) != number:
                front, back = share(total, victim, threads)
            count = min(most, (back - front + 1) // 2)
            if count <= 0:
                break
            first = front if k == 0 else back - count
            if k == 0:
                front += count
            else:
                back -= count
            if atomic_swap(line + victim * 64, word, number << (2 * BITS) | back << BITS | front) != 0:
                return first << BITS | count
    return 0


@inline
def first_of(claimed):
    return claimed >> BITS


@inline
def end_of(claimed):
    return (claimed >> BITS) + (claimed & MASK)
