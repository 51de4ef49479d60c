"""DRY ("don't repeat yourself"): a penalty for tokens that would make a repetition of what was said longer.

Source: p-e-w's proposal (oobabooga/text-generation-webui, pull request 5677), with llama.cpp's steps and bits. A
token that followed an earlier copy of the last n tokens gets ``multiplier * base^(n - allowed length)`` taken from
its logit, n at least the allowed length. Breakers bound n: no copy reaches back over the last of them.

The work grows with the window as such, never with its square: one pass for breakers, one for copies (the Z function
of the reversed window), one for penalties.
"""

from __future__ import annotations

from collections.abc import Sequence

LIMIT = 2.0**128
"""Powers of the base stay below it: the largest one there is holds for all longer repetitions."""

Breakers = Sequence[tuple[int, ...]]
"""Runs of tokens, each a token in which a breaker ends or begins, and the tokens that complete it."""


class Trie(dict[int, "Trie"]):
    """Runs of tokens by their first tokens. ``is_end`` where one of them ends."""

    is_end = False

    @classmethod
    def of(cls, runs: Breakers) -> Trie:
        root = cls()
        for run in runs:
            node = root
            for token in run:
                node = node.setdefault(token, cls())
            node.is_end = True
        return root

    def holds(self, token: int) -> bool:
        """Whether the token is a run by itself."""
        return token in self and self[token].is_end


def penalties(window: Sequence[int], multiplier: float, base: float, allowed: int, breakers: Trie) -> dict[int, float]:
    """What to take from which token's logit, in binary64; the last token of ``window`` is the newest."""
    if len(window) <= allowed or (limit := reach(window, breakers)) < allowed:
        return {}
    longest = repeats(window, limit, allowed)
    steps = powers(base, max(longest.values(), default=0) - allowed)
    last = len(steps) - 1
    return {
        token: multiplier * steps[min(length - allowed, last)]
        for token, length in longest.items()
        if not breakers.holds(token)
    }


def reach(window: Sequence[int], breakers: Trie) -> int:
    """How many tokens stand behind the last breaker in the window; all of them if there is none.

    That breaker is the one whose first token is the newest; of several that begin there the longest counts.
    """
    for start in range(len(window) - 1, -1, -1) if breakers else ():
        node, end, at = breakers, 0, start
        while at < len(window) and window[at] in node:
            node, at = node[window[at]], at + 1
            if node.is_end:
                end = at
        if end:
            return len(window) - end
    return len(window)


def repeats(window: Sequence[int], limit: int, allowed: int) -> dict[int, int]:
    """For each token that followed a copy of the newest tokens: the length of its longest copy, at most ``limit``.

    Only copies of ``allowed`` tokens or more count.
    """
    newest_first = window[::-1]
    longest: dict[int, int] = {}
    for place, length in enumerate(z_function(newest_first)[1:]):
        length, follower = min(length, limit), newest_first[place]
        if length >= allowed and length > longest.get(follower, -1):
            longest[follower] = length
    return longest


def z_function(tokens: Sequence[int]) -> list[int]:
    """For each place how many tokens from there on equal those from the start on; 0 for the start itself.

    Source: Gusfield, "Algorithms on Strings, Trees and Sequences", 1.3. Each token is matched once at most.
    """
    n, left, right = len(tokens), 0, 0
    lengths = [0] * n
    for place in range(1, n):
        length = min(lengths[place - left], right - place) if place < right else 0
        while place + length < n and tokens[length] == tokens[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths


def powers(base: float, most: int) -> list[float]:
    """1, base, base * base ... by one binary64 product each, up to exponent ``most`` or to the last one below LIMIT."""
    steps = [1.0]
    while len(steps) <= most and (power := steps[-1] * base) < LIMIT:
        steps.append(power)
    return steps
