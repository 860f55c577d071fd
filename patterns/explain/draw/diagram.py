"""What a drawing of a rule shows, before it is known how: boxes in order, the arrows between them, the time line."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, fields, replace
from typing import Any

from samovar.common.times import duration_text
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.findings import visible
from samovar.patterns.syntax.tree import flatten
from samovar.patterns.syntax.unparse import unparse

TAKE, GROUP, ABSENT, BEFORE, WAIT = "take", "group", "absent", "before", "wait"


@dataclass(frozen=True, kw_only=True)
class Box:
    """A step. kind: take, group, absent (between steps), before (a first negation), wait (a last one).

    `lines`: event type and conditions, one per line; a line that begins with white space goes on the one above.
    `arrow`: what is written on the arrow into it. `loop`: how often it repeats.
    """

    kind: str
    title: str
    lines: tuple[str, ...]
    arrow: tuple[str, ...] = ()
    loop: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class TimeLine:
    """kind: sliding, session, tumbling or hopping; `spans` are the times written on it."""

    kind: str
    spans: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagram:
    """`having`: what must hold at the end. `clock`: when a match by timer comes."""

    id: str
    title: str
    severity: str
    facts: tuple[str, ...]
    boxes: tuple[Box, ...]
    time_line: TimeLine | None = None
    having: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    clock: str | None = None
    span: str | None = None


def diagram(rule: tree.Rule) -> Diagram:
    """The drawing's content for a rule. What cannot be seen in its texts is written as escapes."""
    form = rule.form
    suppressed = () if rule.suppress_ms is None else (f"at most one alert in {duration_text(rule.suppress_ms)}",)
    by = f"by {', '.join(key.name for key in form.by)}" if form.by else "one key for all"
    if isinstance(form, tree.SequenceForm):
        drawn = _sequence(rule, form, by, suppressed)
    else:
        boxes = tuple(
            Box(kind=TAKE, title=bracket.name or "events", lines=_bracket(bracket)) for bracket in form.brackets
        )
        having = () if form.having is None else _condition(form.having, "having")
        line = _time_line(form)
        drawn = Diagram(
            id=rule.id,
            title=rule.title,
            severity=rule.severity,
            facts=(by, *suppressed),
            boxes=boxes,
            time_line=line,
            having=having,
        )
    shown: Diagram = _visible(drawn)
    return shown


def _visible(part: Any) -> Any:
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, tuple):
        return tuple(map(_visible, part))
    if isinstance(part, Box | TimeLine | Diagram):
        return replace(part, **{item.name: _visible(getattr(part, item.name)) for item in fields(part)})
    return part


def _time_line(form: tree.AggregateForm | tree.SessionForm | tree.WindowForm) -> TimeLine:
    if isinstance(form, tree.AggregateForm):
        again = () if form.repeat_ms is None else (duration_text(form.repeat_ms),)
        return TimeLine("sliding", (duration_text(form.over_ms), *again))
    if isinstance(form, tree.SessionForm):
        most = () if form.max_ms is None else (duration_text(form.max_ms),)
        return TimeLine("session", (duration_text(form.gap_ms), *most))
    kind = "tumbling" if form.size_ms == form.every_ms else "hopping"
    return TimeLine(kind, (duration_text(form.every_ms), duration_text(form.size_ms)))


def _sequence(rule: tree.Rule, form: tree.SequenceForm, by: str, suppressed: tuple[str, ...]) -> Diagram:
    boxes, number = [], 0
    last = max(index for index, step in enumerate(form.steps) if step.kind is not tree.StepKind.ABSENT)
    for index, step in enumerate(form.steps):
        number += step.kind is not tree.StepKind.ABSENT
        boxes.append(_box(step, number, index > last, form))
    waits = list(form.steps[last + 1 :])
    # One event, and nothing is waited for: the rule has no span.
    span = None if form.takes_one_event and not waits else duration_text(form.maxspan_ms)
    facts = [by] + [f"all within {span}"] * (span is not None)
    facts += [] if form.overlap is tree.Overlap.LATEST else [f"overlap={form.overlap}", f"skip={form.skip}"]
    having = () if form.having is None else _condition(form.having, "having")
    until = () if form.until is None else _bracket(form.until)
    clock = _clock(waits, form) if waits else None
    return Diagram(
        id=rule.id,
        title=rule.title,
        severity=rule.severity,
        facts=(*facts, *suppressed),
        boxes=tuple(boxes),
        having=having,
        until=until,
        clock=clock,
        span=span,
    )


def _box(step: tree.Step, number: int, last: bool, form: tree.SequenceForm) -> Box:
    unordered = step.kind is tree.StepKind.UNORDERED
    lines: list[str] = []
    for at, bracket in enumerate(step.brackets):
        first, *rest = _bracket(bracket)
        lines += [f"• {bracket.name}: {first}" if unordered else f"or {first}" if at else first, *rest]
    if step.kind is tree.StepKind.ABSENT:
        kind, title = (WAIT, f"not until {_clock([step], form)}") if last else (ABSENT, "not in between")
        if step.for_ms is not None:
            kind, title = BEFORE, f"not in the {duration_text(step.for_ms)} before"
        return Box(kind=kind, title=title, lines=tuple(lines))
    title = f"{number} all of these, in any order" if unordered else f"{number} {step.name}"
    loop = step.runs_text + " times" * (step.runs_min == step.runs_max)
    kind = GROUP if unordered else TAKE
    return Box(
        kind=kind,
        title=title,
        lines=tuple(lines),
        arrow=tuple(_arrow(step)),
        loop=loop if step.repeated else None,
        optional=step.optional,
    )


def _arrow(step: tree.Step) -> list[str]:
    labels = ["the very next event"] if step.next else []
    if step.within_ms is not None:
        labels.append(f"within {duration_text(step.within_ms)}")
    if step.after_ms is not None:
        labels.append(f"after {duration_text(step.after_ms)}")
    return labels


def _clock(waits: list[tree.Step], form: tree.SequenceForm) -> str:
    """When a last negation lets go: the latest of several."""
    if any(step.within_ms is None or step.within_ms >= form.maxspan_ms for step in waits):
        return f"{duration_text(form.maxspan_ms)} after the first event"
    return f"{duration_text(max(step.within_ms or 0 for step in waits))} after the step before"


def _bracket(bracket: tree.Bracket) -> tuple[str, ...]:
    name = "any event" if bracket.type == "any" else bracket.type
    others = [unparse(key.value) for key in bracket.by or () if unparse(key.value) != key.name]
    by = f" by {', '.join(others)}" if others else ""
    if bracket.condition == tree.Literal(True):
        return (name + by,)
    return (name + by, *_condition(bracket.condition, "where"))


def _condition(condition: tree.Expr, word: str) -> tuple[str, ...]:
    """One part of the condition a line: `where amount < 2`, `and country != probe.country`."""
    parts = flatten(condition, "and")
    texts = [f"({text})" if " or " in text and len(parts) > 1 else text for text in map(unparse, parts)]
    return tuple(f"  {word if at == 0 else 'and'} {text}" for at, text in enumerate(texts))


def wrap_line(line: str, width: int) -> list[str]:
    """A line of a box as rows of at most so many characters; what goes on is indented further."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(), width, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False
    )
