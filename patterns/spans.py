"""How far back in event time a rule looks: what a change of rules must wait for, or make up for."""

from __future__ import annotations

from collections.abc import Iterator

from samovar.patterns.syntax import AggregateForm, Expr, History, Rule, Sequence, Session, Window, walk

OPEN_SESSION_MS = 86_400_000  # that a session without an end of its own drains
LONG_SPAN_MS = 3_600_000  # from here on a rule that begins with nothing says too little, or too much, for long


def lasting_ms(rule: Rule) -> int:
    """For how long after an event, in event time, a rule may wait before it says something about it."""
    match rule.form:
        case Sequence() as form:
            return form.maxspan_ms
        case Session() as form:
            return max(form.gap_ms, form.max_ms or 0)
        case Window() as form:
            return form.size_ms
        case AggregateForm() as form:
            return form.over_ms + (form.repeat_ms or 0)


def draining_ms(rule: Rule) -> int:
    """For how long a version goes on with what it began. A session that has no `max` may go on as long as events come:
    after a day it is given up.
    """
    form = rule.form
    is_open = isinstance(form, Session) and form.max_ms is None
    return max(lasting_ms(rule), OPEN_SESSION_MS) if is_open else lasting_ms(rule)


def history_ms(rule: Rule) -> int:
    """The longest span of its history functions; 0 where it has none."""
    return max(
        (each.span_ms for expr in _expressions(rule) for each in walk(expr) if isinstance(each, History)), default=0
    )


def reach_ms(rule: Rule) -> int:
    """How far before the first event of a match the events lie on which it usually depends: what is open at that time,
    what must be absent before it, `suppress`, and history. Matches that follow each other closely, each depending on
    the one before, reach further.
    """
    absent = max((step.for_ms or 0 for step in rule.form.steps), default=0) if isinstance(rule.form, Sequence) else 0
    return lasting_ms(rule) + absent + (rule.suppress_ms or 0) + history_ms(rule)


def cold_ms(rule: Rule) -> int:
    """For how long a rule that begins with no history cannot be trusted; 0 where that is short.

    A history function that knows nothing yet says `never seen before` of everything; a long window is not full.
    """
    own = lasting_ms(rule)
    return max(history_ms(rule), own if own >= LONG_SPAN_MS else 0)


def _expressions(rule: Rule) -> Iterator[Expr]:
    form = rule.form
    brackets = (
        [each for step in form.steps for each in step.brackets] + ([] if form.until is None else [form.until])
        if isinstance(form, Sequence)
        else list(form.brackets)
    )
    for bracket in brackets:
        yield bracket.condition
        yield from (key.value for key in bracket.by or ())
    if form.having is not None:
        yield form.having
    yield from (expr for _, expr in rule.emit)
