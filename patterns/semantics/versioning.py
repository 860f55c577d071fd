"""A rule's version: a hash of all that affects its matches and their records.

What is hashed has names of its own, which stand in `WIRE`: a class or field that is renamed, or a field that is added
with a default, changes no version. tests/fixtures/rule_versions.json holds that.
"""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Any

from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import (
    AggregateForm,
    History,
    Literal,
    Rule,
    SequenceForm,
    SessionForm,
    WindowForm,
    walk,
)

# Part of the hash: raised when the same rule text comes to mean something else.
MEANING = 1

_ALWAYS = object()  # a field that is never left out


def _part(name: str, /, **fields: object) -> tuple[str, tuple[tuple[str, str, object], ...]]:
    """A part whose fields are hashed under the names of their attributes, which they keep when those are renamed."""
    return name, tuple((attribute, attribute, left_out_at) for attribute, left_out_at in fields.items())


# By class: its name, and of each field the attribute, the name and the value at which it is left out.
WIRE: dict[type, tuple[str, tuple[tuple[str, str, object], ...]]] = {
    tree.Literal: ("value", (("value", "is", _ALWAYS),)),
    tree.Name: _part("name", path=_ALWAYS),
    tree.Field: _part("field", path=_ALWAYS),
    tree.OfStep: _part("of-step", step=_ALWAYS, value=_ALWAYS),
    tree.Aggregate: _part("aggregate-call", function=_ALWAYS, target=None, value=None),
    tree.History: _part("history-call", function=_ALWAYS, value=None, span_ms=_ALWAYS, where=None),
    tree.Unary: _part("unary", op=_ALWAYS, operand=_ALWAYS),
    tree.Binary: _part("binary", op=_ALWAYS, left=_ALWAYS, right=_ALWAYS),
    tree.In: _part("in", operand=_ALWAYS, items=_ALWAYS, negated=False, ignore_case=False),
    tree.TextMatch: _part("text-match", kind=_ALWAYS, operand=_ALWAYS, patterns=_ALWAYS, ignore_case=False),
    tree.Call: _part("call", function=_ALWAYS, args=(), where=None),
    tree.Key: _part("key", name=_ALWAYS, value=_ALWAYS),
    tree.Bracket: _part("bracket", type=_ALWAYS, condition=_ALWAYS, name=None, by=None),
    tree.Step: _part(
        "step", kind=_ALWAYS, brackets=(), name=None, optional=False, next=False, runs_min=1, runs_max=1,
        within_ms=None, after_ms=None, for_ms=None,
    ),
    tree.SequenceForm: _part(
        "sequence", by=(), maxspan_ms=_ALWAYS, overlap=_ALWAYS, skip=_ALWAYS, steps=(), until=None, having=None
    ),
    tree.AggregateForm: _part("aggregate", by=(), over_ms=_ALWAYS, repeat_ms=None, brackets=(), having=None),
    tree.SessionForm: _part("session", by=(), gap_ms=_ALWAYS, max_ms=None, brackets=(), having=None),
    tree.WindowForm: _part("window", by=(), every_ms=_ALWAYS, size_ms=_ALWAYS, brackets=(), having=None),
}  # fmt: skip

OPEN_SESSION_MS = 86_400_000  # that a session without an end of its own drains
LONG_SPAN_MS = 3_600_000  # from here on a rule that begins with nothing says too little, or too much, for long


def lasting_ms(rule: Rule) -> int:
    """For how long after an event, in event time, a rule may wait before it says something about it."""
    match rule.form:
        case SequenceForm() as form:
            return form.maxspan_ms
        case SessionForm() as form:
            return max(form.gap_ms, form.max_ms or 0)
        case WindowForm() as form:
            return form.size_ms
        case AggregateForm() as form:
            return form.over_ms + (form.repeat_ms or 0)


def draining_ms(rule: Rule) -> int:
    """For how long a version goes on with what it began. A session that has no `max` may go on as long as events come:
    after a day it is given up.
    """
    form = rule.form
    is_open = isinstance(form, SessionForm) and form.max_ms is None
    return max(lasting_ms(rule), OPEN_SESSION_MS) if is_open else lasting_ms(rule)


def history_ms(rule: Rule) -> int:
    """The longest span of its history functions; 0 where it has none."""
    expressions = [expr for _, expr in rule.emit] + ([] if rule.form.having is None else [rule.form.having])
    for bracket in brackets_of(rule):
        expressions += [bracket.condition, *(key.value for key in bracket.by or ())]
    return max((part.span_ms for expr in expressions for part in walk(expr) if isinstance(part, History)), default=0)


def reach_ms(rule: Rule) -> int:
    """How far before the first event of a match the events lie on which it usually depends: what is open at that time,
    what must be absent before it, `suppress`, and history. Matches that follow each other closely, each depending on
    the one before, reach further.
    """
    steps = rule.form.steps if isinstance(rule.form, SequenceForm) else ()
    absent = max((step.for_ms or 0 for step in steps), default=0)
    return lasting_ms(rule) + absent + (rule.suppress_ms or 0) + history_ms(rule)


def cold_ms(rule: Rule) -> int:
    """For how long a rule that begins with no history cannot be trusted; 0 where that is short.

    A history function that knows nothing yet says `never seen before` of everything; a long window is not full.
    """
    own = lasting_ms(rule)
    return max(history_ms(rule), own if own >= LONG_SPAN_MS else 0)


def version_of(rule: Rule) -> str:
    """16 hex digits over the resolved form, `emit` and `suppress`, in which parameters, lists and lets are written out.

    White space, comments, the title, severity, tags, message and tests do not count.
    """
    content = [MEANING, plain(rule.form), plain(rule.emit), rule.suppress_ms]
    return hashlib.sha256(text_of(content).encode("ascii")).hexdigest()[:16]


def text_of(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def plain(node: Any) -> Any:
    """Data for JSON: a part of a rule as its name and fields, without positions."""
    if type(node) is Literal:  # as below, and quicker: a list may have very many
        return ["value", {"is": plain(node.value)}]
    if isinstance(node, Enum):
        return node.value
    if isinstance(node, str):
        return node
    if isinstance(node, tuple):
        return [plain(item) for item in node]
    known = WIRE.get(type(node))
    if known is not None:
        name, fields = known
        values = ((wire, getattr(node, attribute), usual) for attribute, wire, usual in fields)
        return [name, {wire: plain(value) for wire, value, usual in values if usual is _ALWAYS or value != usual}]
    # 1 and 1.0 compare alike everywhere in the language, true and 1 do not.
    if isinstance(node, float) and node.is_integer() and abs(node) < 2**53:
        return int(node)
    return node
