"""Options, `name=value`: which there are, what they take, and what to say when they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lark import Token, Tree

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.expressions import Builder
from samovar.patterns.parse.literals import Branch
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.tree import Span

MAX_RUNS = 10_000

DURATION, RUNS, WORD = "a time such as 10m", "a count such as 3, 3.. or 3..7", "a word"

_CHOICES = {"overlap": ("latest", "all", "any"), "skip": ("past_last", "to_next", "none")}
_WANTED = {
    "maxspan": DURATION, "gap": DURATION, "max": DURATION, "repeat": DURATION, "size": DURATION, "within": DURATION,
    "after": DURATION, "for": DURATION, "over": DURATION, "every": DURATION, "runs": RUNS, "overlap": WORD,
    "skip": WORD,
}  # fmt: skip

_HABITS = {
    "max_span": "maxspan", "timeout": "maxspan", "window": "maxspan", "span": "maxspan", "times": "runs",
    "count": "runs", "repeat": "runs", "timespan": "maxspan", "min": "after",
}  # fmt: skip


@dataclass
class MatchOptions:
    """What was set: times in ms, words, the bounds of runs; and where each stands."""

    times: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    runs: tuple[int, int | None] | None = None
    marks: dict[str, Span] = field(default_factory=dict)
    misspelt: bool = False


def read_options(nodes: Iterable[Branch], allowed: Mapping[str, str], builder: Builder, into: MatchOptions) -> None:
    """Reads `option` nodes. `allowed` maps a name to why it may not stand here, or to an empty text."""
    for node in nodes:
        name, value = node.children
        assert isinstance(name, Token)
        assert isinstance(value, Tree)
        if _permitted(name, allowed, builder, into):
            into.marks[str(name)] = builder.span(node)
            set_option(str(name), value, builder, into)


def set_option(name: str, value: Branch, builder: Builder, into: MatchOptions) -> None:
    if _WANTED[name] == DURATION:
        into.times[name] = _duration(name, value, builder)
    elif _WANTED[name] == RUNS:
        into.runs = _runs(value, builder)
    else:
        into.words[name] = _word(name, value, builder)


def _permitted(name: Token, allowed: Mapping[str, str], builder: Builder, into: MatchOptions) -> bool:
    key, where = str(name), builder.span(name)
    usable = [option for option, reason in allowed.items() if not reason]
    if key in into.marks:
        builder.report.error("duplicate-option", f"`{key}` is set twice", where)
        return False
    if key not in allowed:
        into.misspelt = True
        habit = _HABITS.get(key)
        tip = f"did you mean `{habit}`?" if habit in usable else did_you_mean(key, usable)
        message = f"there is no option `{key}` here"
        builder.report.error("unknown-option", message, where, expected=", ".join(usable) or "no option", hint=tip)
        return False
    if allowed[key]:
        message = f"`{key}` cannot stand here: {allowed[key]}"
        builder.report.error("misplaced-option", message, where, expected=", ".join(usable) or None)
        return False
    return True


def _duration(name: str, value: Branch, builder: Builder) -> int:
    """A time in ms; where it is faulty the finding is made and 1 ms goes on."""
    token = value.children[-1]
    negative = value.data == "setting" and len(value.children) == 2 and value.children[0] is not None
    ms: int | None = None
    if isinstance(token, Token) and value.data == "setting" and not negative:
        if token.type == "PARAM":
            ms = _parameter_ms(token, builder)
        elif token.type in ("DURATION", "BAD_UNIT"):
            ms = builder.duration(token) if token.type == "DURATION" else int(str(builder.scalar(token)))
        elif token.type == "STRING":
            ms = duration_ms(str(token)[1:-1])
    if ms is None:
        tip = f"give it a unit: `{name}={token}s`" if _is_number(token) and not negative else None
        builder.report.error("no-duration", f"`{name}` takes a time", builder.span(value), expected=DURATION, hint=tip)
        return 1
    if ms == 0 and name != "maxspan":
        message = f"`{name}` of zero can never hold"
        builder.report.error("zero-duration", message, builder.span(value), expected=DURATION)
        return 1
    return ms


def _is_number(token: object) -> bool:
    return isinstance(token, Token) and token.type == "NUMBER"


def _parameter_ms(token: Token, builder: Builder) -> int | None:
    value = builder.scalar(token)
    if token[1:] not in builder.constants.params:
        return 1
    if token[1:] in builder.constants.durations:
        return int(str(value))
    return duration_ms(value) if isinstance(value, str) else None


def _runs(value: Branch, builder: Builder) -> tuple[int, int | None]:
    if value.data == "range":
        low = _count(value.children[0], builder)
        high = _count(value.children[1], builder) if value.children[1] is not None else None
        if low is None or (high is None and value.children[1] is not None):
            return 1, 1
        return _sound_runs(low, high, value, builder)
    if value.children[0] is not None and len(value.children) == 2:
        builder.report.error("no-count", "`runs` takes a count of at least 1", builder.span(value), expected=RUNS)
        return 1, 1
    low = _count(value, builder)
    return (1, 1) if low is None else _sound_runs(low, low, value, builder)


def _count(node: object, builder: Builder) -> int | None:
    assert isinstance(node, Tree)
    token = node.children[-1]
    known = isinstance(token, Token) and token.type in ("NUMBER", "PARAM")
    value = builder.scalar(token) if known and isinstance(token, Token) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not (isinstance(token, Token) and token.type == "PARAM" and token[1:] not in builder.constants.params):
        builder.report.error("no-count", "`runs` takes a whole number", builder.span(node), expected=RUNS)
    return None


def _sound_runs(low: int, high: int | None, node: Branch, builder: Builder) -> tuple[int, int | None]:
    if low < 1:
        message = "`runs` takes a count of at least 1"
        hint = "a step that may be missing is `?[...]`, one that must not happen `![...]`"
        builder.report.error("no-count", message, builder.span(node), expected=RUNS, hint=hint)
    elif low > MAX_RUNS or (high or 0) > MAX_RUNS:
        builder.report.error("too-many-runs", f"`runs` goes up to {MAX_RUNS:,}", builder.span(node))
    elif high is not None and high < low:
        builder.report.error("no-count", f"runs={low}..{high} ends before it begins", builder.span(node), expected=RUNS)
    else:
        return low, high
    return 1, 1


def _word(name: str, value: Branch, builder: Builder) -> str:
    token = value.children[-1]
    choices = _CHOICES[name]
    if isinstance(token, Token) and token in choices:
        return str(token)
    builder.report.error(
        "unknown-choice",
        f"`{name}` cannot be `{token}`",
        builder.span(value),
        expected=" or ".join(choices),
        hint=did_you_mean(str(token), choices),
    )
    return choices[0]
