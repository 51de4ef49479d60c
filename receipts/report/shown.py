"""Hostile text made fit to be seen: what would act or hide is written out, the rest stays."""

from __future__ import annotations

_SPACE = '<b class="s"> </b>'
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

# Printable by Unicode's word, and yet nothing is seen: joiners, fillers, variation selectors, empty Braille.
_BLANK = frozenset(
    map(
        chr,
        [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0]
        + [*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)],
    )
)


def visible(text: str) -> str:
    r"""``text`` with every control, bidirectional or invisible character as ``\n``, ``\u202e`` and so on."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(char) if _is_hidden(char) else char for char in text)


def markup(text: str) -> str:
    """``visible`` text for XML and for attributes of HTML; holds nothing that XML 1.0 forbids."""
    return visible(text).translate(_MARKUP)


def html(text: str, *, marks_spaces: bool = False) -> str:
    """``visible`` text for the body of HTML; what was written out is marked, so that it can't be mistaken."""
    space = _SPACE if marks_spaces else " "
    if text.isascii() and text.isprintable():
        return text.translate(_MARKUP).replace(" ", space)
    return "".join(_in_html(char, space) for char in text)


def token(text: str, length: int = 48) -> str:
    """A token for a cell of HTML: spaces marked, at most ``length`` characters of it."""
    rest = len(text) - length
    more = f" <small>and {rest:,} more characters</small>" if rest > 0 else ""
    return f"<code>{html(text[:length], marks_spaces=True)}</code>{more}"


def whole(text: str) -> str:
    r"""``text`` where halves of surrogate pairs are written as ``\udc80``: all else is exact, and UTF-8 can hold it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, length: int) -> str:
    """At most ``length`` characters, and how many there are beyond."""
    rest = len(text) - length
    return text if rest <= 0 else f"{text[:length]}... and {rest:,} more characters"


def _is_hidden(char: str) -> bool:
    return not char.isprintable() or char in _BLANK


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _in_html(char: str, space: str) -> str:
    if char == " ":
        return space
    return f'<b class="e">{_spelled(char)}</b>' if _is_hidden(char) else char.translate(_MARKUP)
