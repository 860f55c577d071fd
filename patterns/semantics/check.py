"""The raw match to the resolved form: names, keys, what each place may read. The order of steps is in places.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.parser import MatchText
from samovar.patterns.semantics.keys import Keys
from samovar.patterns.semantics.ordering import check_places
from samovar.patterns.semantics.resolve import resolve_guarded
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, ReadableStep, one_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import flatten


@dataclass(frozen=True)
class ResolvedMatch:
    """The resolved form, and the place from which `emit` and `message` read it."""

    form: tree.Form
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
    # Steps without a name are `stepN`, where N counts positive steps and a group is one.
    named: list[tree.Step] = []
    count = 0
    for text in match.steps:
        positive = text.step.kind is not tree.StepKind.ABSENT
        count += positive
        named.append(replace(text.step, name=f"step{count}") if positive and not text.step.name else text.step)
    seen: dict[str, tree.Span] = {}
    for step, text in zip(named, match.steps, strict=True):
        members = [(item.name, item.span) for item in step.brackets if step.kind is tree.StepKind.UNORDERED]
        for name, span in [(step.name, text.marks.get("as", step.span)), *members]:
            _check_name(name, span, seen, bench)
    keys = Keys(match, bench)
    steps = tuple(_step(index, named, keys, bench) for index in range(len(named)))
    last = next((step for step in reversed(named) if step.kind is not tree.StepKind.ABSENT), named[-1])
    everything = _readable_at(len(named), named)
    result = ExpressionContext(_types(last.brackets), "`having`, `emit` and `message`", *everything, aggregates="steps")
    having = _having(match, result, bench)
    options = match.head.options
    form = tree.SequenceForm(
        keys.form_by(), options.times.get("maxspan", 0), tree.Overlap(options.words.get("overlap", "latest")),
        tree.Skip(options.words.get("skip", "past_last")), steps, _until(match, keys, named, bench), having,
        match.head.span,
    )  # fmt: skip
    return ResolvedMatch(form, result)


def _check_name(name: str | None, span: tree.Span, seen: dict[str, tree.Span], bench: CheckerContext) -> None:
    if name is None:
        return
    if name in seen:
        hint = f"the other is on line {seen[name].line}; step1, step2, ... name the unnamed ones"
        bench.report.error("duplicate-name", f"two steps are named `{name}`", span, hint=hint)
    elif name in bench.lets:
        bench.report.error("duplicate-name", f"`{name}` is also a `let`", span, hint="give the step another name")
    seen.setdefault(name, span)


def _step(index: int, named: list[tree.Step], keys: Keys, bench: CheckerContext) -> tree.Step:
    step = named[index]
    readable, unreadable = _readable_at(index, named)
    what, absent = "the condition of a bracket", step.kind is tree.StepKind.ABSENT
    brackets = []
    for raw in step.brackets:
        place = ExpressionContext((raw.type,), what, readable, unreadable, "steps", history=True)
        bracket = _bracket(raw, place, keys.of(raw, not absent), bench)
        brackets.append(replace(bracket, name=None) if absent else bracket)
    return replace(step, brackets=tuple(brackets), name=None if absent else step.name)


def _bracket(
    bracket: tree.Bracket, place: ExpressionContext, by: tuple[tree.Key, ...], bench: CheckerContext
) -> tree.Bracket:
    known = None if bench.schema is None else [*bench.schema.types, "any"]
    if known is not None and bracket.type not in known:
        message, tip = f"there is no event type `{bracket.type}`", did_you_mean(bracket.type, known[:-1])
        bench.report.error("unknown-type", message, bracket.span, expected=one_of(known), hint=tip)
    return replace(bracket, condition=resolve_guarded(bracket.condition, place, bench, condition=True), by=by)


def _types(brackets: Iterable[tree.Bracket]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bracket.type for bracket in brackets))


def _readable_at(index: int, named: list[tree.Step]) -> tuple[dict[str, ReadableStep], dict[str, str]]:
    """What the step at an index may read, and why not the rest. An index past the end reads all."""
    readable: dict[str, ReadableStep] = {}
    unreadable: dict[str, str] = {}
    for at, step in enumerate(named):
        for name, brackets in _readings(step):
            if step.kind is tree.StepKind.ABSENT:
                unreadable[name] = "it must not happen, so it has no event"
            elif at > index:
                unreadable[name] = "it comes later"
            elif at == index and step.kind is tree.StepKind.UNORDERED:
                unreadable[name] = "members of `unordered` cannot read each other"
            elif at == index and not step.repeated:
                unreadable[name] = "it is this very step; leave its name out"
            else:
                readable[name] = ReadableStep(_types(brackets), step.repeated)
        if step.kind is tree.StepKind.UNORDERED and step.name:
            unreadable[step.name] = "it is a group: read one of its members"
    return readable, unreadable


def _readings(step: tree.Step) -> Iterator[tuple[str, tuple[tree.Bracket, ...]]]:
    if step.kind is tree.StepKind.UNORDERED:
        yield from ((member.name, (member,)) for member in step.brackets if member.name)
    elif step.name:
        yield step.name, step.brackets


def _until(match: MatchText, keys: Keys, named: list[tree.Step], bench: CheckerContext) -> tree.Bracket | None:
    if match.until is None:
        return None
    if "as" in match.until_marks:
        bench.report.error("misplaced-name", "`until` has no name", match.until_marks["as"])
    names = [name for step in named for name, _ in _readings(step)]
    reasons = dict.fromkeys(names, "`until` stands apart from the steps")
    place = ExpressionContext((match.until.type,), "`until`", {}, reasons, None, history=True)
    return replace(_bracket(match.until, place, keys.of(match.until, False), bench), name=None)


def _having(match: MatchText, place: ExpressionContext, bench: CheckerContext) -> tree.Expr | None:
    return None if match.having is None else resolve_guarded(match.having, place, bench, condition=True)


# ---------------------------------------------------------------- aggregate, session, window


def _other(match: MatchText, bench: CheckerContext) -> ResolvedMatch:
    keys = Keys(match, bench)
    # A name after the bracket is the bracket's.
    steps = [text.step for text in match.steps]
    raw = [replace(bracket, name=bracket.name or step.name) for step in steps for bracket in step.brackets]
    seen: dict[str, tree.Span] = {}
    for bracket in raw:
        _check_name(bracket.name, bracket.span, seen, bench)
    names = dict.fromkeys(seen, "a bracket's condition reads only its own event")
    resolved = []
    for bracket in raw:
        place = ExpressionContext((bracket.type,), "the condition of a bracket", {}, names, None, history=True)
        resolved.append(_bracket(bracket, place, keys.of(bracket, True), bench))
    readable = {item.name: ReadableStep((item.type,), True) for item in raw if item.name is not None}
    result = ExpressionContext(_types(raw), "`having`, `emit` and `message`", readable, {}, "events")
    having, brackets = _having(match, result, bench), tuple(resolved)
    times, span, by = match.head.options.times, match.head.span, keys.form_by()
    if match.head.kind == "session":
        return ResolvedMatch(
            tree.SessionForm(by, times.get("gap", 1), times.get("max"), brackets, having, span), result
        )
    if match.head.kind == "window":
        every = times.get("every", 1)
        return ResolvedMatch(tree.WindowForm(by, every, times.get("size", every), brackets, having, span), result)
    if having is not None and all(map(_is_upper_bound, flatten(having, "and"))):
        message = "an aggregate is tested when an event comes, so this is true at the first one"
        hint = "for too few events write `window by ... every 10m [...] having count() < 5`"
        bench.report.warning("too-few-in-aggregate", message, having.span, hint=hint)
    elif having is None and match.sound:
        bench.report.error("missing-having", "an aggregate needs `having`", span, expected="having count() >= 5")
    over, repeat = times.get("over", 1), times.get("repeat")
    return ResolvedMatch(tree.AggregateForm(by, over, repeat, brackets, having or tree.Literal(True), span), result)


def _is_upper_bound(expr: tree.Expr) -> bool:
    """`count() < 5` is true at the very first event: the author waits for an event that does not come."""
    if not isinstance(expr, tree.Binary):
        return False
    counted = {"<": expr.left, "<=": expr.left, ">": expr.right, ">=": expr.right}.get(expr.op)
    return isinstance(counted, tree.Aggregate) and counted.function == "count"
