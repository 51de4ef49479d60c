"""Guesses of what comes next, checked many at a time. Whatever is guessed, the answer is that of plain decoding.

    sources propose branches -> a tree of the likeliest -> one pass over all its rows -> tokens drawn as ever

A row of a batch has the bits that it has alone, and a draw depends on nothing but its row and the tokens before it. So
a guess is right iff it is the token drawn there, and guesses can only cost or save time.
"""

from kinetic.engine.drafts.costs import RowCosts
from kinetic.engine.drafts.drafter import Drafter, Tally
from kinetic.engine.drafts.hidden import GAP, BlockSource, HiddenSource
from kinetic.engine.drafts.model import ModelSource
from kinetic.engine.drafts.ngrams import NgramSource
from kinetic.engine.drafts.source import Branch, Rates, Source
from kinetic.engine.drafts.tree import EMPTY, Tree, Trie

__all__ = [
    "EMPTY",
    "GAP",
    "BlockSource",
    "Branch",
    "Drafter",
    "HiddenSource",
    "ModelSource",
    "NgramSource",
    "Rates",
    "RowCosts",
    "Source",
    "Tally",
    "Tree",
    "Trie",
]
