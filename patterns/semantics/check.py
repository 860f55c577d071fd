"""The raw match to the resolved form: names, keys, what each place may read. The order of steps is in places.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.forms import StepText
from samovar.patterns.parse.parser import MatchText
from samovar.patterns.semantics.keys import Keys
from samovar.patterns.semantics.ordering import check_places
from samovar.patterns.semantics.resolve import resolve_guarded
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, ReadableStep, one_of
from samovar.patterns.syntax.tree import (
    Aggregate,
    AggregateForm,
    Binary,
    Bracket,
    Expr,
    Form,
    Key,
    Literal,
    Overlap,
    SequenceForm,
    SessionForm,
    Skip,
    Span,
    Step,
    StepKind,
    WindowForm,
)


@dataclass(frozen=True)
class ResolvedMatch:
    """The resolved form, and the place from which `emit` and `message` read it."""

    form: Form
    result: ExpressionContext


def check_match(match: MatchText, bench: CheckerContext) -> ResolvedMatch | None:
    """The resolved form; None where so little stands that nothing can be read from it."""
    if not match.steps:
        if match.sound:
            message = f"`{match.head.kind}` has no bracket"
            bench.report.error("missing-bracket", message, match.head.span, expected="[type where condition]")
        return None
    if match.sound:
        check_places(match, bench.report)
    return _sequence(match, bench) if match.head.kind == "sequence" else _other(match, bench)


# ---------------------------------------------------------------- sequence


def _sequence(match: MatchText, bench: CheckerContext) -> ResolvedMatch:
    named = list(_named(match.steps))
    _check_names(named, match.steps, bench)
    keys = Keys(match, bench)
    steps = [_step(index, named, keys, bench) for index in range(len(named))]
    everything = _readable_at(len(named), named)
    last = next((step for step in reversed(named) if step.kind is not StepKind.ABSENT), named[-1])
    result = ExpressionContext(_types(last.brackets), "`having`, `emit` and `message`", *everything, aggregates="steps")
    having = _having(match, result, bench)
    options = match.head.options
    form = SequenceForm(
        keys.form_by(), options.times.get("maxspan", 0), Overlap(options.words.get("overlap", "latest")),
        Skip(options.words.get("skip", "past_last")), tuple(steps), _until(match, keys, named, bench), having,
        match.head.span,
    )  # fmt: skip
    return ResolvedMatch(form, result)


def _named(texts: list[StepText]) -> Iterator[Step]:
    """The steps with their names: given ones, or `stepN`, where N counts positive steps and a group is one."""
    count = 0
    for text in texts:
        step = text.step
        if step.kind is not StepKind.ABSENT:
            count += 1
            yield step if step.name else replace(step, name=f"step{count}")
        else:
            yield step


def _check_names(named: list[Step], texts: list[StepText], bench: CheckerContext) -> None:
    seen: dict[str, Span] = {}
    for step, text in zip(named, texts, strict=True):
        own = [(step.name, text.marks.get("as", step.span))]
        members = [(item.name, item.span) for item in step.brackets if step.kind is StepKind.UNORDERED]
        for name, span in [*own, *members]:
            if name is not None:
                _check_name(name, span, seen, bench)


def _check_name(name: str, span: Span, seen: dict[str, Span], bench: CheckerContext) -> None:
    if name in seen:
        hint = f"the other is on line {seen[name].line}; step1, step2, ... name the unnamed ones"
        bench.report.error("duplicate-name", f"two steps are named `{name}`", span, hint=hint)
    elif name in bench.lets:
        bench.report.error("duplicate-name", f"`{name}` is also a `let`", span, hint="give the step another name")
    seen.setdefault(name, span)


def _step(index: int, named: list[Step], keys: Keys, bench: CheckerContext) -> Step:
    step = named[index]
    readable, unreadable = _readable_at(index, named)
    what = "the condition of a bracket"
    brackets = []
    for bracket in step.brackets:
        place = ExpressionContext((bracket.type,), what, readable, unreadable, "steps", history=True)
        brackets.append(_bracket(bracket, place, keys.of(bracket, step.kind is not StepKind.ABSENT), bench))
    name = None if step.kind is StepKind.ABSENT else step.name
    if step.kind is StepKind.ABSENT:
        brackets = [replace(bracket, name=None) for bracket in brackets]
    return replace(step, brackets=tuple(brackets), name=name)


def _bracket(bracket: Bracket, place: ExpressionContext, by: tuple[Key, ...], bench: CheckerContext) -> Bracket:
    _check_type(bracket, bench)
    condition = resolve_guarded(bracket.condition, place, bench, condition=True)
    return replace(bracket, condition=condition, by=by)


def _check_type(bracket: Bracket, bench: CheckerContext) -> None:
    if bench.schema is None or bracket.type == "any" or bracket.type in bench.schema.types:
        return
    bench.report.error(
        "unknown-type",
        f"there is no event type `{bracket.type}`",
        bracket.span,
        expected=one_of([*bench.schema.types, "any"]),
        hint=did_you_mean(bracket.type, bench.schema.types),
    )


def _types(brackets: Iterable[Bracket]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bracket.type for bracket in brackets))


def _readable_at(index: int, named: list[Step]) -> tuple[dict[str, ReadableStep], dict[str, str]]:
    """What the step at an index may read, and why not the rest. An index past the end reads all."""
    readable: dict[str, ReadableStep] = {}
    unreadable: dict[str, str] = {}
    for at, step in enumerate(named):
        for name, brackets in _readings(step):
            if step.kind is StepKind.ABSENT:
                unreadable[name] = "it must not happen, so it has no event"
            elif at > index:
                unreadable[name] = "it comes later"
            elif at == index and step.kind is StepKind.UNORDERED:
                unreadable[name] = "members of `unordered` cannot read each other"
            elif at == index and not step.repeated:
                unreadable[name] = "it is this very step; leave its name out"
            else:
                readable[name] = ReadableStep(_types(brackets), step.repeated)
        if step.kind is StepKind.UNORDERED and step.name:
            unreadable[step.name] = "it is a group: read one of its members"
    return readable, unreadable


def _readings(step: Step) -> Iterator[tuple[str, tuple[Bracket, ...]]]:
    if step.kind is StepKind.UNORDERED:
        yield from ((member.name, (member,)) for member in step.brackets if member.name)
    elif step.name:
        yield step.name, step.brackets


def _until(match: MatchText, keys: Keys, named: list[Step], bench: CheckerContext) -> Bracket | None:
    if match.until is None:
        return None
    if "as" in match.until_marks:
        bench.report.error("misplaced-name", "`until` has no name", match.until_marks["as"])
    names = [name for step in named for name, _ in _readings(step)]
    reasons = dict.fromkeys(names, "`until` stands apart from the steps")
    place = ExpressionContext((match.until.type,), "`until`", {}, reasons, None, history=True)
    return replace(_bracket(match.until, place, keys.of(match.until, False), bench), name=None)


def _having(match: MatchText, place: ExpressionContext, bench: CheckerContext) -> Expr | None:
    return None if match.having is None else resolve_guarded(match.having, place, bench, condition=True)


# ---------------------------------------------------------------- aggregate, session, window


def _other(match: MatchText, bench: CheckerContext) -> ResolvedMatch:
    keys = Keys(match, bench)
    raw = [bracket for text in match.steps for bracket in _own_brackets(text)]
    seen: dict[str, Span] = {}
    for bracket in raw:
        if bracket.name is not None:
            _check_name(bracket.name, bracket.span, seen, bench)
    names = dict.fromkeys(seen, "a bracket's condition reads only its own event")
    brackets = []
    for bracket in raw:
        place = ExpressionContext((bracket.type,), "the condition of a bracket", {}, names, None, history=True)
        brackets.append(_bracket(bracket, place, keys.of(bracket, True), bench))
    readable = {item.name: ReadableStep((item.type,), True) for item in raw if item.name is not None}
    result = ExpressionContext(_types(raw), "`having`, `emit` and `message`", readable, {}, "events")
    return ResolvedMatch(_form(match, keys, tuple(brackets), _having(match, result, bench), bench), result)


def _own_brackets(text: StepText) -> Iterator[Bracket]:
    """The brackets of a form without steps; a name after the bracket is the bracket's."""
    for bracket in text.step.brackets:
        yield replace(bracket, name=bracket.name or text.step.name)


def _form(
    match: MatchText, keys: Keys, brackets: tuple[Bracket, ...], having: Expr | None, bench: CheckerContext
) -> Form:
    times, span, by = match.head.options.times, match.head.span, keys.form_by()
    if match.head.kind == "session":
        return SessionForm(by, times.get("gap", 1), times.get("max"), brackets, having, span)
    if match.head.kind == "window":
        every = times.get("every", 1)
        return WindowForm(by, every, times.get("size", every), brackets, having, span)
    if having is not None:
        _check_upper_bound(having, bench)
    elif match.sound:
        bench.report.error("missing-having", "an aggregate needs `having`", span, expected="having count() >= 5")
    return AggregateForm(by, times.get("over", 1), times.get("repeat"), brackets, having or Literal(True), span)


def _check_upper_bound(having: Expr, bench: CheckerContext) -> None:
    """`count() < 5` is true at the very first event: the author waits for an event that does not come."""
    terms = list(_conjuncts(having))
    if all(_is_upper_bound(term) for term in terms):
        bench.report.warning(
            "too-few-in-aggregate", "an aggregate is tested when an event comes, so this is true at the first one",
            having.span, hint="for too few events write `window by ... every 10m [...] having count() < 5`",
        )  # fmt: skip


def _conjuncts(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Binary) and expr.op == "and":
        yield from _conjuncts(expr.left)
        yield from _conjuncts(expr.right)
    else:
        yield expr


def _is_upper_bound(expr: Expr) -> bool:
    if not isinstance(expr, Binary):
        return False
    counted = {"<": expr.left, "<=": expr.left, ">": expr.right, ">=": expr.right}.get(expr.op)
    return isinstance(counted, Aggregate) and counted.function == "count"
