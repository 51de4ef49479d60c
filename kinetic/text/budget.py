"""What rendering a chat template may cost, and what the operations in it cost.

Time is counted in steps, memory in characters, never in seconds, so that a
template is refused on every machine or on none.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

from kinetic.errors import LimitExceeded

STEPS, STEPS_PER_MESSAGE = 2_000_000, 5_000
"""Loop turns and visited values: two or three seconds. Real templates need some 150 for each message, but one looks
through all earlier messages at each."""
CALL_STEPS = 10
"""A call goes through several layers of jinja2, so it costs more than a loop turn."""
CHARACTERS, TIMES_EACH = 1 << 26, 100
"""Characters handled in all, which bounds the memory in use and the output. Real templates look at a text up to 20
times."""
MAX_WIDTH = 100_000
"""Largest number a template may pass to a string method or a padding filter."""
MAX_INTEGER_BITS = 4096


def too_large(what: str) -> LimitExceeded:
    return LimitExceeded(f"the chat template {what}", name="TEMPLATE_SIZE")


class Budget:
    """What one rendering may still spend, given the size of its conversation."""

    def __init__(self, messages: int = 0, characters: int = 0) -> None:
        self.steps = STEPS + messages * STEPS_PER_MESSAGE
        self.characters = CHARACTERS + characters * TIMES_EACH

    def step(self, count: int = 1) -> None:
        """Pay for ``count`` small pieces of work, or raise LimitExceeded TEMPLATE_STEPS."""
        self.steps -= count
        if self.steps < 0:
            raise LimitExceeded("the chat template runs for too long", name="TEMPLATE_STEPS")

    def handle(self, characters: int) -> None:
        """Pay for reading or copying text, or raise LimitExceeded TEMPLATE_SIZE."""
        self.characters -= characters
        if self.characters < 0:
            raise too_large("builds too much text")

    def measure(self, value: Any) -> int:
        """Pay for looking at ``value`` and all inside it, and return the characters inside.

        Only plain data may be looked at: the text of other objects holds memory
        addresses, which would differ from run to run. An iterator is paid item by item (``counted``).
        """
        before = self.characters
        if isinstance(value, Iterator):
            return 0
        pending = [value]
        while pending:
            item = pending.pop()
            self.step()
            if isinstance(item, str):
                self.handle(len(item))
            elif isinstance(item, list | tuple | range | KeysView | ValuesView | ItemsView):
                self.step(len(item))
                pending += item
            elif isinstance(item, dict):
                self.step(len(item))
                pending += [*item.keys(), *item.values()]
            elif item is not None and not isinstance(item, int | float | Undefined):
                raise SecurityError(f"a {type(item).__name__} is not data")
        return before - self.characters

    def counted(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, each paid for when it is drawn."""
        for item in items:
            self.measure(item)
            yield item


budget: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering that runs in this thread."""


def check_widths(values: Iterable[Any]) -> None:
    """Numbers that ask a function for so many characters or items."""
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise too_large(f"asks for a width above {MAX_WIDTH}")


def pay_format(pattern: str, values: Any) -> None:
    """``pattern % values`` or ``pattern.format(values)``, where each field may repeat every value."""
    if re.search(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{", pattern):
        raise too_large("formats with an unbounded width")
    fields = pattern.count("%") + pattern.count("{")
    spending = budget.get()
    spending.handle(fields * (10_000 + spending.measure(values)))


def pay_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        budget.get().handle(text.count(old) * len(new))


def pay_join(separator: Any, items: Any) -> None:
    length = len(str(separator))
    if isinstance(items, Iterator) and length > 1000:
        raise too_large("joins with a long separator")
    budget.get().handle(length * (MAX_WIDTH if isinstance(items, Iterator) else len(items)))


def pay_string_method(owner: str, name: str, values: list[Any]) -> None:
    """A method of ``owner`` with all its arguments, before it runs, by the size of what it may return."""
    spending = budget.get()
    spending.handle(len(owner))
    check_widths(values)
    if name in ("format", "format_map"):
        pay_format(owner, values)
        return
    for value in values:
        spending.measure(value)
    if name == "replace" and len(values) >= 2:
        pay_replace(owner, values[0], values[1])
    elif name == "join" and values:
        pay_join(owner, values[0])
    elif name == "translate":
        raise SecurityError("str.translate is not available")
    elif name in ("expandtabs", "center", "ljust", "rjust", "zfill"):
        width = max([value for value in values if isinstance(value, int)], default=8)
        spending.handle(width * (owner.count("\t") if name == "expandtabs" else 1))


def pay_operator(operator: str, left: Any, right: Any) -> None:
    """``+ * ** %`` before it runs. Integers stay short, strings and lists are paid for."""
    spending = budget.get()
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INTEGER_BITS:
            raise too_large("computes with large numbers")
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                spending.handle(len(value) * max(times, 0))
    elif operator == "+":
        for value in (left, right):
            spending.handle(len(value) if isinstance(value, str | list | tuple) else 0)
    elif operator == "%" and isinstance(left, str):
        pay_format(left, right)


def pay_filter(name: str, values: list[Any], options: dict[str, Any]) -> None:
    """What a filter costs beyond looking at its arguments. ``values`` starts with the filtered value."""
    spending = budget.get()
    every = [*values[1:], *options.values()]
    if name in ("slice", "batch"):
        check_widths(every)
        spending.step(sum(value for value in every if isinstance(value, int)))
    elif name == "indent":
        width = every[0] if every else 4
        check_widths(every)
        size = width if isinstance(width, int) else len(str(width))
        spending.handle(size * (1 + str(values[0]).count("\n")))
    elif name == "join" and every:
        pay_join(every[0], values[0])
    elif name == "replace" and len(every) >= 2:
        pay_replace(str(values[0]), every[0], every[1])
    elif name == "format":
        pay_format(str(values[0]), every)
