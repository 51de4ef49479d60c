"""Sequence breakers of DRY as tokens: which runs of a vocabulary's tokens spell a text.

As llama.cpp has it: a token whose bytes hold the whole text is a run by itself. A token whose bytes end with the
beginning of it begins a run, which goes on with the rest as the tokenizer encodes it (ordinary text, no BOS), 20
tokens at most. A rest that begins inside a character begins no run, since no text encodes to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetic.text.tokenizer import Tokenizer

MOST_TOKENS = 20
"""Of a rest; longer ones count as soon as so many are there."""


def breaker_runs(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Every run that spells one of the ``texts``, none of them empty: sorted, none twice."""
    texts = list(texts)
    if not texts:
        return ()
    runs: set[tuple[int, ...]] = set()
    pieces = [tokenizer.piece(token, special=True) for token in range(tokenizer.vocab_size)]
    for text in texts:
        breaker = text.encode()
        rests = _rests(tokenizer, breaker)
        for token, piece in enumerate(pieces):
            if breaker in piece:
                runs.add((token,))
            elif rests:
                runs.update((token, *rest) for size, rest in rests if piece.endswith(breaker[:size]))
    return tuple(sorted(runs))


def _rests(tokenizer: Tokenizer, breaker: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Bytes of each beginning of the breaker, and the tokens of what is then left."""
    found = []
    for size in range(1, len(breaker)):
        try:
            rest = breaker[size:].decode()
        except UnicodeDecodeError:
            continue
        ids = tokenizer.encode(rest, add_special=False, parse_special=False)
        found.append((size, tuple(ids[:MOST_TOKENS])))
    return found
