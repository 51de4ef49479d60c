"""When and how much is guessed: sources are asked while they pay, and left alone for a while when they don't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kinetic.bits import F32
from kinetic.engine.drafts.costs import RowCosts
from kinetic.engine.drafts.hidden import HiddenSource
from kinetic.engine.drafts.model import ModelSource
from kinetic.engine.drafts.source import Source
from kinetic.engine.drafts.tree import EMPTY, Tree, Trie

MOST_ROWS = 64
"""Of one pass."""

LOSS, REGAINED, RESERVE = -2.0, 0.02, 8.0
"""In plain steps: a pass may not cost so much that this would be lost if no guess in it were right; every token gives
back so much; earlier gains excuse no more than this. So guesses that are never right cost 2 % and two steps."""

ENOUGH = 4.0
"""Tokens expected of other guesses, from which on sources that take time are not asked."""

PAUSE = 16
"""Tokens for which a source that uses the device is left alone when it has lost too much; then twice as many."""


@dataclass
class Tally:
    """Of one completion: rows that were guesses, those that were right, and all rows of all passes."""

    drafted: int = 0
    accepted: int = 0
    rows: int = 0
    passes: int = 0


@dataclass
class _Account:
    """What a source has won or lost, and how long it is still left alone."""

    source: Source
    balance: float = 0.0
    pause: int = PAUSE
    rest: int = 0
    spent: float = 0.0
    """By its last proposal, in plain steps."""


@dataclass
class Drafter:
    """The sources of one engine. ``longest`` is the most tokens guessed ahead, and the most rows of guesses."""

    sources: Sequence[Source]
    costs: RowCosts = field(default_factory=RowCosts)
    longest: int = MOST_ROWS - 1
    can_branch: bool = True

    def __post_init__(self) -> None:
        self.tally = Tally()
        self._accounts = [_Account(source) for source in self.sources]
        self._balance = 0.0
        self._trie = Trie()
        self._begun = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self.tally = Tally()
        self._trie = Trie()
        for source in self.sources:
            source.begin(prompt)

    def extend(self, token: int) -> None:
        """One more token is certain."""
        for source in self.sources:
            source.extend(token)

    @property
    def sees(self) -> bool:
        """Whether ``see`` has any use."""
        return any(isinstance(source, HiddenSource) for source in self.sources)

    @property
    def wanted(self) -> int:
        """The first position whose hidden row a source that reads them does not know."""
        return min(source.wanted for source in self.sources if isinstance(source, HiddenSource))

    def read_ahead(self, prompt: Sequence[int]) -> None:
        """Hidden rows of what will probably be a prompt come next: no completion begins yet."""
        for source in self.sources:
            if isinstance(source, HiddenSource):
                source.begin(prompt)

    def see(self, first: int, tokens: Sequence[int], hidden: F32) -> None:
        """The model's hidden rows [n, width] of the certain ``tokens`` at positions from ``first`` on."""
        for source in self.sources:
            if isinstance(source, HiddenSource):
                source.see(first, tokens, hidden)

    def propose(self, history: Sequence[int], longest: int) -> Tree:
        """What to guess after ``history``: a tree of at most ``longest`` levels, or EMPTY."""
        self._forget_guesses()
        self._begun = len(history)
        longest = min(longest, self.longest, MOST_ROWS - 1)
        if longest < 1 or self._balance <= LOSS:
            return EMPTY
        for account in self._accounts:
            if account.rest:
                account.rest -= 1
                continue
            if isinstance(account.source, (HiddenSource, ModelSource)) and self._trie.expected() >= ENOUGH:
                continue
            for branch in account.source.propose(history, longest):
                self._trie.add(branch, account.source.rates)
            seconds = account.source.spent
            plain = self.costs.plain_seconds if seconds else 0.0
            account.spent = seconds / plain if plain else 0.0
        if not self._trie.has_guesses:
            return EMPTY
        dearest = 1.0 + self._balance - LOSS
        return self._trie.best(self.costs, 1 + longest, self._spent(), dearest, can_branch=self.can_branch)

    def _forget_guesses(self) -> None:
        if self._trie.has_guesses:
            self._trie = Trie()

    def _spent(self) -> float:
        """For the proposals of this pass, in plain steps."""
        spent = 0.0
        for account in self._accounts:
            spent += account.spent
        return spent

    def settle(self, history: Sequence[int], tree: Tree, accepted: int) -> None:
        """A pass is over: of the guesses in ``tree`` the first ``accepted`` levels were right."""
        rows = 1 + len(tree.tokens)
        self.tally.drafted += rows - 1
        self.tally.accepted += accepted
        self.tally.rows += rows
        self.tally.passes += 1
        spent = self._spent()
        won = 1 + accepted - self.costs.of(rows) - spent if rows > 1 or spent else 0.0
        self._balance = min(RESERVE, self._balance + won + REGAINED * (1 + accepted))
        for account in self._accounts:
            self._judge(account, won)
        if self._trie.has_guesses:
            self._trie.learn(history[self._begun :])
        self._forget_guesses()

    def _judge(self, account: _Account, won: float) -> None:
        if not account.spent:
            return
        account.balance = min(RESERVE, account.balance + (won if won < 0 else max(won, REGAINED)))
        account.spent = 0.0
        if account.balance < LOSS:
            account.balance, account.rest = 0.0, account.pause
            account.pause = min(2 * account.pause, 64 * PAUSE)
        elif account.balance == RESERVE:
            account.pause = PAUSE
