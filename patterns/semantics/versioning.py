"""A rule's version: a hash of all that affects its matches and their records.

What is hashed has names of its own, which stand in `WIRE`: a class or field that is renamed, or a field that is added
with a default, changes no version. tests/fixtures/rule_versions.json holds that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import (
    AggregateForm,
    Expr,
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
_BY, _BRACKETS, _HAVING = ("by", "by", ()), ("brackets", "brackets", ()), ("having", "having", None)

# By class: its name, and of each field the attribute, the name and the value at which it is left out.
WIRE: dict[type, tuple[str, tuple[tuple[str, str, object], ...]]] = {
    tree.Literal: ("value", (("value", "is", _ALWAYS),)),
    tree.Name: ("name", (("path", "path", _ALWAYS),)),
    tree.Param: ("param", (("name", "name", _ALWAYS),)),
    tree.Field: ("field", (("path", "path", _ALWAYS),)),
    tree.OfStep: ("of-step", (("step", "step", _ALWAYS), ("value", "value", _ALWAYS))),
    tree.Aggregate: (
        "aggregate-call",
        (("function", "function", _ALWAYS), ("target", "target", None), ("value", "value", None)),
    ),
    tree.History: (
        "history-call",
        (
            ("function", "function", _ALWAYS),
            ("value", "value", None),
            ("span_ms", "span_ms", _ALWAYS),
            ("where", "where", None),
        ),
    ),
    tree.Unary: ("unary", (("op", "op", _ALWAYS), ("operand", "operand", _ALWAYS))),
    tree.Binary: ("binary", (("op", "op", _ALWAYS), ("left", "left", _ALWAYS), ("right", "right", _ALWAYS))),
    tree.In: (
        "in",
        (
            ("operand", "operand", _ALWAYS),
            ("items", "items", _ALWAYS),
            ("negated", "negated", False),
            ("ignore_case", "ignore_case", False),
        ),
    ),
    tree.TextMatch: (
        "text-match",
        (
            ("kind", "kind", _ALWAYS),
            ("operand", "operand", _ALWAYS),
            ("patterns", "patterns", _ALWAYS),
            ("ignore_case", "ignore_case", False),
        ),
    ),
    tree.Call: ("call", (("function", "function", _ALWAYS), ("args", "args", ()), ("where", "where", None))),
    tree.Key: ("key", (("name", "name", _ALWAYS), ("value", "value", _ALWAYS))),
    tree.Bracket: (
        "bracket",
        (("type", "type", _ALWAYS), ("condition", "condition", _ALWAYS), ("name", "name", None), ("by", "by", None)),
    ),
    tree.Step: (
        "step",
        (
            ("kind", "kind", _ALWAYS),
            _BRACKETS,
            ("name", "name", None),
            ("optional", "optional", False),
            ("next", "next", False),
            ("runs_min", "runs_min", 1),
            ("runs_max", "runs_max", 1),
            ("within_ms", "within_ms", None),
            ("after_ms", "after_ms", None),
            ("for_ms", "for_ms", None),
        ),
    ),
    tree.SequenceForm: (
        "sequence",
        (
            _BY,
            ("maxspan_ms", "maxspan_ms", _ALWAYS),
            ("overlap", "overlap", _ALWAYS),
            ("skip", "skip", _ALWAYS),
            ("steps", "steps", ()),
            ("until", "until", None),
            _HAVING,
        ),
    ),
    tree.AggregateForm: (
        "aggregate",
        (_BY, ("over_ms", "over_ms", _ALWAYS), ("repeat_ms", "repeat_ms", None), _BRACKETS, _HAVING),
    ),
    tree.SessionForm: (
        "session",
        (_BY, ("gap_ms", "gap_ms", _ALWAYS), ("max_ms", "max_ms", None), _BRACKETS, _HAVING),
    ),
    tree.WindowForm: (
        "window",
        (_BY, ("every_ms", "every_ms", _ALWAYS), ("size_ms", "size_ms", _ALWAYS), _BRACKETS, _HAVING),
    ),
}

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
    return max(
        (each.span_ms for expr in _expressions(rule) for each in walk(expr) if isinstance(each, History)), default=0
    )


def reach_ms(rule: Rule) -> int:
    """How far before the first event of a match the events lie on which it usually depends: what is open at that time,
    what must be absent before it, `suppress`, and history. Matches that follow each other closely, each depending on
    the one before, reach further.
    """
    absent = (
        max((step.for_ms or 0 for step in rule.form.steps), default=0) if isinstance(rule.form, SequenceForm) else 0
    )
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
        if isinstance(form, SequenceForm)
        else list(form.brackets)
    )
    for bracket in brackets:
        yield bracket.condition
        yield from (key.value for key in bracket.by or ())
    if form.having is not None:
        yield form.having
    yield from (expr for _, expr in rule.emit)


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
