"""What a call means: a function of values, an aggregate over events taken, or a look at earlier events."""

from __future__ import annotations

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.dialect_hints import KEYWORDS
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, Typed, one_of, where
from samovar.patterns.syntax.functions import (
    AGGREGATES,
    ALL_NAMES,
    ANY,
    BOOLEAN,
    FUNCTIONS,
    HISTORY,
    NULL,
    NUMBER,
    TEXT,
    Function,
)
from samovar.patterns.syntax.tree import Aggregate, Call, Expr, History, Literal, Name, Span, rewrite, walk

_ELSEWHERE = {
    "median": "there are count, sum, avg, min, max, stddev, distinct, first, last and values",
    "average": "did you mean `avg`?",
    "mean": "did you mean `avg`?",
    "cardinality": "did you mean `distinct`?",
    "count_distinct": "did you mean `distinct`?",
    "len": "did you mean `length`?",
    "size": "did you mean `length`?",
    "if": "there is no `if`; write two rules, or `or`",
    "now": "rules run by event time: `@time`",
    "wildcard": 'write `field like ("a*", "b*")`',
    "match": 'write `field regex "..."`',
    "is_null": "write `field == null`",
    "not_null": "write `field != null`",
}


def resolve_call(node: Call, place: ExpressionContext, bench: CheckerContext) -> Typed:
    name, span = node.function, where(node.span, place)
    if node.where is not None:
        message = f"`where` inside `{name}` needs a time before it"
        bench.report.error("missing-duration", message, node.where.span, expected=f"{name}(field, 30d where ...)")
    if name in FUNCTIONS:
        return _function(FUNCTIONS[name], node, place, span, bench)
    if name in AGGREGATES:
        return _aggregate(name, node, place, span, bench)
    if name in HISTORY:
        message = f"`{name}` needs a time to look back"
        bench.report.error("missing-duration", message, span, expected=f"{name}(device, 90d)")
        return Literal(None, span), HISTORY[name] or ANY
    if name.lower() in KEYWORDS and name != name.lower():
        tip: str | None = f"keywords are lower case: `{name.lower()}`"
    else:
        tip = _ELSEWHERE.get(name) or did_you_mean(name, ALL_NAMES)
    bench.report.error(
        "unknown-function",
        f"there is no function `{name}`",
        span,
        hint=tip,
        expected=None if tip else "a function: " + ", ".join(sorted(ALL_NAMES)),
    )
    for arg in node.args:
        # A misspelt aggregate may well take a step's name.
        if not (isinstance(arg, Name) and arg.path in place.readable):
            bench.resolve(arg, place, bench)
    return Literal(None, span), ANY


# ---------------------------------------------------------------- functions of values


def _function(function: Function, node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed:
    given, least, most = len(node.args), function.least, function.most
    if given < least or (most is not None and given > most):
        few = "few" if given < least else "many"
        wanted = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
        message = f"too {few} arguments for `{function.name}`: {given}, not {wanted}"
        bench.report.error("argument-count", message, span, expected=function.example)
    args, kinds = [], []
    for index, raw in enumerate(node.args):
        arg, kind = bench.resolve(raw, place, bench)
        wanted = function.kind(index)
        if ANY not in (wanted, kind) and kind not in (NULL, wanted):
            message = f"`{function.name}` takes {wanted} here; of a {kind} it gives null"
            bench.report.warning("argument-type", message, arg.span, expected=function.example)
        args.append(arg)
        kinds.append(kind)
    # Networks and time zones that stand in the rule are looked at now, not when the first event comes.
    for arg in args[1:]:
        text = arg.value if isinstance(arg, Literal) and isinstance(arg.value, str) else None
        if text is not None and function.name == "cidr" and not _is_network(text):
            expected = 'a network such as "10.0.0.0/8"'
            bench.report.error("bad-network", f"`{text}` is no network", arg.span, expected=expected)
        elif text is not None and function.name in ("hour", "day_of_week") and not _is_zone(text):
            expected = 'a zone such as "Europe/Berlin"'
            bench.report.error("unknown-zone", f"`{text}` is not a time zone", arg.span, expected=expected)
    known = {kind for kind in kinds if kind != NULL}
    common = known.pop() if len(known) == 1 else ANY
    return Call(function.name, tuple(args), None, span), function.result or common


def _is_network(text: str) -> bool:
    # Imported here, as zoneinfo below: few rules need them, and all would pay at start-up.
    import ipaddress  # noqa: PLC0415

    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_zone(text: str) -> bool:
    import zoneinfo  # noqa: PLC0415

    try:
        zoneinfo.ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        # Without any time zone data on this machine nothing can be said of the name.
        return not zoneinfo.available_timezones()
    return True


# ---------------------------------------------------------------- earlier events


def resolve_history(node: History, place: ExpressionContext, bench: CheckerContext) -> Typed:
    span = where(node.span, place)
    if not place.history:
        message = f"`{node.function}` over a time cannot stand in {place.what}"
        hint = "it looks at earlier events from the condition of a bracket"
        bench.report.error("misplaced-history", message, span, hint=hint)
        return Literal(None, span), HISTORY[node.function] or ANY
    reasons = dict.fromkeys([*place.readable, *place.unreadable], f"`{node.function}` reads fields of the event")
    inner = ExpressionContext(place.types, f"`{node.function}`", unreadable=reasons, at=place.at, lets=place.lets)
    value, kind = bench.resolve(node.value, inner, bench) if node.value is not None else (None, NUMBER)
    condition = None
    if node.where is not None:
        condition, where_kind = bench.resolve(node.where, inner, bench)
        if where_kind not in (BOOLEAN, ANY):
            bench.report.error("not-a-condition", "a condition must be true or false", condition.span)
    if node.function == "seen" and not isinstance(node.value, Name | History):
        hint = "give the expression a name under `let`, and that to `seen`"
        bench.report.error("seen-of-expression", "`seen` takes a field", span, expected="seen(device, 90d)", hint=hint)
    if node.function in ("sum", "avg") and kind in (TEXT, BOOLEAN):
        bench.report.error("not-a-number", f"`{node.function}` takes numbers; this is {kind}", span)
    return History(node.function, value, node.span_ms, condition, span), HISTORY[node.function] or kind


# ---------------------------------------------------------------- aggregates over the events taken


def _aggregate(name: str, node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed:
    """`count(probe)`, `sum(probe.amount * 2)`, `distinct(ip)`."""
    failed = Literal(None, span), AGGREGATES[name] or ANY
    looks_back = place.history and name in HISTORY
    if place.aggregates is None:
        over = "count(1h)" if name == "count" else f"{name}(amount, 30d)"
        tip = f"over earlier events: `{over}`" if looks_back else "it can stand in `having`, `emit` and `message`"
        message = f"`{name}` over the events taken cannot stand in {place.what}"
        bench.report.error("misplaced-aggregate", message, span, hint=tip)
        return failed
    if name == "count":
        return _count(node, place, span, bench) or failed
    if len(node.args) != 1:
        step = next(iter(place.readable), "step")
        example = f"{name}({step}.amount)" if place.aggregates == "steps" else f"{name}(amount)"
        back = f"over earlier events the second argument is a time: `{name}(amount, 30d)`"
        message = f"`{name}` takes one expression, not {len(node.args)}"
        hint = back if len(node.args) == 2 and name in HISTORY else None
        bench.report.error("argument-count", message, span, expected=example, hint=hint)
        return failed
    target = _target(name, node.args[0], place, span, bench)
    if target is None:
        return failed
    types = place.readable[target].types if target else place.types
    others = {each: "an aggregate reads one step" for each in place.readable if each != target}
    inner = ExpressionContext(types, place.what, at=place.at, lets=place.lets, unreadable=others)

    def without_step(part: Expr) -> Expr | None:
        """`probe.amount` as `amount`: inside the aggregate the event at hand is the step's."""
        if not target or not isinstance(part, Name):
            return None
        optional = "?" if part.path.startswith("?") else ""
        return Name(optional + part.path.removeprefix("?").removeprefix(target + "."), part.span)

    value, kind = bench.resolve(rewrite(node.args[0], without_step), inner, bench)
    if name in ("sum", "avg", "stddev") and kind in (TEXT, BOOLEAN):
        hint = "distinct(...) counts different values"
        bench.report.error("not-a-number", f"`{name}` takes numbers; this is {kind}", span, hint=hint)
    return Aggregate(name, target or None, value, span), AGGREGATES[name] or kind


def _count(node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed | None:
    if not node.args:
        if place.aggregates == "events":
            return Aggregate("count", None, None, span), NUMBER
        bench.report.error("missing-step", "`count()` of which step?", span, expected=_examples("count", place))
        return None
    arg = node.args[0]
    path = arg.path if isinstance(arg, Name) else ""
    if len(node.args) == 1 and path in place.readable:
        return Aggregate("count", path, None, span), NUMBER
    if path in place.unreadable:
        message = f"`{path}` cannot be read here: {place.unreadable[path]}"
        bench.report.error("unreadable-step", message, span, expected=one_of(place.readable))
        return None
    tip = did_you_mean(path, place.readable)
    if path.split(".")[0] in place.readable:
        tip = f"write `count({path.split('.')[0]})`"
    elif tip is None and place.aggregates == "events":
        tip = "count() counts events; distinct(field) counts different values"
    message = f"`count` takes the name of a step, not `{path or 'an expression'}`"
    bench.report.error("unknown-step", message, span, expected=_examples("count", place), hint=tip)
    return None


def _examples(name: str, place: ExpressionContext) -> str | None:
    suffix = "" if name == "count" else ".amount"
    return " or ".join(f"{name}({step}{suffix})" for step in list(place.readable)[:4]) or None


def _target(name: str, arg: Expr, place: ExpressionContext, span: Span, bench: CheckerContext) -> str | None:
    """The step whose events are read; "" for all events; None after a finding."""

    def is_field(path: str) -> bool:
        if bench.schema is not None:
            return bench.schema.kind(path, place.types) is not None
        return path in bench.lets or path in bench.known_heads

    paths = [part.path.removeprefix("?") for part in walk(arg) if isinstance(part, Name)]
    heads = {path.partition(".")[0] for path in paths if "." in path}
    bad = next((head for head in sorted(heads) if head in place.unreadable), None)
    targets = sorted(head for head in heads if head in place.readable)
    bare = next((path for path in paths if path in place.readable and not is_field(path)), None)
    if bad is not None:
        message = f"`{bad}` cannot be read here: {place.unreadable[bad]}"
        bench.report.error("unreadable-step", message, span, expected=one_of(place.readable))
    elif bare is not None:
        expected = f"{name}({bare}.amount)"
        bench.report.error("missing-field", f"`{name}` of which field of `{bare}`?", span, expected=expected)
    elif len(targets) > 1:
        bench.report.error("two-steps", f"`{name}` reads one step, not {' and '.join(targets)}", span)
    elif targets and any(path.partition(".")[0] != targets[0] for path in paths):
        expected = f"{targets[0]}.field"
        bench.report.error("two-steps", f"inside `{name}` every field needs the step's name", span, expected=expected)
    elif not targets and place.aggregates == "steps":
        head, _, rest = paths[0].partition(".") if paths else ("", "", "")
        tip = did_you_mean(head, place.readable) if rest else None
        if tip is None and place.history and name in HISTORY:
            tip = f"over earlier events: `{name}({paths[0] if paths else 'amount'}, 30d)`"
        examples = _examples(name, place)
        bench.report.error("missing-step", f"`{name}` of which step?", span, expected=examples, hint=tip)
    else:
        return targets[0] if targets else ""
    return None
