"""The charts of a backtest's report: SVG drawn by hand, in the colours that the page sets for light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from samovar.patterns.follow import iso_time
from samovar.service.backtest.finds import DAY_MS

WIDE, HIGH = 860.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 12.0, 30.0
WIDEST = 28.0  # of one bar
MOST_BARS = 400  # more are taken together
LABELS = 8  # below the axis
HALF_LABEL = 32.0


@dataclass(frozen=True)
class Bar:
    """One stretch of time, and how many alerts the rule found in it, and the service."""

    start_ms: int
    found: int
    current: int


def over_time(bars: Sequence[Bar], every_ms: int, *, compared: bool) -> str:
    """Found and current, side by side, over time. Stretches with nothing are there too."""
    if not bars:
        return ""
    bars, every_ms = _filled(bars, every_ms)
    top = _round_up(max(max(bar.found, bar.current) for bar in bars))
    step = (WIDE - LEFT - RIGHT) / len(bars)
    parts = [_grid(top)]
    for place, bar in enumerate(bars):
        x = LEFT + place * step
        shown = [("found", bar.found), ("current", bar.current)] if compared else [("found", bar.found)]
        wide = max(0.6, min(step * 0.82 / len(shown), WIDEST))
        tip = f"{moment(bar.start_ms, every_ms)}: {bar.found:,} found" + (f", {bar.current:,} now" if compared else "")
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(f'<rect x="{x:.2f}" y="{TOP:g}" width="{step:.2f}" height="{HIGH - TOP - BOTTOM:g}" class="hit"/>')
        for number, (style, count) in enumerate(shown):
            left = x + (step - wide * len(shown)) / 2 + number * wide
            parts.append(_column(left, wide, count, top, style))
        parts.append("</g>")
    for place in range(0, len(bars), max(1, -(-len(bars) // LABELS))):
        x = min(LEFT + (place + 0.5) * step, WIDE - RIGHT - HALF_LABEL)
        text = moment(bars[place].start_ms, every_ms)
        parts.append(f'<text x="{x:.1f}" y="{HIGH - 9:g}" text-anchor="middle" class="axis">{text}</text>')
    label = "Alerts over time: found by the rule" + (", and by the service now" if compared else "")
    return (
        f'<svg viewBox="0 0 {WIDE:g} {HIGH:g}" role="img" aria-label="{escape(label)}" class="chart">'
        + "".join(parts)
        + "</svg>"
    )


def shares(same: int, new: int, gone: int) -> str:
    """One line of three parts: the same, new, gone."""
    whole = same + new + gone
    if not whole:
        return ""
    parts, x = [], 0.0
    for style, count in (("same", same), ("new", new), ("gone", gone)):
        wide = 100 * count / whole
        if count:
            parts.append(
                f'<rect x="{x:.3f}" y="0" width="{wide:.3f}" height="10" class="{style}">'
                f"<title>{count:,} {style}</title></rect>"
            )
        x += wide
    label = f"{same:,} the same, {new:,} new, {gone:,} gone"
    return (
        f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{label}" class="shares">'
        + "".join(parts)
        + "</svg>"
    )


def moment(ms: int, every_ms: int) -> str:
    """A day, or an hour of it.

    >>> moment(1_767_600_000_000, 86_400_000), moment(1_767_600_000_000, 3_600_000)
    ('2026-01-05', '01-05 08:00')
    """
    text = iso_time(ms)
    return text[:10] if every_ms >= DAY_MS else f"{text[5:10]} {text[11:16]}"


def _filled(bars: Sequence[Bar], every_ms: int) -> tuple[list[Bar], int]:
    """All stretches from the first to the last; where they would be too many, longer ones."""
    first, last = bars[0].start_ms, bars[-1].start_ms
    while (last - first) // every_ms >= MOST_BARS:
        every_ms *= 2
    found: dict[int, Bar] = {}
    for bar in bars:
        start = first + (bar.start_ms - first) // every_ms * every_ms
        known = found.get(start, Bar(start, 0, 0))
        found[start] = Bar(start, known.found + bar.found, known.current + bar.current)
    return [found.get(start, Bar(start, 0, 0)) for start in range(first, last + 1, every_ms)], every_ms


def _column(x: float, wide: float, count: int, top: int, style: str) -> str:
    if not count:
        return ""
    high = max(1.0, (HIGH - TOP - BOTTOM) * count / top)
    y = HIGH - BOTTOM - high
    corner = min(2.5, wide / 3)
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{high:.2f}" rx="{corner:.2f}" class="{style}"/>'


def _grid(top: int) -> str:
    parts = []
    for line in range(5 if top % 4 == 0 else 3 if top % 2 == 0 else 2):
        steps = 4 if top % 4 == 0 else 2 if top % 2 == 0 else 1
        count = top * line // steps
        y = HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * line / steps
        parts.append(f'<line x1="{LEFT:g}" x2="{WIDE - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end" class="axis">{count:,}</text>')
    return "".join(parts)


def _round_up(number: int) -> int:
    """The next number that reads well on an axis.

    >>> [_round_up(n) for n in (1, 7, 63, 130, 990)]
    [1, 8, 80, 200, 1000]
    """
    size = 1
    while True:
        for step in (1, 2, 4, 8):
            if step * size >= number:
                return step * size
        size *= 10
