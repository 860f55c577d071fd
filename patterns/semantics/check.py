"""The raw match to the resolved form: names, keys, what each place may read, and what may stand where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.forms import StepText
from samovar.patterns.parse.parser import MatchText
from samovar.patterns.semantics.resolve import resolve, resolve_guarded
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, ReadableStep, TooLarge, one_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import flatten

_REQUIRED = {
    "sequence": ("maxspan", "sequence by card with maxspan=10m"),
    "session": ("gap", "session by user with gap=30m"),
    "aggregate": ("over", "aggregate by card over 10m"),
    "window": ("every", "window by user every 10m"),
}
_FOR = "`for` belongs to a negation before the first step"


@dataclass(frozen=True)
class ResolvedMatch:
    """The resolved form, and the place from which `emit` and `message` read it."""

    form: tree.Form
    result: ExpressionContext


def check_match(match: MatchText, context: CheckerContext) -> ResolvedMatch | None:
    """The resolved form; None where so little stands that nothing can be read from it."""
    if not match.steps:
        if match.sound:
            message = f"`{match.head.kind}` has no bracket"
            context.report.error("missing-bracket", message, match.head.span, expected="[type where condition]")
        return None
    if match.sound:
        check_places(match, context.report)
    return _sequence(match, context) if match.head.kind == "sequence" else _other(match, context)


def _sequence(match: MatchText, context: CheckerContext) -> ResolvedMatch:
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
            _check_name(name, span, seen, context)
    keys = Keys(match, context)
    steps = tuple(_step(index, named, keys, context) for index in range(len(named)))
    last = next((step for step in reversed(named) if step.kind is not tree.StepKind.ABSENT), named[-1])
    readable, unreadable = _readable_at(len(named), named)
    result = ExpressionContext(
        types=_types(last.brackets),
        what="`having`, `emit` and `message`",
        readable=readable,
        unreadable=unreadable,
        aggregates="steps",
    )
    having = _having(match, result, context)
    options = match.head.options
    form = tree.SequenceForm(
        by=keys.form_by(),
        maxspan_ms=options.times.get("maxspan", 0),
        overlap=tree.Overlap(options.words.get("overlap", "latest")),
        skip=tree.Skip(options.words.get("skip", "past_last")),
        steps=steps,
        until=_until(match, keys, named, context),
        having=having,
        span=match.head.span,
    )
    return ResolvedMatch(form, result)


def _check_name(name: str | None, span: tree.Span, seen: dict[str, tree.Span], context: CheckerContext) -> None:
    if name is None:
        return
    if name in seen:
        hint = f"the other is on line {seen[name].line}; step1, step2, ... name the unnamed ones"
        context.report.error("duplicate-name", f"two steps are named `{name}`", span, hint=hint)
    elif name in context.lets:
        context.report.error("duplicate-name", f"`{name}` is also a `let`", span, hint="give the step another name")
    seen.setdefault(name, span)


def _step(index: int, named: list[tree.Step], keys: Keys, context: CheckerContext) -> tree.Step:
    step = named[index]
    readable, unreadable = _readable_at(index, named)
    what, absent = "the condition of a bracket", step.kind is tree.StepKind.ABSENT
    brackets = []
    for raw in step.brackets:
        place = ExpressionContext(
            types=(raw.type,), what=what, readable=readable, unreadable=unreadable, aggregates="steps", history=True
        )
        bracket = _bracket(raw, place, keys.of(raw, not absent), context)
        brackets.append(replace(bracket, name=None) if absent else bracket)
    return replace(step, brackets=tuple(brackets), name=None if absent else step.name)


def _bracket(
    bracket: tree.Bracket, place: ExpressionContext, by: tuple[tree.Key, ...], context: CheckerContext
) -> tree.Bracket:
    known = None if context.schema is None else [*context.schema.types, "any"]
    if known is not None and bracket.type not in known:
        message, tip = f"there is no event type `{bracket.type}`", did_you_mean(bracket.type, known[:-1])
        context.report.error("unknown-type", message, bracket.span, expected=one_of(known), hint=tip)
    return replace(bracket, condition=resolve_guarded(bracket.condition, place, context, condition=True), by=by)


def _types(brackets: Iterable[tree.Bracket]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bracket.type for bracket in brackets))


def _readable_at(index: int, named: list[tree.Step]) -> tuple[dict[str, ReadableStep], dict[str, str]]:
    """What the step at an index may read, and why not the rest. An index past the end reads all."""
    readable: dict[str, ReadableStep] = {}
    unreadable: dict[str, str] = {}
    for at, step in enumerate(named):
        for name, brackets in step.readings:
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


def _until(match: MatchText, keys: Keys, named: list[tree.Step], context: CheckerContext) -> tree.Bracket | None:
    if match.until is None:
        return None
    if "as" in match.until_marks:
        context.report.error("misplaced-name", "`until` has no name", match.until_marks["as"])
    names = [name for step in named for name, _ in step.readings]
    reasons = dict.fromkeys(names, "`until` stands apart from the steps")
    place = ExpressionContext(
        types=(match.until.type,), what="`until`", readable={}, unreadable=reasons, aggregates=None, history=True
    )
    return replace(_bracket(match.until, place, keys.of(match.until, False), context), name=None)


def _having(match: MatchText, place: ExpressionContext, context: CheckerContext) -> tree.Expr | None:
    return None if match.having is None else resolve_guarded(match.having, place, context, condition=True)


def _other(match: MatchText, context: CheckerContext) -> ResolvedMatch:
    keys = Keys(match, context)
    # A name after the bracket is the bracket's.
    steps = [text.step for text in match.steps]
    raw = [replace(bracket, name=bracket.name or step.name) for step in steps for bracket in step.brackets]
    seen: dict[str, tree.Span] = {}
    for bracket in raw:
        _check_name(bracket.name, bracket.span, seen, context)
    names = dict.fromkeys(seen, "a bracket's condition reads only its own event")
    resolved = []
    for bracket in raw:
        place = ExpressionContext(
            types=(bracket.type,),
            what="the condition of a bracket",
            readable={},
            unreadable=names,
            aggregates=None,
            history=True,
        )
        resolved.append(_bracket(bracket, place, keys.of(bracket, True), context))
    readable = {item.name: ReadableStep((item.type,), True) for item in raw if item.name is not None}
    result = ExpressionContext(
        types=_types(raw), what="`having`, `emit` and `message`", readable=readable, unreadable={}, aggregates="events"
    )
    having, brackets = _having(match, result, context), tuple(resolved)
    times, span, by = match.head.options.times, match.head.span, keys.form_by()
    if match.head.kind == "session":
        return ResolvedMatch(
            tree.SessionForm(
                by=by, gap_ms=times.get("gap", 1), max_ms=times.get("max"), brackets=brackets, having=having, span=span
            ),
            result,
        )
    if match.head.kind == "window":
        every = times.get("every", 1)
        return ResolvedMatch(
            tree.WindowForm(
                by=by, every_ms=every, size_ms=times.get("size", every), brackets=brackets, having=having, span=span
            ),
            result,
        )
    if having is not None and all(map(_is_upper_bound, flatten(having, "and"))):
        message = "an aggregate is tested when an event comes, so this is true at the first one"
        hint = "for too few events write `window by ... every 10m [...] having count() < 5`"
        context.report.warning("too-few-in-aggregate", message, having.span, hint=hint)
    elif having is None and match.sound:
        context.report.error("missing-having", "an aggregate needs `having`", span, expected="having count() >= 5")
    over, repeat = times.get("over", 1), times.get("repeat")
    return ResolvedMatch(
        tree.AggregateForm(
            by=by, over_ms=over, repeat_ms=repeat, brackets=brackets, having=having or tree.Literal(True), span=span
        ),
        result,
    )


def _is_upper_bound(expr: tree.Expr) -> bool:
    """`count() < 5` is true at the very first event: the author waits for an event that does not come."""
    if not isinstance(expr, tree.Binary):
        return False
    counted = {"<": expr.left, "<=": expr.left, ">": expr.right, ">=": expr.right}.get(expr.op)
    return isinstance(counted, tree.Aggregate) and counted.function == "count"


@dataclass
class Keys:
    """Resolves `by` lists.

    Without a `by` on the form the first step's names are the key's. A bracket without one then takes the list of its
    own step's last alternative or of a step of the same type; a type without any belongs to no key (its key is null).
    """

    match: MatchText
    context: CheckerContext
    kinds: dict[str, tuple[str, tree.Key, str]] = field(default_factory=dict)

    @property
    def _positive(self) -> list[tuple[tree.Bracket, ...]]:
        return [text.step.brackets for text in self.match.steps if text.step.kind is not tree.StepKind.ABSENT]

    def _names(self) -> tuple[tree.Key, ...] | None:
        """The list that gives the key its names; None for one key over all events."""
        if self.match.head.by is not None:
            return self.match.head.by
        lists = (bracket.by for brackets in self._positive for bracket in brackets)
        return next((by for by in lists if by is not None), None)

    def form_by(self) -> tuple[tree.Key, ...]:
        names = self._names()
        if names is None:
            return ()
        first = next((bracket for brackets in self._positive for bracket in brackets), None)
        types = (first.type,) if first else ("any",)
        return tuple(tree.Key(key.name, self._value(key, types, quiet=True)[0], key.span) for key in names)

    def of(self, bracket: tree.Bracket, positive: bool) -> tuple[tree.Key, ...]:
        names = self._names()
        if names is None:
            return ()
        listed = ", ".join(key.name for key in names)
        own = bracket.by if bracket.by is not None else self._inherited(bracket)
        if own is None:
            if positive:
                message, expected = "this step has no `by`, but others have", f"by FIELD, for the key ({listed})"
                self.context.report.error("missing-key", message, bracket.span, expected=expected)
            else:
                message = f"`{bracket.type}` has no `by`, so it belongs to no key"
                hint = f"write `by FIELD` after the bracket, for the key ({listed})"
                self.context.report.warning("no-key", message, bracket.span, hint=hint)
            return tuple(tree.Key(key.name, tree.Literal(None), key.span) for key in names)
        if len(own) != len(names):
            message = f"`by` names {len(own)} fields here and {len(names)} on the rest"
            hint = "same number and order everywhere"
            self.context.report.error("key-count", message, own[0].span, expected=listed, hint=hint)
            return names
        return tuple(self._key(key, name.name, bracket.type) for key, name in zip(own, names, strict=True))

    def _inherited(self, bracket: tree.Bracket) -> tuple[tree.Key, ...] | None:
        if self.match.head.by is not None:
            return self.match.head.by
        for brackets in self._positive:
            if any(other.span == bracket.span for other in brackets) and brackets[-1].by is not None:
                return brackets[-1].by
        lists = (other.by for brackets in self._positive for other in brackets if other.type == bracket.type)
        return next((by for by in lists if by is not None), None)

    def _key(self, key: tree.Key, name: str, event_type: str) -> tree.Key:
        value, kind = self._value(key, (event_type,))
        if kind not in ("any", "null"):
            # Keys of different types never meet: 7 and "7" are two keys.
            first, at, first_type = self.kinds.setdefault(name, (kind, key, event_type))
            if first != kind:
                message = f"`{key.name}` of `{event_type}` is {kind}, but `{at.name}` of `{first_type}` is {first}"
                hint = "turn one into the other under `let`, with string(...) or number(...), and name that in `by`"
                expected = f'{first}, as 7 and "7" never meet'
                self.context.report.error("key-type", message, key.span, expected=expected, hint=hint)
        return tree.Key(name, value, key.span)

    def _value(self, key: tree.Key, types: tuple[str, ...], quiet: bool = False) -> tuple[tree.Expr, str]:
        place = ExpressionContext(types=types, what="`by`")
        context = (
            self.context
            if not quiet
            else CheckerContext(report=Report(""), schema=None, known_fields=None, lets=self.context.lets)
        )
        try:
            return resolve(key.value, place, context)
        except TooLarge:
            context.report.error("too-large", "the `let` is too large", key.span)
            return key.value, "any"


def check_places(match: MatchText, report: Report) -> None:
    name, example = _REQUIRED[match.head.kind]
    if name not in match.head.options.marks and not match.head.options.misspelt:
        report.error(f"missing-{name}", f"`{match.head.kind}` needs `{name}`", match.head.span, expected=example)
    if match.head.kind == "sequence":
        _check_sequence(match, report)
    else:
        _check_other(match, report)


def _refuse(text: StepText, messages: Mapping[str, str], report: Report, hint: str | None = None) -> None:
    """An error for each of these options and prefixes that stands on a step."""
    for name, message in messages.items():
        if name in text.marks:
            report.error("misplaced-option", message, text.marks[name], hint=hint)


def _check_sequence(match: MatchText, report: Report) -> None:
    options = match.head.options
    if options.words.get("overlap", "latest") == "latest" and options.words.get("skip", "past_last") != "past_last":
        message = "`overlap=latest` always skips past the last match"
        hint = f"write `overlap=all, skip={options.words['skip']}`"
        report.error("skip-with-latest", message, options.marks["skip"], hint=hint)
    positive = [index for index, text in enumerate(match.steps) if text.step.kind is not tree.StepKind.ABSENT]
    if not positive:
        message = "every step is a negation: nothing can begin a match"
        hint = "put `[type where ...]` before or after it"
        report.error("only-negations", message, match.steps[0].step.span, hint=hint)
        return
    if all(match.steps[index].step.optional for index in positive):
        hint = "take the `?` from one of them"
        report.error("all-optional", "every step is optional", match.steps[positive[0]].step.span, hint=hint)
    for index, text in enumerate(match.steps):
        if text.step.kind is tree.StepKind.ABSENT:
            _check_negation(text, index < positive[0], index > positive[-1], report)
        else:
            _check_positive(text, index == positive[0], report)
    last = match.steps[-1].step
    if last.kind is tree.StepKind.ABSENT:
        return
    if last.optional:
        hint = "without it the match is complete already: leave the step out"
        where = match.steps[-1].marks["optional"]
        report.error("optional-last", "the last step cannot be optional", where, hint=hint)
    if last.runs_max != last.runs_min:
        message, runs = "the last step cannot have an open or ranged run", f"runs={last.runs_min}"
        hint = f"the match is made at the {last.runs_min}. event: write `{runs}`, or add the step that ends it"
        report.error("open-last", message, match.steps[-1].marks["runs"], expected=runs, hint=hint)


def _check_negation(text: StepText, first: bool, last: bool, report: Report) -> None:
    unfit = {name: f"`{name}` cannot stand on a negation" for name in ("runs", "after", "next")}
    _refuse(text, {**unfit, "optional": "a negation cannot be optional"}, report)
    if first:
        message = "`within` cannot stand on a first negation"
        _refuse(text, {"within": message}, report, "write `with for=10m`")
        if "for" not in text.marks:
            message = "a negation that comes first needs a time to look back"
            report.error("missing-for", message, text.step.span, expected="with for=10m")
        return
    _refuse(text, {"for": _FOR}, report, "write `with within=10m`" if last else None)
    if not last:
        message = "`within` cannot stand on a negation between steps"
        _refuse(text, {"within": message}, report, "put it on the step that follows")


def _check_positive(text: StepText, first: bool, report: Report) -> None:
    unfit = {"for": _FOR}
    if first:
        unfit |= {
            name: f"`{name}` counts from the step before, and this is the first" for name in ("next", "within", "after")
        }
    elif text.step.optional:
        unfit["next"] = "`next` cannot stand on an optional step"
    _refuse(text, unfit, report)
    if text.step.kind is tree.StepKind.UNORDERED:
        signs = {"next": "next", "runs": "runs", "optional": "?", "absent": "!"}
        unfit = {name: f"`{sign}` cannot stand on an unordered group" for name, sign in signs.items()}
        _refuse(text, unfit, report)
        if len(text.step.brackets) < 2:
            expected = "unordered { [...] as a [...] as b }"
            report.error("small-group", "`unordered` needs at least two members", text.step.span, expected=expected)


def _check_other(match: MatchText, report: Report) -> None:
    kind = match.head.kind
    signs = {"absent": "!", "optional": "?"} | {each: each for each in ("next", "runs", "within", "after", "for")}
    of_steps = "belongs to steps of a sequence"
    unfit = {name: f"`{sign}` {of_steps}; `{kind}` has only brackets" for name, sign in signs.items()}
    for text in match.steps:
        _refuse(text, unfit, report)
        if text.step.kind is tree.StepKind.UNORDERED:
            message = f"`unordered` belongs to a sequence; `{kind}` has only brackets"
            report.error("misplaced-option", message, text.step.span)
        elif len(text.step.brackets) > 1:
            hint = "write the brackets one after the other: an event enters every one it fits"
            message = f"`or` {of_steps}; `{kind}` has only brackets"
            report.error("misplaced-option", message, text.step.span, hint=hint)
    if match.until is not None:
        report.error("misplaced-option", f"`until` belongs to a sequence, not to `{kind}`", match.until.span)
    times = match.head.options.times
    if kind == "window" and times.get("size", times.get("every", 0)) < times.get("every", 0):
        message = "`size` is smaller than `every`: events between windows would be lost"
        report.error("small-window", message, match.head.options.marks["size"], expected="size of at least every")
