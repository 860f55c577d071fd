"""From lark's trees to the raw form: head, steps and brackets, with their options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lark import Token, Tree

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.expressions import Branch, Builder, path_text
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.tree import NOWHERE, Bracket, Key, Name, Span, Step, StepKind

MAX_RUNS = 10_000

DURATION, RUNS = "a time such as 10m", "a count such as 3, 3.. or 3..7"

# The options that are neither a time nor `runs`.
_CHOICES = {"overlap": ("latest", "all", "any"), "skip": ("past_last", "to_next", "none")}
_HABITS = {
    "max_span": "maxspan",
    "timeout": "maxspan",
    "window": "maxspan",
    "span": "maxspan",
    "times": "runs",
    "count": "runs",
    "repeat": "runs",
    "timespan": "maxspan",
    "min": "after",
}

# Where an option may stand: its name, and why it may not stand there, or an empty text.
_ON_STEPS = "it is an option of a step"
_STEP = {
    "runs": "",
    "within": "",
    "after": "",
    "for": "",
    "maxspan": "it stands after `sequence`",
    "overlap": "it stands after `sequence`",
    "skip": "it stands after `sequence`",
}
_MEMBER = dict.fromkeys(_STEP, "members of `unordered` are plain brackets; set it after the closing `}`")
_HEAD: Mapping[str, Mapping[str, str]] = {
    "sequence": {
        "maxspan": "",
        "overlap": "",
        "skip": "",
        "runs": _ON_STEPS,
        "within": _ON_STEPS,
        "after": _ON_STEPS,
        "for": _ON_STEPS,
    },
    "session": {"gap": "", "max": "", "maxspan": "a session ends by its gap; `max` cuts it"},
    "aggregate": {"repeat": "", "maxspan": "an aggregate has `over 10m`"},
    "window": {"size": "", "maxspan": "a window has `every 10m`"},
}
_FRAME_HINTS = {
    "sequence": "a sequence has `with maxspan=10m`",
    "session": "a session has `with gap=30m`",
    "aggregate": "an aggregate has `over 10m`",
    "window": "a window has `every 10m`",
}


@dataclass(kw_only=True)
class MatchOptions:
    """What was set: times in ms, words, the bounds of runs; and where each stands."""

    times: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    runs: tuple[int, int | None] | None = None
    marks: dict[str, Span] = field(default_factory=dict)
    misspelt: bool = False


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
        name, span = str(clause.data), builder.span(clause)
        belongs = {"over": "aggregate", "every": "window"}.get(name, head.kind)
        if name == "by":
            if head.by is not None:
                hint = "name all fields after one `by`, with commas"
                builder.report.error("duplicate-option", "`by` stands twice", span, hint=hint)
            head.by = _keys(clause, builder)
        elif name == "with":
            _read_options(_trees(clause), _HEAD[head.kind], builder, head.options)
        elif head.kind != belongs:
            message = f"`{name}` belongs to `{belongs}`"
            builder.report.error("misplaced-option", message, span, hint=_FRAME_HINTS[head.kind])
            head.options.misspelt = True
        else:  # `over D` or `every D`, with the options that may follow a comma
            value, *options = _trees(clause)
            head.options.marks[name] = span
            _set_option(name, value, builder, head.options)
            _read_options(options, _HEAD[head.kind], builder, head.options)
    return head


def _keys(clause: Branch, builder: Builder) -> tuple[Key, ...]:
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
    bodies: list[Branch] = []
    for child in _trees(node):
        if child.data != "prefix":
            bodies.append(child)
            continue
        token = child.children[0]
        name = {"!": "absent", "?": "optional"}.get(str(token), "next")
        if name in marks:
            builder.report.error("unexpected", f"`{token}` stands twice", builder.span(child))
        marks[name] = builder.span(child)
    options = MatchOptions()
    if bodies[0].data == "group":
        kind = StepKind.UNORDERED
        found, step_name = _group(bodies[0], builder, brackets, options)
    else:
        # `[..] or [..]`: a name or options after the last bracket are the step's; `by` is its bracket's own.
        kind = StepKind.ABSENT if "absent" in marks else StepKind.TAKE
        found, step_name = [], None
        for body in bodies:
            own = options if body is bodies[-1] else MatchOptions()
            bracket = build_bracket(body, builder, brackets, own, _STEP)
            if body is not bodies[-1] and (bracket.name or own.marks):
                where = next(iter(own.marks.values()), bracket.span)
                hint = "name the whole step after its last bracket: `[a where ..] or [b where ..] as x`"
                builder.report.error("misplaced-name", "a name or options before `or`", where, hint=hint)
            step_name = bracket.name
            found.append(replace(bracket, name=None))
    marks |= options.marks
    runs_min, runs_max = options.runs or (1, 1)
    step = Step(
        kind=kind,
        brackets=tuple(found),
        name=step_name,
        optional="optional" in marks,
        next="next" in marks,
        runs_min=runs_min,
        runs_max=runs_max,
        within_ms=options.times.get("within"),
        after_ms=options.times.get("after"),
        for_ms=options.times.get("for"),
        span=builder.span(node),
    )
    return StepText(step, marks)


def _group(
    node: Branch, builder: Builder, brackets: Mapping[int, Bracket], options: MatchOptions
) -> tuple[list[Bracket], str | None]:
    members: list[Bracket] = []
    name = None
    for child in _trees(node):
        if child.data == "alternative":
            member = build_bracket(child, builder, brackets, MatchOptions(), _MEMBER)
            if member.name is None:
                hint = "write `[...] as name`"
                builder.report.error("missing-name", "a member of `unordered` needs a name", member.span, hint=hint)
            members.append(member)
        elif child.data == "as":
            name = _given_name(child, builder, options)
        elif child.data == "with":
            _read_options(_trees(child), _STEP, builder, options)
        else:
            hint = "put it after the member's bracket"
            builder.report.error("misplaced-option", "`by` cannot follow a group", builder.span(child), hint=hint)
    return members, name


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
            by = _keys(modifier, builder)
        else:
            _read_options(_trees(modifier), allowed, builder, options)
    return Bracket(type=inside.type, condition=inside.condition, name=name, by=by, span=inside.span)


def _given_name(node: Branch, builder: Builder, options: MatchOptions) -> str:
    if "as" in options.marks:
        builder.report.error("duplicate-option", "`as` stands twice", builder.span(node), hint="a step has one name")
    options.marks["as"] = builder.span(node.children[-1])
    return path_text(str(node.children[-1]))


def _trees(node: Branch) -> Iterator[Branch]:
    return (child for child in node.children if isinstance(child, Tree))


def _read_options(nodes: Iterable[Branch], allowed: Mapping[str, str], builder: Builder, into: MatchOptions) -> None:
    """Reads `option` nodes, of which only those may be set here that have an empty text in `allowed`."""
    usable = [option for option, reason in allowed.items() if not reason]
    for node in nodes:
        token, value = node.children
        assert isinstance(token, Token)
        assert isinstance(value, Tree)
        name, where = str(token), builder.span(token)
        if name in into.marks:
            builder.report.error("duplicate-option", f"`{name}` is set twice", where)
        elif name not in allowed:
            into.misspelt = True
            habit = _HABITS.get(name)
            tip = f"did you mean `{habit}`?" if habit in usable else did_you_mean(name, usable)
            message = f"there is no option `{name}` here"
            builder.report.error("unknown-option", message, where, expected=", ".join(usable) or "no option", hint=tip)
        elif allowed[name]:
            message = f"`{name}` cannot stand here: {allowed[name]}"
            builder.report.error("misplaced-option", message, where, expected=", ".join(usable) or None)
        else:
            into.marks[name] = builder.span(node)
            _set_option(name, value, builder, into)


def _set_option(name: str, value: Branch, builder: Builder, into: MatchOptions) -> None:
    choices = _CHOICES.get(name)
    if name == "runs":
        into.runs = _runs(value, builder)
    elif choices is None:
        into.times[name] = _duration(name, value, builder)
    else:
        word = str(value.children[-1])
        if not isinstance(value.children[-1], Token) or word not in choices:
            message, tip = f"`{name}` cannot be `{value.children[-1]}`", did_you_mean(word, choices)
            expected = " or ".join(choices)
            builder.report.error("unknown-choice", message, builder.span(value), expected=expected, hint=tip)
            word = choices[0]
        into.words[name] = word


def _duration(name: str, value: Branch, builder: Builder) -> int:
    """A time in ms; where it is faulty the finding is made and 1 ms goes on."""
    token = value.children[-1]
    negative = value.data == "setting" and len(value.children) == 2 and value.children[0] is not None
    ms: int | None = None
    if isinstance(token, Token) and value.data == "setting" and not negative:
        if token.type == "PARAM":
            set_to = builder.scalar(token)
            if token[1:] not in builder.constants.params:
                ms = 1  # which has been reported
            elif token[1:] in builder.constants.durations:
                ms = int(str(set_to))
            elif isinstance(set_to, str):
                ms = duration_ms(set_to)
        elif token.type in ("DURATION", "BAD_UNIT"):
            ms = int(str(builder.scalar(token)))
        elif token.type == "STRING":
            ms = duration_ms(str(token)[1:-1])
    if ms is None:
        is_number = isinstance(token, Token) and token.type == "NUMBER" and not negative
        tip = f"give it a unit: `{name}={token}s`" if is_number else None
        builder.report.error("no-duration", f"`{name}` takes a time", builder.span(value), expected=DURATION, hint=tip)
        return 1
    if ms == 0 and name != "maxspan":
        message = f"`{name}` of zero can never hold"
        builder.report.error("zero-duration", message, builder.span(value), expected=DURATION)
        return 1
    return ms


def _runs(value: Branch, builder: Builder) -> tuple[int, int | None]:
    """The bounds of `runs`; where they are faulty the finding is made and one event goes on."""
    span = builder.span(value)
    is_open = value.data == "range" and value.children[1] is None
    if value.data != "range" and len(value.children) == 2 and value.children[0] is not None:
        builder.report.error("no-count", "`runs` takes a count of at least 1", span, expected=RUNS)
        return 1, 1
    low = _count(value.children[0] if value.data == "range" else value, builder)
    high = low if value.data != "range" else None if is_open else _count(value.children[1], builder)
    if low is None or (high is None and not is_open):
        return 1, 1
    if low < 1:
        message = "`runs` takes a count of at least 1"
        hint = "a step that may be missing is `?[...]`, one that must not happen `![...]`"
        builder.report.error("no-count", message, span, expected=RUNS, hint=hint)
    elif low > MAX_RUNS or (high or 0) > MAX_RUNS:
        builder.report.error("too-many-runs", f"`runs` goes up to {MAX_RUNS:,}", span)
    elif high is not None and high < low:
        builder.report.error("no-count", f"runs={low}..{high} ends before it begins", span, expected=RUNS)
    else:
        return low, high
    return 1, 1


def _count(node: object, builder: Builder) -> int | None:
    assert isinstance(node, Tree)
    token = node.children[-1]
    is_param = isinstance(token, Token) and token.type == "PARAM"
    value = builder.scalar(token) if isinstance(token, Token) and (is_param or token.type == "NUMBER") else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not is_param or str(token)[1:] in builder.constants.params:
        builder.report.error("no-count", "`runs` takes a whole number", builder.span(node), expected=RUNS)
    return None
