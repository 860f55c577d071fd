"""A backtest as one page of HTML: no script, nothing from outside, light and dark as the reader likes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from samovar.common.texts import counted
from samovar.patterns.explain.draw.picture import SEVERITIES
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.backtest.examples import Example
from samovar.service.backtest.finds import DAY_MS, HOUR_MS
from samovar.service.backtest.run import Backtest, RuleResult

KINDS = {
    "new": "New: found by this rule, and not by the service",
    "gone": "Gone: alerts of the service that this rule does not find",
    "found": "Found",
    "overlap_any": "Only with overlap=any",
}

WIDE, HIGH = 860.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 12.0, 30.0
WIDEST = 28.0  # of one bar
MOST_BARS = 400  # more are taken together
LABELS = 8  # below the axis
HALF_LABEL = 32.0

STYLE = """
:root{--page:#fbfcfe;--card:#ffffff;--ink:#1a2430;--muted:#5d6b7b;--edge:#dfe6ee;--grid:#e8edf3;--accent:#1f5fbf;
--found:#2f6fd6;--current:#b9c6d6;--same:#9db0c6;--new:#1f9d6b;--gone:#d9652b;--code:#f2f5f9;--warn:#fff6e5;
--warnedge:#f1d9a6}
@media (prefers-color-scheme:dark){:root{--page:#10151c;--card:#171e27;--ink:#e5ebf2;--muted:#98a6b6;--edge:#283340;
--grid:#232d39;--accent:#86b4ff;--found:#6ba3ff;--current:#4c5c6f;--same:#56687d;--new:#3fc48c;--gone:#f08a52;
--code:#1f2832;--warn:#2a2417;--warnedge:#57481f}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:940px;margin:0 auto;padding:36px 24px 80px}
h1{font-size:27px;line-height:1.2;margin:0 0 10px;letter-spacing:-.01em}
h2{font-size:20px;margin:0;display:flex;gap:10px;align-items:center;flex-wrap:wrap}
h3{font-size:15px;margin:26px 0 8px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12.5px}
pre{background:var(--code);padding:14px 16px;border-radius:8px;overflow-x:auto;margin:8px 0 0}
header{margin-bottom:22px}
.fact{display:inline-block;color:var(--muted);margin-right:18px}.fact b{color:var(--ink)}
.note{background:var(--warn);border:1px solid var(--warnedge);border-radius:8px;padding:8px 14px;margin:10px 0}
.said{color:var(--muted);margin:10px 0}
section{background:var(--card);border:1px solid var(--edge);border-radius:14px;padding:24px 26px 22px;margin-top:24px}
.id{color:var(--muted);margin:4px 0 0}.lead{margin:14px 0 16px;font-size:16px}
.badge{color:#fff;font-size:11.5px;font-weight:650;border-radius:20px;padding:2px 10px;letter-spacing:.02em}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin-bottom:16px}
.tile{flex:1 1 108px;max-width:190px;border:1px solid var(--edge);border-radius:10px;padding:10px 14px;
border-top:3px solid var(--edge)}
.tile b{display:block;font-size:23px;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:13px}.tile small{display:block;color:var(--muted);font-size:12px}
.tile.found{border-top-color:var(--found)}.tile.current{border-top-color:var(--current)}
.tile.new{border-top-color:var(--new)}.tile.gone{border-top-color:var(--gone)}
table{border-collapse:collapse;width:100%}
th{font-weight:600;color:var(--muted);font-size:13px;text-align:left}
th,td{padding:8px 10px;border-bottom:1px solid var(--edge);vertical-align:top}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.wide{width:22%;vertical-align:middle}
.overview{background:var(--card);border:1px solid var(--edge);border-radius:14px;border-collapse:separate;
border-spacing:0;overflow:hidden}.overview tr:last-child td{border-bottom:0}
.shares{display:block;width:100%;height:10px;border-radius:5px;overflow:hidden}
rect.same{fill:var(--same)}rect.new{fill:var(--new)}rect.gone{fill:var(--gone)}
.chart{display:block;width:100%;height:auto;margin:4px 0 6px}
rect.found{fill:var(--found)}rect.current{fill:var(--current)}rect.hit{fill:transparent}
g:hover rect.hit{fill:var(--grid)}
line.grid{stroke:var(--grid);stroke-width:1}text.axis{fill:var(--muted);font-size:11px}
.legend{margin:18px 0 2px;color:var(--muted);font-size:13px}
.key{margin-right:18px}.key:before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;
margin-right:7px}.key.found:before{background:var(--found)}.key.current:before{background:var(--current)}
summary{cursor:pointer;padding:2px 0}summary time{color:var(--muted);margin-left:8px;font-variant-numeric:tabular-nums}
details.text{margin-top:14px;color:var(--muted)}details.text pre{color:var(--ink)}
.example{border:1px solid var(--edge);border-radius:10px;padding:8px 14px;margin:8px 0}
.example p{margin:8px 0}.events td{padding:5px 10px 5px 0;font-size:13px}.events code{word-break:break-word}
.events tr:last-child td{border-bottom:0}.place{color:var(--muted);white-space:nowrap}.more{color:var(--muted)}
@media print{body{background:#fff}section{break-inside:avoid}}
"""


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


def html(backtest: Backtest) -> str:
    """The whole page."""
    title = f"Backtest of {backtest.service}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{STYLE}</style></head><body><main>'
        f"<header><h1>{escape(title)}</h1>{_facts(backtest)}</header>{_notes(backtest)}{_overview(backtest)}"
        + "".join(map(_section, backtest.rules))
        + "</main></body></html>\n"
    )


def _facts(backtest: Backtest) -> str:
    tally = backtest.tally
    begin = "the beginning" if backtest.from_ms is None else short_time(backtest.from_ms)
    rate = tally.events / backtest.seconds if backtest.seconds else 0
    facts = [
        f"{begin} to {short_time(backtest.to_ms)}, event time in UTC",
        f"{counted(tally.events, 'event')} in {backtest.seconds:,.1f} s ({rate:,.0f}/s, {backtest.engine})",
    ]
    facts += [f"{tally.late:,} late"] * bool(tally.late) + [f"{tally.dead:,} dead"] * bool(tally.dead)
    return "".join(f'<span class="fact">{escape(fact)}</span>' for fact in facts)


def _notes(backtest: Backtest) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in backtest.notes)


# ---------------------------------------------------------------- all rules


def _overview(backtest: Backtest) -> str:
    if len(backtest.rules) == 1:
        return ""
    head = "".join(
        f"<th{'' if place < 1 else ' class=number'}>{name}</th>"
        for place, name in enumerate(("Rule", "Found", "Now", "Same", "New", "Gone", "Precision", "Recall"))
    )
    rows = "".join(map(_row, backtest.rules))
    return f"<table class=overview><thead><tr>{head}<th></th></tr></thead><tbody>{rows}</tbody></table>"


def _row(result: RuleResult) -> str:
    compared, marks = result.compared, result.marks
    cells = [f"{result.found:,}"]
    cells += (
        ["-"] * 4
        if compared is None
        else [f"{result.current:,}", f"{compared.same:,}", f"{len(compared.new):,}", f"{len(compared.gone):,}"]
    )
    cells += ["-", "-"] if marks is None else [percent(marks.precision), percent(marks.recall)]
    bar = "" if compared is None else shares(compared.same, len(compared.new), len(compared.gone))
    name = f'<a href="#{escape(result.rule.id)}">{escape(result.rule.id)}</a>'
    numbers = "".join(f"<td class=number>{cell}</td>" for cell in cells)
    return f"<tr><td>{_badge(result)} {name}</td>{numbers}<td class=wide>{bar}</td></tr>"


# ---------------------------------------------------------------- one rule


def _section(result: RuleResult) -> str:
    compared = result.compared
    bar = "" if compared is None else shares(compared.same, len(compared.new), len(compared.gone))
    return (
        f'<section id="{escape(result.rule.id)}"><h2>{_badge(result)} {escape(result.rule.title)}</h2>'
        f'<p class="id"><code>{escape(result.rule.id)}</code> version <code>{result.version}</code></p>'
        f"<p class=lead>{escape(sentence(result))}</p><div class=tiles>{''.join(_tiles(result))}</div>{bar}"
        f"{_legend(result)}{_chart(result)}{''.join(_remarks(result))}"
        f"<details class=text><summary>The rule</summary><pre>{escape(result.rule.text.strip())}</pre></details>"
        f"{''.join(_examples(result))}</section>"
    )


def sentence(result: RuleResult) -> str:
    """What came out, in a sentence."""
    compared = result.compared
    found = counted(result.found, "alert")
    if compared is None:
        return f"It finds {found}. The service has no rule of this name yet, so that there is nothing to compare."
    moved = f" ({compared.moved:,} at another moment)" if compared.moved else ""
    text = (
        f"It finds {found}; the service found {result.current:,}. {compared.same:,} {_are(compared.same)} the same"
        f"{moved}, {len(compared.new):,} new, {len(compared.gone):,} gone."
    )
    if compared.ahead:
        text += f" {compared.ahead:,} {_are(compared.ahead)} later than the service has come, and not compared."
    return text


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _tiles(result: RuleResult) -> Iterator[str]:
    compared, marks = result.compared, result.marks
    yield _tile("found", f"{result.found:,}", "found")
    if compared is not None:
        yield _tile("now", f"{result.current:,}", "current")
        yield _tile("new", f"{len(compared.new):,}", "new")
        yield _tile("gone", f"{len(compared.gone):,}", "gone")
    if marks is not None:
        before = "" if marks.precision_before is None else f"now {percent(marks.precision_before)}"
        yield _tile("precision", percent(marks.precision), "", before)
        yield _tile("recall", percent(marks.recall), "", f"of {marks.confirmed:,} confirmed")
    if result.any_more is not None:
        yield _tile("more with any", f"{result.any_more:,}", "any")


def _tile(name: str, value: str, style: str, more: str = "") -> str:
    under = f"<small>{escape(more)}</small>" if more else ""
    return f'<div class="tile {style}"><b>{escape(value)}</b><span>{escape(name)}</span>{under}</div>'


def _legend(result: RuleResult) -> str:
    if not result.days:
        return ""
    names = [("found", "found by this rule")]
    names += [("current", "found by the service")] if result.compared is not None else []
    return "<p class=legend>" + "".join(f'<span class="key {style}">{name}</span>' for style, name in names) + "</p>"


def _chart(result: RuleResult) -> str:
    counts, every_ms = (result.hours, HOUR_MS) if result.hours else (result.days, DAY_MS)
    bars = [Bar(each.start_ms, each.found, each.current) for each in counts]
    return over_time(bars, every_ms, compared=result.compared is not None)


def _remarks(result: RuleResult) -> Iterator[str]:
    for count, text in (
        (result.suppressed, "matches were held back by `suppress`"),
        (result.dropped, "partial matches, events or matches were dropped by limits"),
        (result.any_dropped, "more were dropped so with `overlap=any`: it would have found even more"),
        (result.no_key, "events have no key for this rule"),
    ):
        if count:
            yield f'<p class="note">{count:,} {escape(text)}.</p>'
    if result.marks is not None:
        yield (
            f'<p class="said">Labels: {result.marks.confirmed_kept:,} confirmed and'
            f" {result.marks.false_alarms_kept:,} false alarms are found again; {result.marks.unlabelled:,} of what it"
            " finds has no label.</p>"
        )


def _badge(result: RuleResult) -> str:
    colour = SEVERITIES.get(result.rule.severity, SEVERITIES["medium"])
    return f'<span class=badge style="background:{colour}">{escape(result.rule.severity)}</span>'


# ---------------------------------------------------------------- examples


def _examples(result: RuleResult) -> Iterator[str]:
    for kind, some in result.examples.items():
        if some:
            yield f"<h3>{escape(KINDS[kind])}</h3>"
            yield from (_example(each, is_open=place == 0) for place, each in enumerate(some))


def _example(example: Example, *, is_open: bool) -> str:
    match = example.match
    key = ", ".join(f"{name} {value}" for name, value in match["key"].items()) or "all"
    rows = "".join(
        f"<tr><td>{escape(each.step)}</td><td class=place>{escape(each.topic)}/{each.partition}/{each.offset:,}</td>"
        f"<td><code>{escape(_value(each.value))}</code></td></tr>"
        for each in example.events
    )
    left = example.total - len(example.events)
    more = f"<p class=more>and {counted(left, 'event')} more between them</p>" if left else ""
    emit = "".join(
        f'<span class="fact">{escape(name)} <b>{escape(_value(value))}</b></span>'
        for name, value in match.get("emit", {}).items()
    )
    message = f"<p>{escape(match['message'])}</p>" if match.get("message") else ""
    opened = " open" if is_open else ""
    return (
        f"<details class=example{opened}><summary><b>{escape(key)}</b> <time>{short_time(match['at'])}</time></summary>"
        f"{message}<p>{emit}</p><table class=events><tbody>{rows}</tbody></table>{more}</details>"
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def short_time(ms: int) -> str:
    """To the second, or to the millisecond where that is more.

    >>> short_time(1_767_600_000_000), short_time(1_767_600_000_500)
    ('2026-01-05 08:00:00', '2026-01-05 08:00:00.500')
    """
    return iso_time(ms).replace("T", " ").removesuffix("Z").removesuffix(".000")
