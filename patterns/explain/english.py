"""A rule in plain English, for a person who does not write rules: what starts it, what must follow, when it fires."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from samovar.patterns.analysis.cost import Cost, cost
from samovar.patterns.explain.phrases import condition_words, counted, duration_words, listed, span_words, value_words
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.findings import visible
from samovar.patterns.syntax.unparse import unparse

_ANY_CONDITION = tree.Literal(True)


@dataclass(frozen=True)
class Section:
    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """A rule in words. `sections` come in the order in which one would tell it."""

    id: str
    title: str
    severity: str
    sections: tuple[Section, ...]


def explain(rule: tree.Rule) -> Explanation:
    """What a rule does, in plain English."""
    names = [key.name for key in rule.form.by]
    watched = "All events together, as one stream."
    if names:
        watched = f"Every {names[0] if len(names) == 1 else f'combination of {listed(names)}'} by itself."
    often = "Every time that it fires."
    if rule.suppress_ms is not None:
        each = f"For one {listed(names)} at most once" if names else "At most once"
        often = f"{each} in {duration_words(rule.suppress_ms)}."
    sections = (
        Section("What it watches", (watched,)),
        *_form_sections(rule),
        Section("What the alert says", tuple(_alert(rule))),
        Section("How often", (often,)),
        Section("What it holds in memory", tuple(_cost_lines(cost(rule)))),
    )
    return Explanation(rule.id, rule.title, rule.severity, sections)


def as_text(explanation: Explanation, width: int = 88) -> str:
    """The explanation as lines of text."""
    title = f"{explanation.title} ({explanation.id}, severity {explanation.severity})"
    lines = textwrap.wrap(title, width)
    for section in explanation.sections:
        lines += ["", section.heading]
        for line in section.lines:
            lead, _, rest = line.partition(" ") if line[:1].isdigit() and ". " in line[:4] else ("", "", line)
            first = f"  {lead} " if lead else "  "
            lines += textwrap.wrap(rest, width, initial_indent=first, subsequent_indent=" " * len(first),
                                   break_on_hyphens=False)  # fmt: skip
    return "\n".join(map(visible, lines)) + "\n"


def _cost_lines(found: Cost) -> Iterator[str]:
    yield (
        f"About {size_words(found.typical_bytes)} for a key with one match under way; "
        f"{size_words(found.worst_bytes)} at the most."
    )
    if found.held_ms is None:
        yield "A key that was once seen is held for ever: the condition of the rule holds also when nothing comes."
    else:
        yield f"A key that falls silent is forgotten {duration_words(found.held_ms)} after its last event."
    if found.overflow_events is not None:
        more = counted(found.overflow_events, "fitting event")
        yield f"With {more} of one key in that time the oldest beginnings are dropped, and counted."


def size_words(size: int) -> str:
    """
    >>> size_words(900), size_words(12_345), size_words(2_500_000)
    ('900 bytes', '12 kB', '2.5 MB')
    """
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1e3:,.0f} kB" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"


def _form_sections(rule: tree.Rule) -> Iterator[Section]:
    form = rule.form
    if isinstance(form, tree.SequenceForm):
        yield Section("What must happen", tuple(_happenings(form)))
        yield Section("When it fires", tuple(_sequence_fires(form)))
    elif isinstance(form, tree.AggregateForm):
        lines = [f"With each event it looks back over the last {span_words(form.over_ms)}. It takes in:"]
        yield Section("What it looks at", (*lines, *_taken_in(form.brackets)))
        again = "It fires once, and again only after that has stopped being so in between."
        if form.repeat_ms is not None:
            every = duration_words(form.repeat_ms)
            again = f"While that goes on, it fires again with the first event after every {every}."
        yield Section("When it fires", (f"As soon as {condition_words(form.having)}.", again))
    elif isinstance(form, tree.SessionForm):
        cut = f" A session is cut after {duration_words(form.max_ms)}." if form.max_ms is not None else ""
        text = f"Sessions: events with no quiet time of more than {duration_words(form.gap_ms)} between them.{cut}"
        yield Section("What it looks at", (text, "It takes in:", *_taken_in(form.brackets)))
        end = f"When the session is over, that is {duration_words(form.gap_ms)} after its last event"
        yield Section("When it fires", (f"{end}{_if_having(form)}.",))
    else:
        text = f"Windows of {duration_words(form.size_ms)} by the clock (UTC)"
        if form.size_ms == form.every_ms:
            text += ", one after the other."
        else:
            text += f", a new one every {span_words(form.every_ms)}, so that they overlap."
        yield Section("What it looks at", (text, "It takes in:", *_taken_in(form.brackets)))
        yield Section("When it fires", (f"When the window is over{_if_having(form)}.",))


def _if_having(form: tree.SessionForm | tree.WindowForm) -> str:
    return "" if form.having is None else f", if {condition_words(form.having)}"


def _taken_in(brackets: tuple[tree.Bracket, ...]) -> Iterator[str]:
    for number, bracket in enumerate(brackets, 1):
        yield f"{number}. {_event(bracket, plural=True, name=bracket.name)}{_key_note(bracket)}."


def _happenings(form: tree.SequenceForm) -> Iterator[str]:
    number = 0
    for index, step in enumerate(form.steps):
        if step.kind is tree.StepKind.ABSENT:
            last = all(step.kind is tree.StepKind.ABSENT for step in form.steps[index:])
            text = _absence(step, last, form)
        else:
            text = _step(step, number == 0)
            number += 1
        yield f"{index + 1}. {text}"
    if not form.takes_one_event:
        span = f"within {duration_words(form.maxspan_ms)}, from the first event to the last"
        yield f"All of it {span if form.maxspan_ms else 'at the very same time'}."
    if form.having is not None:
        yield f"And at the end: {condition_words(form.having)}."
    if form.until is not None:
        yield f"If {_event(form.until)} comes, all that was begun is forgotten."


def _step(step: tree.Step, first: bool) -> str:
    lead = "It starts with" if first else "Then"
    if step.next and not first:
        lead = "Right after that, with no other event of the key between,"
    if step.optional:
        lead = "It may start with" if first else "Then perhaps"
    if step.kind is tree.StepKind.UNORDERED:
        members = listed([_event(member, name=member.name) + _key_note(member) for member in step.brackets])
        return f"{lead} all of these, in any order: {members}{_times(step)}."
    events = [_event(bracket, plural=step.repeated, name=step.name) + _key_note(bracket) for bracket in step.brackets]
    either = "either " if len(events) > 1 else ""
    tail = " (this may be left out)" if step.optional else ""
    many = f"{step.runs_text} " if step.repeated else ""
    return f"{lead} {either}{many}{' or '.join(events)}{_times(step)}{tail}."


def _times(step: tree.Step) -> str:
    parts = []
    if step.within_ms is not None:
        parts.append(f"at most {duration_words(step.within_ms)}")
    if step.after_ms is not None:
        parts.append(f"at least {duration_words(step.after_ms)}")
    return f", {' and '.join(parts)} after the step before" if parts else ""


def _absence(step: tree.Step, last: bool, form: tree.SequenceForm) -> str:
    what = " and no ".join(_event(bracket, article=False) + _key_note(bracket) for bracket in step.brackets)
    if step.for_ms is not None:
        return f"In the {span_words(step.for_ms)} before the start there was no {what}."
    if not last:
        return f"In between there comes no {what}."
    if step.within_ms is not None and step.within_ms < form.maxspan_ms:
        return f"Then, for {duration_words(step.within_ms)} after the step before, there comes no {what}."
    return f"Then, until {duration_words(form.maxspan_ms)} after the first event, there comes no {what}."


def _sequence_fires(form: tree.SequenceForm) -> Iterator[str]:
    if form.steps[-1].kind is tree.StepKind.ABSENT:
        yield "By the clock, when that time has passed and nothing forbidden has come."
    elif form.takes_one_event:
        yield "At once, with that event."
        return
    else:
        yield "At the moment of the last event."
    if form.overlap is tree.Overlap.LATEST and form.steps[-1].kind is tree.StepKind.ABSENT:
        yield "While it waits, further beginnings of the same key are not followed."
    else:
        yield {
            tree.Overlap.ANY: "Every combination of events that fits is found.",
            tree.Overlap.ALL: "Every event that could be the beginning is followed by itself.",
            tree.Overlap.LATEST: "Where it could have begun at several events, the newest is followed.",
        }[form.overlap]
    yield {
        tree.Skip.PAST_LAST: "After an alert it starts again: no event before it is used again.",
        tree.Skip.TO_NEXT: "After an alert, what began with the same event is forgotten; the rest goes on.",
        tree.Skip.NONE: "After an alert all that was begun goes on.",
    }[form.skip]


def _event(bracket: tree.Bracket, plural: bool = False, article: bool = True, name: str | None = None) -> str:
    """`a purchase event ("probe") in which amount is below 2`."""
    noun = "event of any type" if bracket.type == "any" else f"{bracket.type} event"
    if plural:
        noun = "events of any type" if bracket.type == "any" else f"{bracket.type} events"
    elif article:
        noun = f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
    called = f' ("{name}")' if name else ""
    where = "" if bracket.condition == _ANY_CONDITION else f" in which {condition_words(bracket.condition)}"
    return f"{noun}{called}{where}"


def _key_note(bracket: tree.Bracket) -> str:
    """Where the key has another name in this type: by which field it is found."""
    others = [
        f"{value_words(key.value)} is the {key.name}"
        for key in bracket.by or ()
        if unparse(key.value) != key.name and not isinstance(key.value, tree.Literal)
    ]
    return f" ({listed(others)})" if others else ""


def _alert(rule: tree.Rule) -> Iterator[str]:
    if rule.message:
        text = ""
        for part in rule.message:
            words = part if isinstance(part, str) else value_words(part)
            text += words if isinstance(part, str | tree.Literal) else f"<{words}>"
        yield f"“{text}”"
    for name, expr in rule.emit:
        words = value_words(expr)
        yield name if words == name else f"{name}: {words}."
    if not rule.message and not rule.emit:
        yield "Which rule fired, for which key, when, and by which events."
