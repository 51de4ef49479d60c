"""Branches as a trie, and the part of it that is worth a pass as a tree of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kinetic.engine.drafts.costs import RowCosts
from kinetic.engine.drafts.source import Branch, Rates

ROOT = -1
"""The row of the last token that is certain."""

HOPELESS = 0.02
"""A guess that is less likely than this is not followed further."""

WORTH = 1.05
"""Tokens to be expected for what a plain step costs, below which nothing is guessed."""


@dataclass(frozen=True)
class Tree:
    """Guesses as rows. ``parents[i]`` is a lower number, or ROOT; siblings are different tokens.

    Each leaf ends a branch. ``branches[i]`` is the first of those that row i is part of, ``also[i]`` are the others;
    the root is part of all ``count`` of them.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()
    also: tuple[tuple[int, ...], ...] = ()
    count: int = 1

    def child(self, node: int, token: int) -> int | None:
        for row in range(node + 1, len(self.tokens)):
            if self.parents[row] == node and self.tokens[row] == token:
                return row
        return None


EMPTY = Tree()


class Trie:
    """All guesses. Node 0 is the root; ``chance`` is that of the whole way to a node."""

    def __init__(self) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.chance = [1.0]
        self._parent, self._token, self._depth = [ROOT], [ROOT], [0]
        self._about: list[tuple[Rates, int] | None] = [None]

    def add(self, branch: Branch, rates: Rates) -> None:
        """Follows what is there, and goes on where the branch goes another way. The first guess of a node keeps it."""
        node = 0
        for token, kind in zip(branch.tokens, branch.kinds, strict=True):
            there = self.children[node].get(token)
            if there is None:
                kind = branch.fork if self.children[node] else kind
                chance = min(self.chance[node] * rates.of(kind), self._left(node))
                if chance < HOPELESS:
                    return
                there = self._node(node, token, chance, (rates, kind))
            node = there

    @property
    def has_guesses(self) -> bool:
        return len(self.chance) > 1

    def expected(self) -> float:
        """How many tokens all guesses together promise."""
        total = -1.0
        for chance in self.chance:
            total += chance
        return total

    def _left(self, node: int) -> float:
        """The chance that none of the guesses after ``node`` is right, but ``node`` is."""
        left = self.chance[node]
        for child in self.children[node].values():
            left -= self.chance[child]
        return max(left, 0.0)

    def _node(self, parent: int, token: int, chance: float, about: tuple[Rates, int]) -> int:
        self.children.append({})
        self.chance.append(chance)
        self._parent.append(parent)
        self._token.append(token)
        self._depth.append(self._depth[parent] + 1)
        self._about.append(about)
        self.children[parent][token] = len(self.chance) - 1
        return len(self.chance) - 1

    def learn(self, tokens: Sequence[int]) -> None:
        """``tokens`` are what came: every guess made on the way was right or wrong, whether it had a row or not."""
        node: int | None = 0
        for token in tokens:
            if node is None:
                return
            for guess, child in self.children[node].items():
                about = self._about[child]
                if about:
                    about[0].note(about[1], guess == token)
            node = self.children[node].get(token)

    def best(
        self,
        costs: RowCosts,
        most: int,
        spent: float = 0.0,
        dearest: float = math.inf,
        *,
        can_branch: bool = True,
    ) -> Tree:
        """The likeliest nodes, as many as promise most tokens for the time; EMPTY if plain decoding does.

        ``most`` is the largest number of rows, the root's included; ``spent`` what was paid for the guesses, and
        ``dearest`` what all may cost, in plain steps.
        """
        order = sorted(range(1, len(self.chance)), key=lambda node: (-self.chance[node], node))
        chosen: list[int] = []
        inner = set()
        expected, forks, rate, size = 1.0, 0, WORTH, 0
        rows, base = 0, 0.0
        for node in order:
            if len(chosen) + 2 > most:
                break
            is_fork = self._parent[node] in inner
            if not can_branch and (is_fork or self._parent[node] != (chosen[-1] if chosen else 0)):
                continue
            inner.add(self._parent[node])
            chosen.append(node)
            forks += is_fork
            expected += self.chance[node]
            if len(chosen) >= rows:
                rows, base = costs.up_to(len(chosen) + 1)
            cost = base + costs.fork * forks + spent
            if expected / cost > rate and cost <= dearest:
                rate, size = expected / cost, len(chosen)
        return self._laid_out(set(chosen[:size])) if size else EMPTY

    def _laid_out(self, chosen: set[int]) -> Tree:
        """Rows in the order of a walk that goes deep first, the likeliest child first."""
        rows: list[tuple[int, int, int]] = []  # node, row of its parent, first branch
        leaves, ends = 0, [0] * len(chosen)
        stack = [(node, ROOT) for node in self._likeliest_last(0, chosen)]
        open_rows: list[int] = []
        while stack:
            node, parent = stack.pop()
            while open_rows and open_rows[-1] != parent:
                ends[open_rows.pop()] = leaves
            rows.append((node, parent, leaves))
            row = len(rows) - 1
            open_rows.append(row)
            below = self._likeliest_last(node, chosen)
            leaves += not below
            stack += [(child, row) for child in below]
        for row in open_rows:
            ends[row] = leaves
        return Tree(
            tokens=tuple(self._token[node] for node, _, _ in rows),
            parents=tuple(parent for _, parent, _ in rows),
            depths=tuple(self._depth[node] for node, _, _ in rows),
            branches=tuple(first for _, _, first in rows),
            also=tuple(tuple(range(first + 1, end)) for (_, _, first), end in zip(rows, ends, strict=True)),
            count=leaves,
        )

    def _likeliest_last(self, node: int, chosen: set[int]) -> list[int]:
        below = [child for child in self.children[node].values() if child in chosen]
        return sorted(below, key=lambda child: (self.chance[child], -child))
