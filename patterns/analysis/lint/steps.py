"""Lint of a sequence's steps: those that can never be taken, and those that change nothing."""

from __future__ import annotations

import re

from samovar.common.times import duration_text
from samovar.patterns.analysis.lint.catalog import LintFindings
from samovar.patterns.analysis.lint.contexts import event_scope
from samovar.patterns.analysis.satisfiability import implies, satisfiable
from samovar.patterns.syntax.tree import Bracket, Overlap, SequenceForm, Step, StepKind

_UNIQUE = re.compile(r"(.*[._-])?(uuid|guid|id)\Z", re.I)


def check_steps(form: SequenceForm, notes: LintFindings) -> None:
    _check_times(form, notes)
    for step in form.steps:
        _check_alternatives(step, notes)
    for before, step in zip(form.steps, form.steps[1:], strict=False):
        if before.kind is StepKind.ABSENT and step.kind is not StepKind.ABSENT and before is not form.steps[0]:
            _check_negation(before, step, notes)
    _check_until(form, notes)
    _check_waiting(form, notes)


def covers(wide: Bracket, narrow: Bracket, notes: LintFindings) -> bool:
    """Whether every event that fits the narrow bracket fits the wide one too, under the same key."""
    if wide.type not in ("any", narrow.type) or _keys(wide) != _keys(narrow):
        return False
    return implies([narrow.condition], wide.condition, event_scope(narrow, notes.schema, notes.effort))


def _keys(bracket: Bracket) -> tuple[object, ...]:
    return tuple(key.value for key in bracket.by or ())


# ---------------------------------------------------------------- times


def _check_times(form: SequenceForm, notes: LintFindings) -> None:
    maxspan, least = form.maxspan_ms, 0
    for step in form.steps:
        if step.within_ms is not None and step.after_ms is not None and step.within_ms < step.after_ms:
            text = f"at least {duration_text(step.after_ms)} and at most {duration_text(step.within_ms)} after the step"
            notes.add("never-in-time", f"{text} before: no event is both", step.span, "swap `after` and `within`")
        elif step.within_ms is not None and step.within_ms > maxspan:
            text = f"`within={duration_text(step.within_ms)}` is longer than `maxspan={duration_text(maxspan)}`"
            hint = f"write `maxspan={duration_text(step.within_ms)}`, or leave `within` out"
            notes.add("within-over-maxspan", text, step.span, hint)
        if not step.optional:
            least += step.after_ms or 0
        elif (step.after_ms or 0) + least > maxspan:
            _report_after(step, maxspan, notes)
        if not step.optional and least > maxspan:
            _report_after(step, maxspan, notes)
            return
    _check_zero(form, notes)


def _report_after(step: Step, maxspan: int, notes: LintFindings) -> None:
    text = f"`after` puts this step beyond `maxspan={duration_text(maxspan)}`: it can never be taken"
    notes.add("never-in-time", text, step.span, "make `maxspan` longer, or `after` shorter")


def _check_zero(form: SequenceForm, notes: LintFindings) -> None:
    taken = [step for step in form.steps if step.kind is not StepKind.ABSENT]
    several = len(taken) > 1 or taken[0].runs_min > 1 or taken[0].kind is StepKind.UNORDERED
    if form.maxspan_ms == 0 and several:
        text = "with `maxspan=0ms` all events of a match have the very same time"
        notes.add("zero-maxspan", text, form.span, "write the time that the whole may take, as in `maxspan=10m`")


# ---------------------------------------------------------------- brackets against brackets


def _check_alternatives(step: Step, notes: LintFindings) -> None:
    if step.kind is StepKind.UNORDERED:
        return
    for index, narrow in enumerate(step.brackets):
        for at, wide in enumerate(step.brackets):
            mutual = at > index and covers(narrow, wide, notes)
            if at != index and not mutual and covers(wide, narrow, notes):
                text = f"every event of this alternative fits the one on line {wide.span.line} too"
                notes.add("covered-alternative", text, narrow.span, "leave it out, or make the other one narrower")
                break


def _check_negation(negation: Step, step: Step, notes: LintFindings) -> None:
    forbidden = [
        bracket for bracket in step.brackets if any(covers(wide, bracket, notes) for wide in negation.brackets)
    ]
    if len(forbidden) == len(step.brackets):
        text = "the negation before this step forbids every event that could be it"
        hint = "where one event is both, it kills: make the negation narrower, as in `![type where ... and not (...)]`"
        notes.add("killed-step", text, step.span, hint)
    elif forbidden:
        text = "the negation before this step forbids this alternative"
        notes.add("killed-step", text, forbidden[0].span, "make the negation narrower")
    elif step.next and not any(
        _can_be_both(wide, bracket, notes) for wide in negation.brackets for bracket in step.brackets
    ):
        text = "after `next` no event comes between, so this negation forbids nothing"
        notes.add("idle-negation", text, negation.span, "leave it out, or leave `next` out")


def _can_be_both(one: Bracket, two: Bracket, notes: LintFindings) -> bool:
    if "any" not in (one.type, two.type) and one.type != two.type:
        return False
    narrow = two if one.type == "any" else one
    return satisfiable([one.condition, two.condition], event_scope(narrow, notes.schema, notes.effort))


def _check_until(form: SequenceForm, notes: LintFindings) -> None:
    if form.until is None:
        return
    for step in form.steps:
        for bracket in step.brackets:
            if covers(form.until, bracket, notes):
                what = "negation" if step.kind is StepKind.ABSENT else "step"
                text = f"`until` is tested first and takes every event that could be this {what}"
                notes.add("until-takes-step", text, bracket.span, "make the condition of `until` narrower")


# ---------------------------------------------------------------- a negation that waits


def _check_waiting(form: SequenceForm, notes: LintFindings) -> None:
    """While one partial waits for its deadline, `latest` drops newer ones of the same key."""
    last = form.steps[-1]
    if last.kind is not StepKind.ABSENT or form.overlap is not Overlap.LATEST:
        return
    start = next(step for step in form.steps if step.kind is not StepKind.ABSENT)
    if all(any(covers(wide, bracket, notes) for wide in last.brackets) for bracket in start.brackets):
        return  # a new start kills the waiting one: a heartbeat
    if any(_is_one_per_event(key.name, start) for key in form.by):
        return
    keyed = ", ".join(key.name for key in form.by)
    of = f"of the same {keyed} " if keyed else ""
    text = f"while this waits, a further `{start.brackets[0].type}` {of}is dropped"
    hint = "key by what is new each time, as in `by order_id`, or write `overlap=all` to watch every one"
    notes.add("waiting-absence", text, last.span, hint)


def _is_one_per_event(name: str, start: Step) -> bool:
    """Whether a key's name says that each event has its own: `id`, `uuid`, or `order_id` of an `order`."""
    found = _UNIQUE.match(name)
    if found is None:
        return False
    of = (found[1] or "").strip("._-").lower()
    types = [bracket.type.lower() for bracket in start.brackets]
    return not of or any(of in kind or kind in of for kind in types) or found[2].lower() != "id"
