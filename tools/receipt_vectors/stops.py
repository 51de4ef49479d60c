"""Steps 12 and 13: why an answer ended, and what its text is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.receipt_vectors.build import OK, Case, Expect, draws, plain, record

STOP: Expect = (11, "STOP_REASON", 12)
SHOWN: Expect = (11, "STOP_REASON", 13)
TEXT: Expect = (11, "TEXT", 13)
CAT = "\N{GRINNING CAT FACE WITH SMILING EYES}"

Row = tuple[str, str, dict[str, Any], Expect]


def cases() -> Iterator[Case]:
    for name, what, changes, expect in ENDED:
        yield Case(f"stop-{name}", [85 if name == "above-most" else 86], what, plain(record(**changes)), expect)
    three = {"draws": draws(1, 2, 3)}
    for name, what, changes, expect in [*COUNTED, *STRINGS]:
        yield Case(f"stop-{name}", [86], what, plain(record(**changes)), expect, engine=three)
    for name, what, changes, expect in TEXTS:
        engine = {"draws": draws(*changes["output"])}
        yield Case(f"text-{name}", [87], what, plain(record(**changes)), expect, engine=engine)


def stopped(reason: str, tokens: tuple[int, ...] = (1, 2, 3), **changes: Any) -> dict[str, Any]:
    """An answer without an end token: by default the three coloured ones."""
    return {"stop_reason": reason, "output": list(tokens)} | changes


def context(places: int) -> dict[str, Any]:
    return stopped("context", overrides={"context": places})


def spoken(tokens: tuple[int, ...], text: str, *strings: str) -> dict[str, Any]:
    """An answer that a stop string ended, or that was interrupted if there is none."""
    reason = "stop" if strings else "interrupt"
    return stopped(reason, tokens, text=text, stop_strings=strings, end_tokens=[])


NOTHING: dict[str, Any] = {"tokens": (), "text": ""}
BLUE: dict[str, Any] = {"text": " red", "stop_strings": [" blue"]}

ENDED: list[Row] = [
    (
        "end",
        "It ends with an end token and says the limit was reached.",
        {"stop_reason": "length", "max_tokens": 4},
        STOP,
    ),
    ("interrupt", "It ends with an end token and says it was interrupted.", {"stop_reason": "interrupt"}, STOP),
    ("above-most", "Four tokens where at most two were asked for.", {"max_tokens": 2}, STOP),
    ("end-token-other", "No end token is the last one.", {"end_tokens": [4]}, STOP),
    ("no-end-tokens", "An end token where none is known.", {"end_tokens": []}, STOP),
]

COUNTED: list[Row] = [
    ("length", "As many tokens as were asked for.", stopped("length", max_tokens=3), OK),
    ("length-fewer", "Fewer tokens than the limit that was reached.", stopped("length", max_tokens=4), STOP),
    ("length-unlimited", "A limit was reached, and there is none.", stopped("length"), STOP),
    ("length-zero", "No tokens, as was asked for.", stopped("length", **NOTHING, max_tokens=0), OK),
    ("context", "Prompt and answer fill the context.", context(6), OK),
    ("context-larger", "The context is not full.", context(7), STOP),
    ("context-smaller", "More tokens than the context holds.", context(5), STOP),
    ("context-unknown", "The context is full, and its size is not recorded.", stopped("context"), STOP),
    ("interrupted", "An interrupted answer.", stopped("interrupt"), OK),
    ("interrupted-at-once", "Interrupted before the first token.", stopped("interrupt", **NOTHING), OK),
    ("foreign-end-tokens", "No end tokens, though the model has one.", stopped("interrupt", end_tokens=[]), OK),
]

STRINGS: list[Row] = [
    ("string", "A stop string is complete with the last token.", stopped("stop", (1, 2), **BLUE), OK),
    ("string-none", "A stop string ended it, and there is none.", stopped("stop"), STOP),
    ("string-no-tokens", "A stop string ended an empty answer.", stopped("stop", **NOTHING, stop_strings=["a"]), STOP),
    ("string-not-shown", "The text doesn't show it.", stopped("stop", stop_strings=[" yellow"]), SHOWN),
    ("string-later", "Tokens stand behind the one that completed it.", stopped("stop", **BLUE), SHOWN),
    ("string-overlooked", "The text shows a stop string, and went on.", stopped("interrupt", **BLUE), SHOWN),
    ("string-in-text", "The text holds it.", stopped("stop", stop_strings=[" blue"]), (11, "STOP_STRING", 12)),
]

TEXTS: list[Row] = [
    ("halves", "A character over two tokens.", spoken((5, 6), CAT), OK),
    ("half", "Half a character at the end.", spoken((1, 5), " red\ufffd"), OK),
    ("half-dropped", "Half a character at the end, left out.", spoken((1, 5), " red"), TEXT),
    ("stop-over-tokens", "A stop string over two tokens.", spoken((1, 2), " re", "d bl"), OK),
    ("stop-first-complete", "Of two the one that is complete first.", spoken((7,), " on", " one two", "e t"), OK),
    ("stop-longest", "Of two complete at once the longer.", spoken((1, 7), " red", " one", "one"), OK),
    ("stop-shorter", "Of two complete at once the shorter.", spoken((1, 7), " red ", " one", "one"), TEXT),
    ("stop-replaced", "U+FFFD: half a character shows only when it is lost.", spoken((5, 1), "", "\ufffd"), OK),
]
