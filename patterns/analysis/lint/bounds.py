"""Lint of what a rule may come to hold, and of how often it speaks."""

from __future__ import annotations

from samovar.common.times import UNITS, duration_text
from samovar.patterns.analysis.cost import cost
from samovar.patterns.analysis.lint.catalog import LintFindings
from samovar.patterns.analysis.lint.steps import covers
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_PARTIALS
from samovar.patterns.syntax.tree import (
    Aggregate,
    AggregateForm,
    Bracket,
    History,
    Overlap,
    SequenceForm,
    SessionForm,
    StepKind,
    WindowForm,
    walk,
)

LONG_MS = 30 * UNITS["d"]
LONG_HISTORY_MS = 90 * UNITS["d"]
MANY_WINDOWS = 100
FEW_EVENTS = 100  # that a busy key has in no time
LARGE_STATE_BYTES = 16_000_000


def check_bounds(notes: LintFindings) -> None:
    form = notes.rule.form
    _check_long(notes)
    _check_cost(notes)
    if not form.by:
        notes.add("one-key", "without `by` every event has the same key", form.span, "write `by FIELD`")
    if isinstance(form, SessionForm) and form.max_ms is None:
        text = f"a key that is never quiet for {duration_text(form.gap_ms)} never ends its session"
        notes.add("open-session", text, form.span, f"add `max=8h`: `with gap={duration_text(form.gap_ms)}, max=8h`")
    if isinstance(form, WindowForm) and form.size_ms // form.every_ms > MANY_WINDOWS:
        text = f"every event enters {form.size_ms // form.every_ms:,} windows"
        notes.add("many-windows", text, form.span, "make `every` longer, or write an `aggregate`, whose window slides")
    if not isinstance(form, SequenceForm):
        _check_brackets(form, notes)
    _check_suppress(notes)


# ---------------------------------------------------------------- state


def _check_long(notes: LintFindings) -> None:
    form = notes.rule.form
    span_ms = {SequenceForm: "maxspan_ms", AggregateForm: "over_ms"}.get(type(form))
    if span_ms is not None and getattr(form, span_ms) > LONG_MS:
        text = f"the state of every key is held for {duration_text(getattr(form, span_ms))}"
        notes.add("long-span", text, form.span, "a shorter span, or seen(...) with a long one, holds less")
    for bracket in _brackets(form):
        for item in walk(bracket.condition):
            if isinstance(item, History) and item.span_ms > LONG_HISTORY_MS:
                what = "event" if bracket.type == "any" else f"`{bracket.type}`"
                text = (
                    f"every {what} of a key is held for {duration_text(item.span_ms)}, at most {MAX_EVENTS:,} of them"
                )
                hint = "inside it, `where` holds only the events that satisfy it: `seen(device, 90d where ok == true)`"
                notes.add("long-history", text, item.span, hint if item.where is None else None)


def _brackets(form: SequenceForm | AggregateForm | SessionForm | WindowForm) -> list[Bracket]:
    if not isinstance(form, SequenceForm):
        return list(form.brackets)
    return [bracket for step in form.steps for bracket in step.brackets]


def _check_cost(notes: LintFindings) -> None:
    form = notes.rule.form
    if not isinstance(form, SequenceForm):
        return
    found = cost(notes.rule)
    taken = [step for step in form.steps if step.kind is not StepKind.ABSENT]
    bounded = all(step.within_ms is not None and step.runs_max == step.runs_min for step in taken[1:])
    few = found.overflow_events is not None and found.overflow_events < FEW_EVENTS
    if form.overlap is Overlap.ANY and few and not bounded:
        text = (
            f"{found.overflow_events} events of one key within {duration_text(form.maxspan_ms)} can make more than "
            f"{MAX_PARTIALS:,} partial matches; the oldest are then dropped"
        )
        notes.add("many-partials", text, form.span, "give the steps `within=...`, or write `overlap=all`")
    elif found.worst_bytes > LARGE_STATE_BYTES:
        text = f"a busy key can come to hold {found.worst_bytes / 1e6:,.0f} MB"
        hint = "give the repeated step an upper bound, as in `runs=3..20`, or write `overlap=latest`"
        notes.add("large-state", text, form.span, hint)


def _check_brackets(form: AggregateForm | SessionForm | WindowForm, notes: LintFindings) -> None:
    rule = notes.rule
    shown = [
        form.having,
        *(expr for _, expr in rule.emit),
        *(part for part in rule.message if not isinstance(part, str)),
    ]
    read = {item.target for expr in shown if expr for item in walk(expr) if isinstance(item, Aggregate)}
    for at, narrow in enumerate(form.brackets):
        if narrow.name is not None and narrow.name in read:
            continue
        for place, wide in enumerate(form.brackets):
            mutual = place > at and covers(narrow, wide, notes)
            if place != at and not mutual and covers(wide, narrow, notes):
                text = f"every event of this bracket is taken in by the one on line {wide.span.line} already"
                hint = "name it with `as` to count it by itself, or leave it out"
                notes.add("covered-bracket", text, narrow.span, hint)
                break


# ---------------------------------------------------------------- alerts


def _check_suppress(notes: LintFindings) -> None:
    form, quiet = notes.rule.form, notes.rule.suppress_ms
    if quiet is None:
        return
    where = notes.section_span("suppress")
    if isinstance(form, AggregateForm) and form.repeat_ms is not None:
        if quiet >= form.repeat_ms:
            text = f"`suppress` silences the reminders that `repeat={duration_text(form.repeat_ms)}` asks for"
            notes.add("suppress-hides-repeat", text, where, "leave one of them out")
        return
    apart = 0
    if isinstance(form, SessionForm):
        apart = min(form.gap_ms, form.max_ms or form.gap_ms)
    elif isinstance(form, WindowForm):
        apart = form.every_ms - 1
    if 0 < quiet <= apart:
        text = f"two alerts of a key are always more than {duration_text(quiet)} apart"
        notes.add("idle-suppress", text, where, "make it longer, or leave it out")
