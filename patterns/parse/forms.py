"""From lark's trees to the raw form: head, steps, brackets, `until` and `having`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lark import Token, Tree

from samovar.patterns.parse.expressions import Builder, path_text
from samovar.patterns.parse.literals import Branch
from samovar.patterns.parse.options import MatchOptions, read_options, set_option
from samovar.patterns.syntax.tree import NOWHERE, Bracket, Key, Literal, Name, Span, Step, StepKind

_ON_STEPS = "it is an option of a step"
_STEP = {"runs": "", "within": "", "after": "", "for": "", "maxspan": "it stands after `sequence`",
         "overlap": "it stands after `sequence`", "skip": "it stands after `sequence`"}  # fmt: skip
_HEAD: Mapping[str, Mapping[str, str]] = {
    "sequence": {"maxspan": "", "overlap": "", "skip": "", "runs": _ON_STEPS, "within": _ON_STEPS,
                 "after": _ON_STEPS, "for": _ON_STEPS},
    "session": {"gap": "", "max": "", "maxspan": "a session ends by its gap; `max` cuts it"},
    "aggregate": {"repeat": "", "maxspan": "an aggregate has `over 10m`"},
    "window": {"size": "", "maxspan": "a window has `every 10m`"},
}  # fmt: skip

# What a group or the brackets of the other forms cannot have.
NO_OPTIONS = dict.fromkeys(_STEP, "only the steps of a sequence have options")


@dataclass
class FormHead:
    kind: str
    by: tuple[Key, ...] | None = None
    options: MatchOptions = field(default_factory=MatchOptions)
    span: Span = NOWHERE


@dataclass
class StepText:
    """A raw step, with the place of each of its options, prefixes and its name."""

    step: Step
    marks: dict[str, Span]
    sound: bool = True


def build_head(node: Branch, builder: Builder) -> FormHead:
    kind, *clauses = node.children
    head = FormHead(str(kind), span=builder.span(node))
    for clause in clauses:
        assert isinstance(clause, Tree)
        if clause.data == "by":
            _set_by(head, clause, builder)
        elif clause.data == "with":
            read_options(_trees(clause), _HEAD[head.kind], builder, head.options)
        else:
            _set_frame(head, clause, builder)
    return head


def _set_by(head: FormHead, clause: Branch, builder: Builder) -> None:
    if head.by is not None:
        hint = "name all fields after one `by`, with commas"
        builder.report.error("duplicate-option", "`by` stands twice", builder.span(clause), hint=hint)
    head.by = keys(clause, builder)


def _set_frame(head: FormHead, clause: Branch, builder: Builder) -> None:
    """`over D` or `every D`, with the options that may follow a comma."""
    name = str(clause.data)
    value, *options = _trees(clause)
    belongs = {"over": "aggregate", "every": "window"}[name]
    if head.kind != belongs:
        message = f"`{name}` belongs to `{belongs}`"
        builder.report.error("misplaced-option", message, builder.span(clause), hint=_FRAME_HINTS[head.kind])
        head.options.misspelt = True
        return
    head.options.marks[name] = builder.span(clause)
    set_option(name, value, builder, head.options)
    read_options(options, _HEAD[head.kind], builder, head.options)


_FRAME_HINTS = {
    "sequence": "a sequence has `with maxspan=10m`",
    "session": "a session has `with gap=30m`",
    "aggregate": "an aggregate has `over 10m`",
    "window": "a window has `every 10m`",
}


def keys(clause: Branch, builder: Builder) -> tuple[Key, ...]:
    found: list[Key] = []
    for node in _trees(clause):
        path = path_text(str(node.children[-1]))
        span = builder.span(node)
        if any(key.name == path for key in found):
            builder.report.error("duplicate-key", f"`{path}` stands twice in `by`", span)
        else:
            optional = "?" if node.children[0] is not None else ""
            found.append(Key(path, Name(optional + path, span), span))
    return tuple(found)


def build_step(node: Branch, builder: Builder, brackets: Mapping[int, Bracket]) -> StepText:
    marks: dict[str, Span] = {}
    prefixes = [child for child in _trees(node) if child.data == "prefix"]
    bodies = [child for child in _trees(node) if child.data != "prefix"]
    for prefix in prefixes:
        token = prefix.children[0]
        name = {"!": "absent", "?": "optional"}.get(str(token), "next")
        if name in marks:
            builder.report.error("unexpected", f"`{token}` stands twice", builder.span(prefix))
        marks[name] = builder.span(prefix)
    options = MatchOptions()
    if bodies[0].data == "group":
        found = _group(bodies[0], builder, brackets, options)
    else:
        found = _alternatives(bodies, builder, brackets, options)
    marks |= options.marks
    return StepText(_step(found, marks, options, builder.span(node)), marks)


def _step(found: _Body, marks: Mapping[str, Span], options: MatchOptions, span: Span) -> Step:
    kind = StepKind.ABSENT if "absent" in marks and found.kind is StepKind.TAKE else found.kind
    runs_min, runs_max = options.runs or (1, 1)
    return Step(
        kind, tuple(found.brackets), found.name, "optional" in marks, "next" in marks, runs_min, runs_max,
        options.times.get("within"), options.times.get("after"), options.times.get("for"), span,
    )  # fmt: skip


@dataclass
class _Body:
    kind: StepKind
    brackets: list[Bracket]
    name: str | None = None


def _alternatives(
    nodes: list[Branch], builder: Builder, brackets: Mapping[int, Bracket], options: MatchOptions
) -> _Body:
    """`[..] or [..]`: a name or options after the last bracket are the step's; `by` is its bracket's own."""
    body = _Body(StepKind.TAKE, [])
    for index, node in enumerate(nodes):
        own = MatchOptions() if index < len(nodes) - 1 else options
        bracket = build_bracket(node, builder, brackets, own, _STEP)
        if index < len(nodes) - 1 and (bracket.name or own.marks):
            where = next(iter(own.marks.values()), bracket.span)
            hint = "name the whole step after its last bracket: `[a where ..] or [b where ..] as x`"
            builder.report.error("misplaced-name", "a name or options before `or`", where, hint=hint)
        body.name = bracket.name
        body.brackets.append(_unnamed(bracket))
    return body


def _group(node: Branch, builder: Builder, brackets: Mapping[int, Bracket], options: MatchOptions) -> _Body:
    body = _Body(StepKind.UNORDERED, [])
    for child in _trees(node):
        if child.data == "alternative":
            member = build_bracket(child, builder, brackets, MatchOptions(), _MEMBER)
            if member.name is None:
                hint = "write `[...] as name`"
                builder.report.error("missing-name", "a member of `unordered` needs a name", member.span, hint=hint)
            body.brackets.append(member)
        elif child.data == "as":
            body.name = _given_name(child, builder, options)
        elif child.data == "with":
            read_options(_trees(child), _STEP, builder, options)
        else:
            hint = "put it after the member's bracket"
            builder.report.error("misplaced-option", "`by` cannot follow a group", builder.span(child), hint=hint)
    return body


_MEMBER = dict.fromkeys(_STEP, "members of `unordered` are plain brackets; set it after the closing `}`")


def build_bracket(
    node: Branch, builder: Builder, brackets: Mapping[int, Bracket], options: MatchOptions, allowed: Mapping[str, str]
) -> Bracket:
    """A bracket with its `as`, `by` and `with`, in any order."""
    token, *modifiers = node.children
    assert isinstance(token, Token)
    inside = brackets[builder.base + (token.start_pos or 0)]
    name: str | None = None
    by: tuple[Key, ...] | None = None
    for modifier in modifiers:
        assert isinstance(modifier, Tree)
        if modifier.data == "as":
            name = _given_name(modifier, builder, options)
        elif modifier.data == "by":
            by = keys(modifier, builder)
        else:
            read_options(_trees(modifier), allowed, builder, options)
    return Bracket(inside.type, inside.condition, name, by, inside.span)


def _given_name(node: Branch, builder: Builder, options: MatchOptions) -> str:
    if "as" in options.marks:
        builder.report.error("duplicate-option", "`as` stands twice", builder.span(node), hint="a step has one name")
    options.marks["as"] = builder.span(node.children[-1])
    return path_text(str(node.children[-1]))


def broken_step(text: str, brackets: list[Bracket], span: Span) -> StepText:
    """A stand-in for a step that does not parse: it keeps its name, so that reading it is no second error."""
    name = re.search(r"\bas\s+([^\W\d]\w*)", text)
    marks = {"as": span} if name else {}
    kind = StepKind.ABSENT if text.lstrip().startswith("!") else StepKind.TAKE
    return StepText(Step(kind, tuple(brackets), name[1] if name else None, span=span), marks, False)


def stand_in(span: Span) -> Bracket:
    """For a bracket that does not parse: any event."""
    return Bracket("any", Literal(True, span), None, None, span)


def _unnamed(bracket: Bracket) -> Bracket:
    return Bracket(bracket.type, bracket.condition, None, bracket.by, bracket.span)


def _trees(node: Branch) -> Iterator[Branch]:
    return (child for child in node.children if isinstance(child, Tree))
