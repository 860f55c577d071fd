"""A soak as a picture: one small chart per measure, all over the same time, as SVG with nothing to fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isnan

from benchmarks.figures import number
from benchmarks.soak_samples import MEASURES, Samples
from benchmarks.soak_trend import Measure, Trend

COLUMNS, WIDE, HIGH, GAP = 2, 380, 96, 16
HEAD, FOOT = 26, 30  # above a chart, for its name, and below all of them
LINE, FITTED, MARK, TEXT = "#3b6ea5", "#b5532a", "#dddddd", "#444444"
MOVED = "container left"


def plot(samples: Samples, trends: Mapping[str, Trend], warm_s: float, title: str) -> str:
    """Samples, the line through those that count, and a mark wherever a container left."""
    rows = -(-len(MEASURES) // COLUMNS)
    wide, high = COLUMNS * (WIDE + GAP) + GAP, rows * (HIGH + HEAD) + HEAD + FOOT
    charts = [
        _chart(samples, each, trends.get(each.name), warm_s, GAP + place % COLUMNS * (WIDE + GAP), _top(place))
        for place, each in enumerate(MEASURES)
    ]
    body = "\n".join(charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif"'
        f' font-size="11">\n'
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>\n'
        f'<text x="{GAP}" y="16" font-size="13" fill="{TEXT}">{escape(title)}</text>\n{body}\n'
        f'<text x="{GAP}" y="{high - 10}" fill="{TEXT}">grey: a container leaves, and comes back; '
        f"brown: the line through all samples after the first {warm_s / 60:.1f} minutes</text>\n</svg>\n"
    )


def _top(place: int) -> int:
    return HEAD + place // COLUMNS * (HIGH + HEAD) + HEAD


def _chart(samples: Samples, measure: Measure, trend: Trend | None, warm_s: float, left: float, top: float) -> str:
    points = [pair for pair in zip(samples.times_s, samples.columns[measure.name], strict=True) if not isnan(pair[1])]
    end = max(samples.times_s, default=0.0) or 1.0
    most = max((value for _, value in points), default=0.0) or 1.0

    def place(at_s: float, value: float) -> str:
        return f"{left + at_s / end * WIDE:.1f} {top + HIGH - value / most * HIGH:.1f}"

    marks = [f"M{left + at_s / end * WIDE:.1f} {top} v{HIGH}" for at_s, what in samples.marks if what == MOVED]
    parts = [
        f'<path d="{" ".join(marks)}" stroke="{MARK}" fill="none"/>',
        f'<path d="M{left} {top} v{HIGH} h{WIDE}" stroke="{TEXT}" fill="none"/>',
        f'<path d="{_path([place(*each) for each in points])}" stroke="{LINE}" fill="none"/>',
        f'<text x="{left}" y="{top - 6}" fill="{TEXT}">{escape(_caption(measure, trend, most))}</text>',
    ]
    if trend is not None:
        fitted = [place(warm_s, max(trend.start, 0.0)), place(end, max(trend.end, 0.0))]
        parts.append(f'<path d="{_path(fitted)}" stroke="{FITTED}" stroke-width="1.5" fill="none"/>')
    return "\n".join(parts)


def _path(places: Sequence[str]) -> str:
    return " ".join(f"{'L' if number else 'M'}{place}" for number, place in enumerate(places))


def _caption(measure: Measure, trend: Trend | None, most: float) -> str:
    """
    >>> _caption(MEASURES[2], None, 12.0)
    'container threads, up to 12'
    """
    told = f"{measure.name}, up to {number(most)} {measure.unit}".rstrip()
    return told if trend is None else f"{told}; {trend.slope:+,.1f} per hour, {trend.verdict}"
