"""Chat templates that reach for Python, run without end, or grow without end. Each comes in a model that is sound.

``UNSAFE``, ``DEEP`` and ``ENDLESS`` are templates by themselves, for whoever tests another sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.attacks.attack import Attack
from conformance.attacks.tiny_model import TOKENS, tiny_model

KEY = "tokenizer.chat_template"
ASK = ("conformance.attacks.use", "ask", "m.gguf")
RUN = ("kinetic", "run", "m.gguf", "Hi", "-n", "1", "--device", "reference", "-q")
SECONDS = 15
"""A template may take two million steps, some three seconds on a slow machine."""


def attacks() -> Iterator[Attack]:
    yield from _endless()  # first: they take longest
    for number, source in enumerate(UNSAFE):
        what = f"A template that reaches for Python: {source}"
        yield _attack(f"python-{number:02}", [48], what, source, "TemplateError TEMPLATE_UNSAFE:")
        if number % 8 == 0:
            yield _attack(f"python-{number:02}-run", [48], what, source, "not safe to run")._replace(arguments=RUN)
    for name, source in INCLUDES.items():
        what = f"A template that uses {name}."
        yield _attack(name, [51], what, source, "TemplateError TEMPLATE_INCLUDES:")
    for name, source in DEEP.items():
        what = f"A template that nests without end: {name}."
        yield _attack(f"deep-{name}", [50], what, source, "TemplateError TEMPLATE_TOO_DEEP:")
    yield _attack("large", [51], "A template of more than 256 KiB.", "x" * (2**18 + 1), "TEMPLATE_TOO_LARGE:")
    yield from _chance()
    for name, value in [("number", 3), ("list", ["x"]), ("flag", True)]:
        what = f"A template that is a {name}."
        yield Attack(f"template-{name}", [51], what, ASK, _file(tiny_model({KEY: value})), 11, "TEMPLATE_NOT_TEXT:")


def _file(data: bytes) -> Callable[[Path], None]:
    def write(at: Path) -> None:
        (at / "m.gguf").write_bytes(data)

    return write


def _attack(name: str, numbers: list[int], what: str, source: str, reason: str, code: int = 11) -> Attack:
    def write(at: Path) -> None:
        (at / "m.gguf").write_bytes(tiny_model({KEY: source}))

    return Attack(f"template-{name}", numbers, what, ASK, write, code, reason, seconds=SECONDS)


def _endless() -> Iterator[Attack]:
    for name, (reason, source) in ENDLESS.items():
        what = f"A template that asks for too much: {name}."
        yield _attack(f"endless-{name}", [49], what, source, f"LimitExceeded {reason}", 14)
    source = ENDLESS["number"][1]
    what = "The same as a user meets it."
    yield _attack("endless-run", [49], what, source, "chat template", 14)._replace(arguments=RUN)


def _chance() -> Iterator[Attack]:
    """52: nothing is drawn, and the time is an input that is recorded."""
    what = "A template that draws at random."
    yield _attack("random", [52], what, "{{ [1, 2]|random }}", "TEMPLATE_SYNTAX:")
    yield _attack("lipsum", [52], what, "{{ lipsum() }}", "TEMPLATE_FAILED:")
    what = "A template that prints where an object lies in memory."
    yield _attack("address", [52], what, "{{ namespace(a=1) }}", "TEMPLATE_UNSAFE:")
    what = "A template that asks for the time gets the one it is told."
    source = "{{ strftime_now('%H%M') }}"
    said = f"prompt {[TOKENS.index(digit) for digit in '1509']}"
    yield _attack("clock", [52], what, source, said, 0)


UNSAFE = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['']|map(attribute='__class__')|list }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "{{ namespace.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].pop('role') }}",
    "{{ [1]|map('string') }}",
    "{{ ''.upper }}",
    "{{ ''.upper ~ '' }}",
    "{{ ''.upper|string }}",
    "{{ namespace(a=1) }}",
    "{{ 'a'.translate({97: 'b'}) }}",
    "{{ 'a'.encode().hex() }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ joiner.__init__.__globals__.__builtins__.open('ran', 'w') }}",
    "{% set x = strftime_now.__self__ %}{{ x }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ (tojson or raise_exception).__code__ }}",
]
"""Each must be refused without any of it being run."""

INCLUDES = {
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as y %}",
    "from-import": "{% from 'x' import y %}",
    "extends": "{% extends 'x' %}",
}

LEVELS = 3000
DEEP = {
    "brackets": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "lists": "{{ " + "[" * LEVELS + "]" * LEVELS + " }}",
    "not": "{{ " + "not " * LEVELS + "1 }}",
    "sums": "{{ " + "+".join("1" * LEVELS) + " }}",
    "attributes": "{{ a" + ".b" * LEVELS + " }}",
    "ifs": "{% if 1 %}" * LEVELS + "{% endif %}" * LEVELS,
    "filters": "{{ 1" + "|abs" * LEVELS + " }}",
}

_NEST = "{% set a = namespace(v=[1, 1]) %}{% for i in range(60) %}{% set a.v = [a.v, a.v] %}{% endfor %}"
_DOUBLE = "{{% set n = namespace(s='aaaaaaaa') %}}{{% for i in range(60) %}}{{% set n.s = {} %}}{{% endfor %}}"

GROWS = "TEMPLATE_SIZE: the chat template builds too much text"
"""Counted beforehand; where memory itself runs out, the name is the same, but not the sentence."""
WIDE = "TEMPLATE_SIZE: the chat template asks for a width"

ENDLESS = {
    "loops": ("TEMPLATE_STEPS", "{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"),
    "macro": ("TEMPLATE_STEPS", "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(40) }}"),
    "nest": ("TEMPLATE_STEPS", _NEST + "{{ a.v|tojson }}"),
    "sum": (GROWS, _DOUBLE.format("n.s + n.s")),
    "joined": (GROWS, _DOUBLE.format("n.s ~ n.s")),
    "replace": (GROWS, _DOUBLE.format("n.s|replace('a', 'aa')")),
    "format": (GROWS, _DOUBLE.format("'{0}{0}'.format(n.s)")),
    "output": (GROWS, "{% for i in range(9999) %}" + "x" * 99_999 + "{% endfor %}"),
    "range": ("TEMPLATE_SIZE", "{% for a in range(1000000000) %}{% endfor %}"),
    "text": (GROWS, "{{ 'a' * 10000000000 }}"),
    "list": (GROWS, "{{ [1] * 10000000000 }}"),
    "number": ("TEMPLATE_SIZE", "{{ 9 ** 9999999 }}"),
    "squares": (
        "TEMPLATE_SIZE",
        "{% set n = namespace(x=3) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    ),
    "center": (WIDE, "{{ 'a'.center(1000000000) }}"),
    "width": ("TEMPLATE_SIZE", "{{ '{:>1000000000}'.format('a') }}"),
    "percent": ("TEMPLATE_SIZE", "{{ '%1000000000d' % 1 }}"),
    "star": ("TEMPLATE_SIZE", "{{ '%*d' % (1000000000, 1) }}"),
    "slices": (WIDE, "{{ []|slice(1000000000)|list }}"),
    "batch": (WIDE, "{{ [1]|batch(1000000000, 'x')|list }}"),
    "json": ("TEMPLATE_SIZE", "{{ [1]|tojson(indent=1000000000) }}"),
    "bytes": (WIDE, "{{ (5).to_bytes(1000000000, 'big') }}"),
    "recursion": ("TEMPLATE_RECURSION", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    "loop-recursion": ("TEMPLATE_RECURSION", "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}"),
}
"""How the refusal begins, and the template."""
