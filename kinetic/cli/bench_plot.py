"""Plots of ``kinetic bench``: SVG written here, PNG by matplotlib where somebody installed it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from conformance.bench_store import Record, Series

OURS, THEIRS = "#1f6feb", "#b0b7c0"
LINES = ("#1f6feb", "#d1481f", "#1a7f37", "#8250df", "#9a6700", "#57606a")

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 720, 170, 110, 16, 12, 64
"""Pixels."""

HEIGHT = 320
"""Of the plot of a history."""


class Bar(NamedTuple):
    """One median with its quartiles."""

    label: str
    color: str
    median: float
    q1: float
    q3: float


class Panel(NamedTuple):
    """Bars on one scale: a prompt's speed is several times that of decoding."""

    title: str
    bars: list[Bar]


def require_kind(path: str) -> None:
    """Whether a plot of this name can be drawn here. Raises UsageError."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".svg", ".png"):
        raise UsageError(f"a plot is a .svg or a .png file, not {path}", name="BAD_PLOT")
    if ending == ".png" and _figure_class() is None:
        raise UsageError("a .png needs matplotlib, which isn't installed here: name a .svg file", name="NO_MATPLOTLIB")


def draw(path: str, record: Record) -> None:
    """Bars of one measurement, written whole or not at all."""
    title = f"{record['model']['file']} on {record['machine']['processor']}, kinetic {record['kinetic']}"
    panels = _panels(record)
    _save(path, bars_svg(title, panels) if _is_svg(path) else None, lambda figure: _plot_bars(figure, title, panels))


def draw_history(path: str, series: Sequence[Series]) -> None:
    """Medians over time."""
    title = "tokens/s, each test against its first measurement"
    lines = [(f"{one.test}, {one.threads} thr.", [m / one.medians[0] for m in one.medians]) for one in series]
    _save(path, lines_svg(title, lines) if _is_svg(path) else None, lambda figure: _plot_lines(figure, title, lines))


def _is_svg(path: str) -> bool:
    return path.lower().endswith(".svg")


def _panels(record: Record) -> list[Panel]:
    panels = []
    for kind, title in (("pp", "prompt, tokens/s"), ("tg", "decoding, tokens/s")):
        bars = []
        for row in record["results"]:
            if row["kind"] == kind:
                label = f"{row['test']}, {row['threads']} thr."
                bars.append(Bar(label, OURS, row["median"], row["q1"], row["q3"]))
                if "peer" in row:
                    peer = row["peer"]
                    bars.append(Bar("llama.cpp", THEIRS, peer["median"], peer["q1"], peer["q3"]))
        if bars:
            panels.append(Panel(title, bars))
    return panels


# --- SVG ---


def bars_svg(title: str, panels: Sequence[Panel]) -> str:
    """A document of its own: no script, no font and nothing else from elsewhere."""
    parts, y = [], TOP
    for panel in panels:
        parts.append(_text(LEFT, y, panel.title, weight="bold"))
        y += GAP
        scale = (WIDTH - LEFT - RIGHT) / max(max(bar.q3, bar.median) for bar in panel.bars)
        for bar in panel.bars:
            parts += _bar(bar, y, scale)
            y += BAR + (GAP // 3 if bar.color == OURS else GAP)
        y += 2 * GAP
    return _document(title, y, parts)


def _bar(bar: Bar, y: int, scale: float) -> Iterator[str]:
    middle, width = y + BAR / 2, bar.median * scale
    yield _text(LEFT - 8, middle + 4, bar.label, anchor="end")
    yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{bar.color}"/>'
    low, high = LEFT + bar.q1 * scale, LEFT + bar.q3 * scale
    yield f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#24292f" stroke-width="2"/>'
    yield _text(max(high, LEFT + width) + 8, middle + 4, f"{bar.median:.1f}")


def lines_svg(title: str, lines: Sequence[tuple[str, Sequence[float]]]) -> str:
    values = [value for _, points in lines for value in points] or [1.0]
    low, high = min(*values, 1.0), max(*values, 1.0)
    room = (high - low) or 1.0
    parts = [_text(LEFT - 8, _height(mark, low, room) + 4, f"{mark:.2f}", anchor="end") for mark in {low, 1.0, high}]
    parts.sort()
    for number, (label, points) in enumerate(lines):
        color = LINES[number % len(LINES)]
        step = (WIDTH - LEFT - RIGHT) / max(len(points) - 1, 1)
        places = [(LEFT + i * step, _height(value, low, room)) for i, value in enumerate(points)]
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        parts.append(_text(LEFT, HEIGHT + 20 * (number + 1), label, color=color))
    return _document(title, HEIGHT + 20 * (len(lines) + 1), parts)


def _height(value: float, low: float, room: float) -> float:
    return HEIGHT - (value - low) / room * (HEIGHT - TOP)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", color: str = "#24292f"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-weight="{weight}" fill="{color}">{escape(_printable(text))}</text>'


def _printable(text: str) -> str:
    """XML knows no control characters, not even escaped."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _document(title: str, height: float, parts: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">'
    background = f'<title>{escape(_printable(title))}</title>\n<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, background, _text(16, 28, title, weight="bold"), *parts, "</svg>", ""])


# --- files, and PNG ---


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    return Figure


def _save(path: str, svg: str | None, plot: Any) -> None:
    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic

    if svg is None:
        import io

        figure, data = _figure_class()(figsize=(WIDTH / 96, 5)), io.BytesIO()
        plot(figure)
        figure.savefig(data, format="png", dpi=96, bbox_inches="tight")
        content = data.getvalue()
    else:
        content = svg.encode("utf-8")
    with foreign_errors():
        write_atomic(os.path.realpath(path), content)


def _plot_bars(figure: Any, title: str, panels: Sequence[Panel]) -> None:
    if not panels:
        raise FileProblem("there is nothing to draw", name="NO_PLOT")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        axes.barh(range(len(panel.bars)), [b.median for b in panel.bars], color=[b.color for b in panel.bars])
        axes.set_yticks(range(len(panel.bars)), [bar.label for bar in panel.bars])
        axes.invert_yaxis()
        axes.set_xlabel(panel.title)
    figure.suptitle(_printable(title))
    figure.tight_layout()


def _plot_lines(figure: Any, title: str, lines: Sequence[tuple[str, Sequence[float]]]) -> None:
    axes = figure.subplots()
    for label, points in lines:
        axes.plot(range(1, len(points) + 1), points, marker="o", label=label)
    axes.set_title(title)
    if lines:
        axes.legend()
