"""Lint of a rule's form: steps that can never be taken or change nothing, what it may hold, how often it speaks."""

from __future__ import annotations

import re

from samovar.common.times import UNITS, duration_text
from samovar.patterns.analysis.cost import cost
from samovar.patterns.analysis.lint.catalog import LintFindings, event_scope
from samovar.patterns.analysis.satisfiability import implies, satisfiable
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_PARTIALS
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import walk
from samovar.patterns.syntax.yaml import Text

LONG_MS = 30 * UNITS["d"]
LONG_HISTORY_MS = 90 * UNITS["d"]
MANY_WINDOWS = 100
FEW_EVENTS = 100  # that a busy key has in no time
LARGE_STATE_BYTES = 16_000_000

_UNIQUE = re.compile(r"(.*[._-])?(uuid|guid|id)\Z", re.I)


def check_steps(form: tree.SequenceForm, notes: LintFindings) -> None:
    _check_times(form, notes)
    for step in form.steps:
        if step.kind is not tree.StepKind.UNORDERED:
            text = "every event of this alternative fits the one on line {line} too"
            hint = "leave it out, or make the other one narrower"
            _check_covered(step.brackets, frozenset(), ("covered-alternative", text, hint), notes)
    for before, step in zip(form.steps, form.steps[1:], strict=False):
        if (
            before.kind is tree.StepKind.ABSENT
            and step.kind is not tree.StepKind.ABSENT
            and before is not form.steps[0]
        ):
            _check_negation(before, step, notes)
    for step in form.steps if form.until is not None else ():
        for bracket in step.brackets:
            if form.until is not None and _covers(form.until, bracket, notes):
                what = "negation" if step.kind is tree.StepKind.ABSENT else "step"
                text = f"`until` is tested first and takes every event that could be this {what}"
                notes.add("until-takes-step", text, bracket.span, "make the condition of `until` narrower")
    _check_waiting(form, notes)


def _covers(wide: tree.Bracket, narrow: tree.Bracket, notes: LintFindings) -> bool:
    """Whether every event that fits the narrow bracket fits the wide one too, under the same key."""
    keys = [[key.value for key in bracket.by or ()] for bracket in (wide, narrow)]
    if wide.type not in ("any", narrow.type) or keys[0] != keys[1]:
        return False
    return implies([narrow.condition], wide.condition, event_scope(narrow, notes.schema, notes.effort))


def _check_covered(
    brackets: tuple[tree.Bracket, ...], read: frozenset[str | None], finding: tuple[str, str, str], notes: LintFindings
) -> None:
    """Brackets that another one covers; of two that cover each other the later. Those that are `read` count."""
    id, text, hint = finding
    for at, narrow in enumerate(brackets):
        if narrow.name is not None and narrow.name in read:
            continue
        for place, wide in enumerate(brackets):
            mutual = place > at and _covers(narrow, wide, notes)
            if place != at and not mutual and _covers(wide, narrow, notes):
                notes.add(id, text.format(line=wide.span.line), narrow.span, hint)
                break


def _check_times(form: tree.SequenceForm, notes: LintFindings) -> None:
    maxspan, least = form.maxspan_ms, 0
    for step in form.steps:
        if step.within_ms is not None and step.after_ms is not None and step.within_ms < step.after_ms:
            text = f"at least {duration_text(step.after_ms)} and at most {duration_text(step.within_ms)} after the step"
            notes.add("never-in-time", f"{text} before: no event is both", step.span, "swap `after` and `within`")
        elif step.within_ms is not None and step.within_ms > maxspan:
            text = f"`within={duration_text(step.within_ms)}` is longer than `maxspan={duration_text(maxspan)}`"
            hint = f"write `maxspan={duration_text(step.within_ms)}`, or leave `within` out"
            notes.add("within-over-maxspan", text, step.span, hint)
        reached = least + (step.after_ms or 0)
        if reached > maxspan:
            text = f"`after` puts this step beyond `maxspan={duration_text(maxspan)}`: it can never be taken"
            notes.add("never-in-time", text, step.span, "make `maxspan` longer, or `after` shorter")
        if not step.optional:
            least = reached
        if least > maxspan:
            return
    first = form.taken[0]
    if form.maxspan_ms == 0 and (len(form.taken) > 1 or first.runs_min > 1 or first.kind is tree.StepKind.UNORDERED):
        text = "with `maxspan=0ms` all events of a match have the very same time"
        notes.add("zero-maxspan", text, form.span, "write the time that the whole may take, as in `maxspan=10m`")


def _check_negation(negation: tree.Step, step: tree.Step, notes: LintFindings) -> None:
    def can_be_both(one: tree.Bracket, two: tree.Bracket) -> bool:
        if "any" not in (one.type, two.type) and one.type != two.type:
            return False
        narrow = two if one.type == "any" else one
        return satisfiable([one.condition, two.condition], event_scope(narrow, notes.schema, notes.effort))

    forbidden = [each for each in step.brackets if any(_covers(wide, each, notes) for wide in negation.brackets)]
    if len(forbidden) == len(step.brackets):
        text = "the negation before this step forbids every event that could be it"
        hint = "where one event is both, it kills: make the negation narrower, as in `![type where ... and not (...)]`"
        notes.add("killed-step", text, step.span, hint)
    elif forbidden:
        text = "the negation before this step forbids this alternative"
        notes.add("killed-step", text, forbidden[0].span, "make the negation narrower")
    elif step.next and not any(can_be_both(wide, each) for wide in negation.brackets for each in step.brackets):
        text = "after `next` no event comes between, so this negation forbids nothing"
        notes.add("idle-negation", text, negation.span, "leave it out, or leave `next` out")


def _check_waiting(form: tree.SequenceForm, notes: LintFindings) -> None:
    """While one partial waits for its deadline, `latest` drops newer ones of the same key."""
    last, start = form.steps[-1], form.taken[0]
    if last.kind is not tree.StepKind.ABSENT or form.overlap is not tree.Overlap.LATEST:
        return
    if all(any(_covers(wide, bracket, notes) for wide in last.brackets) for bracket in start.brackets):
        return  # a new start kills the waiting one: a heartbeat
    for key in form.by:
        # Whether a key's name says that each event has its own: `id`, `uuid`, or `order_id` of an `order`.
        found = _UNIQUE.match(key.name)
        of = (found[1] or "").strip("._-").lower() if found else ""
        types = [bracket.type.lower() for bracket in start.brackets]
        if found and (not of or any(of in kind or kind in of for kind in types) or found[2].lower() != "id"):
            return
    keyed = ", ".join(key.name for key in form.by)
    of_key = f"of the same {keyed} " if keyed else ""
    text = f"while this waits, a further `{start.brackets[0].type}` {of_key}is dropped"
    hint = "key by what is new each time, as in `by order_id`, or write `overlap=all` to watch every one"
    notes.add("waiting-absence", text, last.span, hint)


def check_bounds(notes: LintFindings) -> None:
    form = notes.rule.form
    _check_long(notes)
    if not form.by:
        notes.add("one-key", "without `by` every event has the same key", form.span, "write `by FIELD`")
    if isinstance(form, tree.SessionForm) and form.max_ms is None:
        text = f"a key that is never quiet for {duration_text(form.gap_ms)} never ends its session"
        notes.add("open-session", text, form.span, f"add `max=8h`: `with gap={duration_text(form.gap_ms)}, max=8h`")
    if isinstance(form, tree.WindowForm) and form.size_ms // form.every_ms > MANY_WINDOWS:
        text = f"every event enters {form.size_ms // form.every_ms:,} windows"
        notes.add("many-windows", text, form.span, "make `every` longer, or write an `aggregate`, whose window slides")
    if isinstance(form, tree.SequenceForm):
        _check_cost(form, notes)
    else:
        shown = [*notes.rule.shown, *([form.having] if form.having else [])]
        read = frozenset(item.target for expr in shown for item in walk(expr) if isinstance(item, tree.Aggregate))
        text = "every event of this bracket is taken in by the one on line {line} already"
        hint = "name it with `as` to count it by itself, or leave it out"
        _check_covered(form.brackets, read, ("covered-bracket", text, hint), notes)
    _check_suppress(notes)


def _check_long(notes: LintFindings) -> None:
    form = notes.rule.form
    span_ms = {tree.SequenceForm: "maxspan_ms", tree.AggregateForm: "over_ms"}.get(type(form))
    if span_ms is not None and getattr(form, span_ms) > LONG_MS:
        text = f"the state of every key is held for {duration_text(getattr(form, span_ms))}"
        notes.add("long-span", text, form.span, "a shorter span, or seen(...) with a long one, holds less")
    steps = form.steps if isinstance(form, tree.SequenceForm) else (form,)
    for bracket in (bracket for step in steps for bracket in step.brackets):
        for item in walk(bracket.condition):
            if isinstance(item, tree.History) and item.span_ms > LONG_HISTORY_MS:
                what = "event" if bracket.type == "any" else f"`{bracket.type}`"
                held = duration_text(item.span_ms)
                text = f"every {what} of a key is held for {held}, at most {MAX_EVENTS:,} of them"
                hint = "inside it, `where` holds only the events that satisfy it: `seen(device, 90d where ok == true)`"
                notes.add("long-history", text, item.span, hint if item.where is None else None)


def _check_cost(form: tree.SequenceForm, notes: LintFindings) -> None:
    found = cost(notes.rule)
    bounded = all(step.within_ms is not None and step.runs_max == step.runs_min for step in form.taken[1:])
    few = found.overflow_events is not None and found.overflow_events < FEW_EVENTS
    if form.overlap is tree.Overlap.ANY and few and not bounded:
        text = (
            f"{found.overflow_events} events of one key within {duration_text(form.maxspan_ms)} can make more than "
            f"{MAX_PARTIALS:,} partial matches; the oldest are then dropped"
        )
        notes.add("many-partials", text, form.span, "give the steps `within=...`, or write `overlap=all`")
    elif found.worst_bytes > LARGE_STATE_BYTES:
        text = f"a busy key can come to hold {found.worst_bytes / 1e6:,.0f} MB"
        hint = "give the repeated step an upper bound, as in `runs=3..20`, or write `overlap=latest`"
        notes.add("large-state", text, form.span, hint)


def _check_suppress(notes: LintFindings) -> None:
    form, quiet = notes.rule.form, notes.rule.suppress_ms
    if quiet is None:
        return
    key_span, node = notes.sections().get("suppress", (form.span, None))
    where = node.span if isinstance(node, Text) else key_span
    if isinstance(form, tree.AggregateForm) and form.repeat_ms is not None:
        if quiet >= form.repeat_ms:
            text = f"`suppress` silences the reminders that `repeat={duration_text(form.repeat_ms)}` asks for"
            notes.add("suppress-hides-repeat", text, where, "leave one of them out")
        return
    apart = 0
    if isinstance(form, tree.SessionForm):
        apart = min(form.gap_ms, form.max_ms or form.gap_ms)
    elif isinstance(form, tree.WindowForm):
        apart = form.every_ms - 1
    if 0 < quiet <= apart:
        text = f"two alerts of a key are always more than {duration_text(quiet)} apart"
        notes.add("idle-suppress", text, where, "make it longer, or leave it out")
