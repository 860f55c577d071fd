"""A backtest for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samovar.common.texts import counted
from samovar.service.backtest.report import percent, sentence, short_time
from samovar.service.backtest.run import Backtest, RuleResult, TimeBucket

DAYS_SHOWN = 14


def text_of(backtest: Backtest) -> Iterator[str]:
    """All lines."""
    tally = backtest.tally
    begin = "the beginning" if backtest.from_ms is None else short_time(backtest.from_ms)
    rate = tally.events / backtest.seconds if backtest.seconds else 0
    put_by = [f"{tally.late:,} late"] * bool(tally.late) + [f"{tally.dead:,} dead"] * bool(tally.dead)
    yield f"{backtest.service}, {begin} to {short_time(backtest.to_ms)} (event time, UTC)"
    yield ", ".join([f"{counted(tally.events, 'event')} in {backtest.seconds:,.1f} s, {rate:,.0f}/s", *put_by])
    yield from backtest.notes
    for result in backtest.rules:
        yield ""
        yield from _of_rule(result)


def _of_rule(result: RuleResult) -> Iterator[str]:
    yield f"{result.rule.id} (version {result.version}, {result.rule.severity})"
    yield f"  {sentence(result)}"
    marks = result.marks
    if marks is not None:
        before = "" if marks.precision_before is None else f" (now {percent(marks.precision_before)})"
        yield (
            f"  precision {percent(marks.precision)}{before}, recall {percent(marks.recall)} of"
            f" {marks.confirmed:,} confirmed; {marks.unlabelled:,} of what it finds has no label"
        )
    if result.any_more is not None:
        dropped = f", and {result.any_dropped:,} partial matches beyond max_partials" if result.any_dropped else ""
        yield f"  overlap=any would find {result.any_more:,} more{dropped}"
    for count, text in (
        (result.suppressed, "held back by suppress"),
        (result.dropped, "partial matches, events or matches dropped by limits"),
        (result.no_key, "events with no key for this rule"),
    ):
        if count:
            yield f"  {count:,} {text}"
    yield from _of_days(result.days, compared=result.is_known)
    for kind, some in result.examples.items():
        for example in some:
            match = example.match
            key = ", ".join(f"{name}={value}" for name, value in match["key"].items())
            said = f": {match['message']}" if match.get("message") else ""
            yield f"  {kind.replace('_', '=')}: {key} at {short_time(match['at'])}{said}"


def _of_days(days: Sequence[TimeBucket], *, compared: bool) -> Iterator[str]:
    if not days:
        return
    yield "  day            found" + ("      now" if compared else "")
    for day in days[-DAYS_SHOWN:]:
        yield f"  {short_time(day.start_ms)[:10]} {day.found:>9,}" + (f"{day.current:>9,}" if compared else "")
    if len(days) > DAYS_SHOWN:
        yield f"  and {counted(len(days) - DAYS_SHOWN, 'day')} before; --json has all"
