"""The gap of the two highest logits at each position, as an inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from receipts.verify import Place

_WIDTH, _HEIGHT = 720, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 712, 34, 196
"""The rectangle that points lie in; labels stand around it."""

_MOST = 1e9  # of the highest gap to the lowest on a scale; what is lower stands at the lower edge
_STEMS_UP_TO = 160  # more points than that stand too close for a line below each


class Scale(NamedTuple):
    """How a gap becomes a height."""

    is_log: bool
    low: float
    """Gap at the lower edge, above 0 if logarithmic."""
    high: float

    def y(self, gap: float) -> float:
        """Height in the drawing; 0 on a logarithmic scale lies at the lower edge, infinity at the upper."""
        if math.isnan(gap) or gap <= self.low:
            return _BOTTOM
        if gap >= self.high:
            return _TOP
        if self.is_log:
            share = math.log(gap / self.low) / math.log(self.high / self.low)
        else:
            share = (gap - self.low) / (self.high - self.low)
        return _BOTTOM - share * (_BOTTOM - _TOP)


def gap_text(gap: float) -> str:
    """Three decimals, or two digits and an exponent where those would hide it."""
    return f"{gap:.3f}" if gap >= 0.001 or gap == 0 else f"{gap:.1e}"


def plot(trail: Sequence[Place], differing: Sequence[int], name: str) -> str:
    """A figure with a caption that says in words what the drawing shows; ``name`` is an id of its own."""
    scale = scale_of([place.gap for place in trail])
    last = max(len(trail) - 1, 1)

    def x(position: int) -> float:
        return _LEFT + 8 + position / last * (_RIGHT - _LEFT - 16)

    kind = "logarithmic" if scale.is_log else "linear"
    drawing = [*_heights(scale), *_positions(len(trail), x), *_points(trail, differing, scale, x)]
    return (
        f'<figure class="plot"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}t {name}c">\n'
        f'<title id="{name}t">Gap of the two highest logits at each output position</title>\n'
        + "\n".join(drawing)
        + f'\n</svg>\n<figcaption id="{name}c">{_words(trail, differing)} The scale is {kind}; '
        "a diamond and a dashed line mark a difference.</figcaption></figure>"
    )


def scale_of(gaps: Sequence[float]) -> Scale:
    """Logarithmic where the gaps span more than two decades, so that near ties are told from nearer ones."""
    above = [gap for gap in gaps if math.isfinite(gap) and gap > 0]
    if not above:
        return Scale(False, 0.0, 1.0)
    high = max(above)
    low = max(min(above), high / _MOST)
    if high > 100 * low:
        return Scale(True, 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)))
    step = _step(high, 4)
    return Scale(False, 0.0, step * math.ceil(high / step))


def _step(span: float, parts: int) -> float:
    """1, 2 or 5 times a power of ten, so that about ``parts`` of it make ``span``."""
    power = 10.0 ** math.floor(math.log10(span / parts))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power * parts >= span * 0.999)


def _heights(scale: Scale) -> list[str]:
    """Lines and labels of the vertical axis."""
    if scale.is_log:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        every = -(-(last - first) // 6)
        ticks = [10.0**power for power in range(last, first - 1, -every)]
    else:
        step = _step(scale.high, 4)
        ticks = [step * index for index in range(round(scale.high / step) + 1)]
    lines = "".join(f"M{_LEFT} {scale.y(tick):.1f}H{_RIGHT}" for tick in ticks)
    labels = [f'<text x="{_LEFT - 8}" y="{scale.y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>' for tick in ticks]
    return [f'<path class="grid" d="{lines}"/>', *labels, '<text x="4" y="16">gap (logits)</text>']


def _positions(count: int, x: Callable[[int], float]) -> list[str]:
    """Labels of the horizontal axis."""
    step = max(1, round(_step(max(count - 1, 1), 5)))
    labels = [
        f'<text x="{x(at):.1f}" y="{_BOTTOM + 20}" text-anchor="middle">{at:,}</text>' for at in range(0, count, step)
    ]
    return [*labels, f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">output position</text>']


def _points(trail: Sequence[Place], differing: Sequence[int], scale: Scale, x: Callable[[int], float]) -> list[str]:
    """Few paths for any number of points: a dot is a line of no length with round ends."""
    spots = [(x(at), scale.y(place.gap)) for at, place in enumerate(trail)]
    stems = "".join(f"M{a:.0f} {_BOTTOM}V{b:.0f}" for a, b in spots) if len(spots) <= _STEMS_UP_TO else ""
    dots = "".join(f"M{a:.0f} {b:.0f}h0" for a, b in dict.fromkeys((round(a), round(b)) for a, b in spots))
    marks = [spots[at] for at in differing]
    lines = "".join(f"M{a:.1f} {_TOP}V{_BOTTOM}" for a, _ in marks)
    diamonds = "".join(f"M{a:.1f} {b - 6:.1f}l6 6-6 6-6-6z" for a, b in marks)
    labels = [_label(spots[at][0], at) for at in _apart(differing, spots)]
    return [
        f'<path class="stems" d="{stems}"/>' if stems else "",
        f'<path class="dots" d="{dots}"/>',
        f'<path class="lines" d="{lines}"/>',
        f'<path class="diamonds" d="{diamonds}"/>',
        *labels,
    ]


def _label(x: float, at: int) -> str:
    inside = min(max(x, _LEFT + 12), _RIGHT - 12)
    return f'<text class="at" x="{inside:.1f}" y="{_TOP - 6}" text-anchor="middle">{at:,}</text>'


def _apart(differing: Sequence[int], spots: Sequence[tuple[float, float]]) -> list[int]:
    """Differences whose labels do not touch the one before."""
    kept: list[int] = []
    for at in differing:
        if not kept or spots[at][0] - spots[kept[-1]][0] > 56:
            kept.append(at)
    return kept


def _words(trail: Sequence[Place], differing: Sequence[int]) -> str:
    """The drawing for those who do not see it."""
    finite = sorted((place.gap, at) for at, place in enumerate(trail) if math.isfinite(place.gap))
    parts = [f"{len(trail):,} positions, {len(differing):,} of them different."]
    if differing:
        named = [f"{at:,} (gap {_said(trail[at].gap)})" for at in differing[:8]]
        more = f" and {len(differing) - 8:,} more" if len(differing) > 8 else ""
        parts.append(f"Different at {', '.join(named)}{more}.")
    if finite:
        (low, low_at), (high, high_at) = finite[0], finite[-1]
        middle = finite[len(finite) // 2][0]
        parts.append(f"Smallest gap {gap_text(low)} at {low_at:,}, median {gap_text(middle)},")
        parts.append(f"largest {gap_text(high)} at {high_at:,}.")
    if forced := len(trail) - len(finite):
        parts.append(f"At {forced:,} no other token could be drawn; they stand at the upper edge.")
    return " ".join(parts)


def _said(gap: float) -> str:
    return gap_text(gap) if math.isfinite(gap) else "infinite"
