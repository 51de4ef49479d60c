"""A forward pass as a graph: ``GraphOps`` offers ``base.Ops`` and writes down what it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kinetic.backends.base import Attention, Delta, Experts, Forward, Rope, Routing, Scan, State, Weight
from kinetic.errors import KineticError

ALL_ROWS, OUTPUT_ROWS = 0, 1


@dataclass(eq=False)
class Node:
    """One activation, float32 [rows, width]. ``uses`` are the nodes that read it."""

    op: str
    width: int
    inputs: tuple[Node, ...] = ()
    rows: int = ALL_ROWS
    values: dict[str, Any] = field(default_factory=dict)
    uses: list[Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class GraphOps:
    """Each method appends one node; nothing is computed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _expect(self, is_right: bool, what: str) -> None:
        """Kernels count on widths, so a graph with others is refused. Families check the shapes in a file before."""
        if not is_right:
            raise KineticError(f"the widths of {what} do not fit together", name="WRONG_WIDTH")

    def _node(self, op: str, width: int, *inputs: Node, **values: Any) -> Node:
        rows = inputs[0].rows if inputs else ALL_ROWS
        node = Node(op, width, inputs, OUTPUT_ROWS if op in ("outputs", "average") else rows, values)
        for source in inputs:
            source.uses.append(node)
        self.nodes.append(node)
        return node

    def embed(self, table: Weight) -> Node:
        return self._node("embed", table.shape[1], table=table)

    def softcap(self, x: Node, cap: float) -> Node:
        return self._node("softcap", x.width, x, cap=cap)

    def positions(self, table: Weight) -> Node:
        return self._node("positions", table.shape[1], table=table)

    def first_row(self, table: Weight) -> Node:
        return self._node("first_row", table.shape[1], table=table)

    def scale(self, x: Node, factor: float) -> Node:
        return self._node("scale", x.width, x, factor=factor)

    def rms_norm(self, x: Node, weight: Weight, eps: float) -> Node:
        self._expect(x.width % weight.shape[-1] == 0, f"a norm and '{weight.name}'")
        self._expect(
            len(weight.shape) == 1 or weight.shape[0] * weight.shape[1] == x.width, f"a norm and '{weight.name}'"
        )
        return self._node("norm", x.width, x, weight=weight, eps=eps)

    def layer_norm(self, x: Node, weight: Weight, bias: Weight | None, eps: float) -> Node:
        self._expect((x.width,) == weight.shape, f"a norm and '{weight.name}'")
        return self._node("layer_norm", x.width, x, weight=weight, bias=bias, eps=eps)

    def linear(self, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        self._expect(x.width == weight.shape[1], f"a product and '{weight.name}'")
        self._expect(bias is None or bias.shape == weight.shape[:1], f"a bias and '{weight.name}'")
        return self._node("linear", weight.shape[0], x, weight=weight, bias=bias)

    def linear_heads(self, x: Node, weight: Weight) -> Node:
        self._expect(x.width == weight.shape[0] * weight.shape[2], f"a product and '{weight.name}'")
        return self._node("linear_heads", weight.shape[0] * weight.shape[1], x, weight=weight)

    def cut(self, x: Node, heads: int, first: int, count: int) -> Node:
        self._expect(x.width % heads == 0 and first + count <= x.width // heads, "a cut")
        return self._node("cut", heads * count, x, heads=heads, first=first, count=count)

    def join(self, x: Node, y: Node, heads: int, shared: bool = False) -> Node:
        width = x.width + (heads * y.width if shared else y.width)
        return self._node("join", width, x, y, heads=heads, shared=shared)

    def add(self, x: Node, y: Node) -> Node:
        self._expect(x.width == y.width, "a sum")
        return self._node("add", x.width, x, y)

    def mul(self, x: Node, y: Node) -> Node:
        self._expect(x.width == y.width, "a product of elements")
        return self._node("mul", x.width, x, y)

    def activate(self, x: Node, activation: str) -> Node:
        return self._node("activate", x.width, x, activation=activation)

    def gated(self, gate: Node, up: Node, activation: str) -> Node:
        self._expect(gate.width in (1, up.width), "a gate")
        return self._node("gated", up.width, gate, up, activation=activation)

    def route(self, logits: Node, routing: Routing, bias: Weight | None = None, factors: Weight | None = None) -> Node:
        return self._node("route", 2 * routing.used, logits, routing=routing, bias=bias, factors=factors)

    def experts(self, x: Node, routes: Node, experts: Experts) -> Node:
        inner, outer = experts.up.shape[1], experts.down.shape
        self._expect((x.width, inner) == (experts.up.shape[2], outer[2]), "a mixture")
        return self._node("experts", experts.down.shape[1], x, routes, experts=experts)

    def rope(self, x: Node, rope: Rope, head_dim: int) -> Node:
        self._expect(x.width % head_dim == 0, "a rotation")
        return self._node("rope", x.width, x, rope=rope, head_dim=head_dim)

    def attend(self, q: Node, k: Node | None, v: Node | None, spec: Attention, sinks: Weight | None = None) -> Node:
        stored = () if k is None or v is None else (k, v)
        widths = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.value_width)
        fit = all(side.width == width for side, width in zip((q, *stored), widths, strict=False))
        self._expect(fit and spec.heads % spec.kv_heads == 0, f"attention in layer {spec.layer}")
        return self._node("attend", spec.heads * spec.value_width, q, *stored, spec=spec, sinks=sinks)

    def short_conv(self, x: Node, weight: Weight, bias: Weight | None, state: State, activation: str) -> Node:
        self._expect((x.width, state.shape[0] + 1) == weight.shape, f"a convolution and '{weight.name}'")
        return self._node("short_conv", x.width, x, weight=weight, bias=bias, state=state, activation=activation)

    def scan(self, x: Node, dt: Node, spec: Scan, state: State) -> Node:
        inner = spec.heads * spec.head_dim + 2 * spec.groups * spec.size
        self._expect((x.width, dt.width) == (inner, spec.heads), "a scan")
        return self._node("scan", spec.heads * spec.head_dim, x, dt, spec=spec, state=state)

    def delta(self, q: Node, k: Node, v: Node, gate: Node, beta: Node, spec: Delta) -> Node:
        keys, values = spec.key_heads * spec.width, spec.heads * spec.width
        widths = (keys, keys, values, spec.heads, spec.heads)
        self._expect(tuple(side.width for side in (q, k, v, gate, beta)) == widths, "a recurrence")
        return self._node("delta", v.width, q, k, v, gate, beta, spec=spec)

    def given(self, width: int) -> Node:
        return self._node("given", width)

    def outputs(self, x: Node) -> Node:
        return self._node("outputs", x.width, x)

    def average(self, x: Node) -> Node:
        return self._node("average", x.width, x)

    def tap(self, x: Node, name: str) -> Node:
        self._node("tap", x.width, x, name=name)
        return x


def trace(forward: Forward) -> list[Node]:
    """The nodes of a forward pass, in the order in which it asks for them."""
    ops = GraphOps()
    forward(ops)
    return ops.nodes


def matrices(nodes: Iterable[Node]) -> list[Weight]:
    """The weights of all products, in the order of the nodes."""
    out: list[Weight] = []
    for node in nodes:
        if node.op in ("linear", "linear_heads"):
            out.append(node["weight"])
        elif node.op == "experts":
            out += [weight for weight in node["experts"][:3] if weight is not None]
    return out
