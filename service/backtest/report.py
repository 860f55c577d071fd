"""A backtest as one page of HTML: no script, nothing from outside, light and dark as the reader likes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from samovar.patterns.follow import iso_time
from samovar.patterns.svg import SEVERITIES
from samovar.service.backtest.backtest_charts import Bar, over_time, shares
from samovar.service.backtest.backtest_style import STYLE
from samovar.service.backtest.examples import Example
from samovar.service.backtest.finds import DAY_MS, HOUR_MS
from samovar.service.backtest.run import Backtest, RuleResult
from samovar.service.offline.match import counted

KINDS = {
    "new": "New: found by this rule, and not by the service",
    "gone": "Gone: alerts of the service that this rule does not find",
    "found": "Found",
    "overlap_any": "Only with overlap=any",
}


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
