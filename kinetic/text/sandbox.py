"""A jinja2 environment for templates of unknown origin: no way out, and a budget for time and memory.

jinja2's sandbox keeps a template away from Python's internals but lets it loop
and double strings for as long as it likes. Here loop turns, calls and values
that are compared, joined or printed are paid from a budget. The payments are
woven into the syntax tree before jinja2 compiles it, so no template gets around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

from kinetic.text.budget import CALL_STEPS, budget, check_widths, pay_filter, pay_operator, pay_string_method

CONSTANT_TIME = frozenset("abs attr count d default first float int last length round".split())
SHALLOW = frozenset("batch items list map reject rejectattr reverse select selectattr slice".split())
DEEP = frozenset(
    "capitalize dictsort e escape forceescape format groupby indent join lower max min replace safe sort string "
    "striptags sum title trim truncate unique upper urlencode wordcount".split()
)
"""Filters by how much of their arguments they look at. jinja2's others are missing: they draw at random, print Python
objects or lay out web pages."""
COSTLY_TESTS = frozenset("== != < > <= >= eq equalto ne lt lessthan le gt greaterthan ge in lower upper".split())


class Environment(ImmutableSandboxedEnvironment):
    """What chat templates are written for (the settings of the transformers library), metered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], optimized=False)
        self.finalize = _printable
        kept = CONSTANT_TIME | SHALLOW | DEEP
        self.filters = {name: _metered(function, name) for name, function in self.filters.items() if name in kept}
        self.filters |= {"/tick": _tick, "/measured": _measured, "/copied": _copied}
        for name in COSTLY_TESTS:
            self.tests[name] = _metered(self.tests[name], name)
        del self.globals["lipsum"]  # draws at random

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _metered(function, name)

    def metered(self, template: nodes.Template) -> nodes.Template:
        """The syntax tree with the payments woven in."""
        woven: nodes.Template = _Weaver().visit(template)
        return woven

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        spending = budget.get()
        spending.step(CALL_STEPS)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        values = [*args, *kwargs.values()]
        if isinstance(owner, str):
            pay_string_method(owner, __obj.__name__, values)
        elif isinstance(owner, bytes):
            raise SecurityError("methods of bytes are not available")
        elif isinstance(owner, int | float | list | tuple | dict):
            check_widths(values)
            spending.step(len(owner) if isinstance(owner, list | tuple | dict) else 1)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        pay_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise for an attempt to reach Python; a method that would change a list or dict is merely undefined."""
        if attribute.startswith("_") or not isinstance(obj, list | dict):
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")
        return super().unsafe_undefined(obj, attribute)


class Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only prints what it holds."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tick(characters: int) -> bool:
    """Pay for one turn of a loop or macro whose own text has so many characters. Always true."""
    spending = budget.get()
    spending.step()
    spending.handle(characters)
    return True


def _measured(value: Any) -> Any:
    """Pay for looking at ``value``, and return it."""
    return _counted(value) if isinstance(value, Iterator) else _printable(value)


def _copied(value: Any) -> Any:
    """Pay for a copy of ``value`` that does not go inside its items, and return it."""
    budget.get().handle(len(value) if isinstance(value, str | list | tuple) else 0)
    return value


def _printable(value: Any) -> Any:
    """Pay for turning ``value`` into text, and return it."""
    if isinstance(value, Iterator):
        raise SecurityError("an iterator cannot be printed")
    budget.get().measure(value)
    return value


def _counted(value: Any) -> Any:
    return budget.get().counted(value) if isinstance(value, Iterator) else value


def _metered(function: Any, name: str) -> Callable[..., Any]:
    """A filter or test that pays for its arguments, and for those it reads lazily when it reads them."""
    skipped = 0 if _PassArg.from_obj(function) is None else 1

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        own, values = args[:skipped], list(args[skipped:])
        spending = budget.get()
        spending.step(CALL_STEPS)
        for value in (*values, *kwargs.values()):
            if name in SHALLOW:
                spending.step(len(value) if isinstance(value, str | list | tuple | dict | range) else 1)
            elif name not in CONSTANT_TIME:
                spending.measure(value)
        pay_filter(name, values, kwargs)
        return function(*own, *map(_counted, values), **kwargs)

    return wrapper


class _Weaver(NodeTransformer):
    """Adds payments wherever work could grow: loops, macros, comparisons, joined text, slices."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:
            node.test = nodes.And(_pay("tick", nodes.Const(0)), node.test)
        self._repeated(node)
        return node

    def _repeated(self, node: Any) -> Any:
        own_text = sum(len(data) for item in node.body for data in _own_text(item))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_pay("tick", nodes.Const(own_text))))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _repeated

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        for operand in node.ops:  # whatever stands left, this side alone bounds the work
            operand.expr = _pay("measured", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_pay("measured", item) for item in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _pay("copied", node.node)
        return node


def _own_text(node: nodes.Node) -> Iterable[str]:
    """Fixed text below ``node``, without what inner loops and macros pay for themselves."""
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
        for child in node.iter_child_nodes():
            yield from _own_text(child)


def _pay(filter_name: str, argument: nodes.Expr) -> nodes.Expr:
    """Pass ``argument`` through one of our filters, whose names no template can write after a bar."""
    return nodes.Filter(argument, f"/{filter_name}", [], [], None, None)
