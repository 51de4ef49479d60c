"""Which tokens end an answer, worked out from ids and well-known texts as llama.cpp does (b11434).

Files often name one end token only, while the model was trained with several,
so generation would run on. Tokens found by their text count as control tokens
whatever kind the file gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1

END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)

FILL_IN_MIDDLE_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim\u2581begin\uff5c>",
        "<PRE>",
        "\u2581<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<SUF>",
        "\u2581<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<\uff5cfim\u2581end\uff5c>",
        "<MID>",
        "\u2581<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Markers of code completion. Where a vocabulary has several spellings the first of the list counts."""

END_NAMES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""Special ids that end an answer. After a fill-in-the-middle separator comes another file."""

SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Markers of the harmony format, which must stay visible, so they count as user-defined."""

KNOWN_TEXTS = frozenset((*END_TEXTS, *chain(*FILL_IN_MIDDLE_TEXTS.values()), *SHOWN_TEXTS, "<|plamo:eos|>"))
"""Every text whose id this module looks up."""


def find_fill_in_middle(by_text: Mapping[str, int], ids: Mapping[str, int]) -> dict[str, int]:
    """Special name -> id for the code-completion markers that ``ids`` does not name but a text gives away."""
    found = {}
    for name, texts in FILL_IN_MIDDLE_TEXTS.items():
        present = [by_text[text] for text in texts if text in by_text]
        if name not in ids and present:
            found[name] = present[0]
    return found


def end_tokens(by_text: Mapping[str, int], ids: Mapping[str, int], kinds: bytearray) -> frozenset[int]:
    """Ids that end generation. Corrects ``kinds`` in place for the tokens it knows by their text.

    ``by_text``: text -> id of those KNOWN_TEXTS that the vocabulary has; ``ids``: special name -> id.
    """
    ids = dict(ids)
    markers = find_fill_in_middle(by_text, ids)
    by_end_text = {by_text[text] for text in END_TEXTS if text in by_text}
    for token in by_end_text.union(markers.values()):
        kinds[token] = CONTROL
    for text in SHOWN_TEXTS:
        if text in by_text:
            kinds[by_text[text]] = USER_DEFINED
    ids.update(markers)
    named = {ids[name] for name in END_NAMES if name in ids}
    return frozenset((by_end_text | named) - _exceptions(by_text, kinds))


def _exceptions(by_text: Mapping[str, int], kinds: bytearray) -> set[int]:
    """Ids that look like ends but are not: some families use a well-known text for something else."""
    removed = set()
    calls = "<|call|>" in by_text or "<|calls|>" in by_text
    if "<|end|>" in by_text and calls and ("<|return|>" in by_text or "<|flush|>" in by_text):
        removed.add(by_text["<|end|>"])
        kinds[by_text["<|end|>"]] = USER_DEFINED
    if "</s>" in by_text and ("<|tool_response>" in by_text or "<|plamo:eos|>" in by_text):
        removed.add(by_text["</s>"])
        kinds[by_text["</s>"]] = NORMAL
    return removed
