"""Reads a page of HTML and refuses one whose elements do not close."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements of a page with their attributes, and the text of all of it."""

    VOID = frozenset({"meta", "input", "img"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def skeleton(self):
        """Elements without those that spell or cut a text."""
        return [tag for tag, _ in self.elements if tag not in ("b", "small")]

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
