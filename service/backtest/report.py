"""A backtest for people: one page of HTML, light and dark as the reader likes, or lines for the terminal."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from samovar.common.texts import counted
from samovar.patterns.explain.draw.picture import SEVERITIES
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.backtest.finds import DAY_MS, HOUR_MS
from samovar.service.backtest.run import Backtest, RuleResult

# The chart, in the units of its SVG.
WIDTH, HEIGHT = 860, 200
LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 8, 12, HEIGHT - 30
MAX_COLUMN = 28.0
MAX_BARS = 400  # more are taken together
MAX_LABELS = 8  # below the axis
HALF_LABEL = 32


def html(backtest: Backtest) -> str:
    """The whole page."""
    return _render("report.html.jinja", backtest)


def text_of(backtest: Backtest) -> str:
    """The same for the terminal."""
    return _render("report.txt.jinja", backtest).removesuffix("\n")


def _render(template: str, backtest: Backtest) -> str:
    templates = Environment(
        loader=PackageLoader("samovar.service.backtest", ""),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"commas": "{:,}".format, "percent": percent, "time": short_time, "value": _value}
    templates.globals |= {"chart": _chart, "counted": counted, "sentence": sentence}
    totals = backtest.tally.totals
    begin = "the beginning" if backtest.from_ms is None else short_time(backtest.from_ms)
    return templates.get_template(template).render(
        backtest=backtest,
        span=(begin, short_time(backtest.to_ms)),
        set_aside=[f"{count:,} {name}" for name, count in (("late", totals.late), ("dead", totals.dead)) if count],
        severities=SEVERITIES,
    )


def _chart(result: RuleResult) -> dict[str, Any]:
    """Shapes of found and current side by side over time. Stretches with nothing are there too."""
    counts, every_ms = (result.hours, HOUR_MS) if result.hours else (result.days, DAY_MS)
    first, last = counts[0].start_ms, counts[-1].start_ms
    while (last - first) // every_ms >= MAX_BARS:
        every_ms *= 2
    totals = {start: {"found": 0, "current": 0} for start in range(first, last + 1, every_ms)}
    for each in counts:
        total = totals[first + (each.start_ms - first) // every_ms * every_ms]
        total["found"] += each.found
        total["current"] += each.current

    most = _round_up(max(count for total in totals.values() for count in total.values()))
    lines = 4 if most % 4 == 0 else 2 if most % 2 == 0 else 1
    grid = [(most * line // lines, BOTTOM - (BOTTOM - TOP) * line / lines) for line in range(lines + 1)]
    styles = ["found"] if result.current is None else ["found", "current"]
    step = (RIGHT - LEFT) / len(totals)
    column = max(0.6, min(step * 0.82 / len(styles), MAX_COLUMN))
    bars, labels = [], []
    label_every = max(1, -(-len(totals) // MAX_LABELS))
    for place, (start, total) in enumerate(totals.items()):
        x, time = LEFT + place * step, moment(start, every_ms)
        left = x + (step - column * len(styles)) / 2
        columns = [
            (style, left + number * column, max(1.0, (BOTTOM - TOP) * total[style] / most))
            for number, style in enumerate(styles)
            if total[style]
        ]
        bars.append({"x": x, "time": time, "columns": columns, **total})
        if place % label_every == 0:
            labels.append((min(x + step / 2, RIGHT - HALF_LABEL), time))
    axes = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    shapes = {"styles": styles, "step": step, "column": column, "grid": grid, "bars": bars, "labels": labels}
    return axes | shapes


def _round_up(number: int) -> int:
    """The next number that reads well on an axis.

    >>> [_round_up(n) for n in (1, 7, 63, 130, 990)]
    [1, 8, 80, 200, 1000]
    """
    size: int = 10 ** (len(str(number)) - 1)
    return next(step * size for step in (1, 2, 4, 8, 10) if step * size >= number)


def sentence(result: RuleResult) -> str:
    """What came out, in a sentence."""
    found = counted(result.found, "alert")
    if result.current is None:
        return f"It finds {found}. The service has no rule of this name yet, so that there is nothing to compare."
    moved = f" ({result.moved:,} at another moment)" if result.moved else ""
    are = "is" if result.same == 1 else "are"
    text = f"It finds {found}; the service found {result.current:,}. {result.same:,} {are} the same{moved}"
    text += f", {result.new:,} new, {result.gone:,} gone."
    if result.not_compared:
        are = "is" if result.not_compared == 1 else "are"
        text += f" {result.not_compared:,} {are} later than the service has come, and not compared."
    return text


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def moment(ms: int, every_ms: int) -> str:
    """A day, or an hour of it.

    >>> moment(1_767_600_000_000, 86_400_000), moment(1_767_600_000_000, 3_600_000)
    ('2026-01-05', '01-05 08:00')
    """
    text = iso_time(ms)
    return text[:10] if every_ms >= DAY_MS else f"{text[5:10]} {text[11:16]}"


def short_time(ms: int) -> str:
    """To the second, or to the millisecond where that is more.

    >>> short_time(1_767_600_000_000), short_time(1_767_600_000_500)
    ('2026-01-05 08:00:00', '2026-01-05 08:00:00.500')
    """
    return iso_time(ms).replace("T", " ").removesuffix("Z").removesuffix(".000")
